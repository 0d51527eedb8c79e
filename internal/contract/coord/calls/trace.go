package calls

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
)

// traceparent is the name of the W3C traceparent in the metadata of a call.
const traceparent = "traceparent"

// BeginSpan begins the span of a call of a gRPC method. It returns the W3C traceparent that the call carries, or ""
// for none, and a function for the outcome, or nil.
type BeginSpan func(ctx context.Context, method string) (traceparent string, end func(error))

// Traced returns the gRPC options that trace the calls by themselves; none for nil. Calls on a stream carry their traceparents in
// messages.
func Traced(begin BeginSpan) []grpc.DialOption {
	if begin == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(tracing{begin})}
}

// tracing traces the calls of a connection.
type tracing struct{ begin BeginSpan }

// endKey is the context key of the function for the outcome of a call.
type endKey struct{}

// TagRPC implements stats.Handler: it begins a call.
func (t tracing) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	parent, end := t.begin(ctx, call.FullMethodName)
	if parent != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, traceparent, parent)
	}
	if end != nil {
		ctx = context.WithValue(ctx, endKey{}, end)
	}
	return ctx
}

// HandleRPC implements stats.Handler: it ends a call.
func (t tracing) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if over, ok := event.(*stats.End); ok {
		if end, ok := ctx.Value(endKey{}).(func(error)); ok {
			end(over.Error)
		}
	}
}

// TagConn implements stats.Handler.
func (tracing) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (tracing) HandleConn(context.Context, stats.ConnStats) {}
