package client

import (
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/coord/calls"
)

// BeginSpan begins the span of a call of a gRPC method. It returns the W3C traceparent that the call carries, or ""
// for none, and a function for the outcome, or nil.
type BeginSpan = calls.BeginSpan

// WithTrace is an option of New: the traces of calls. The peer and those that work for it add their spans to the trace of
// a call.
//
// An interceptor of OpenTelemetry does not see all calls: those of the coordination plane share one stream.
func WithTrace(begin BeginSpan) grpc.DialOption { return traceOption{begin: begin} }

// traceOption is an option for New; gRPC ignores it.
type traceOption struct {
	grpc.EmptyDialOption
	begin BeginSpan
}

// spans returns the last WithTrace among options, or nil.
func spans(opts []grpc.DialOption) (begin BeginSpan) {
	for _, o := range opts {
		if own, ok := o.(traceOption); ok {
			begin = own.begin
		}
	}
	return begin
}
