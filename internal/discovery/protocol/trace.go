package protocol

import (
	"context"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/trace"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// asking begins the span of a request to another keeper. Within a recorded trace the returned request names the span;
// req itself may be on its way to several keepers.
func asking(ctx context.Context, t *trace.Tracer, to peer.ID, req *pb.Request) (context.Context, *pb.Request, trace.Span) {
	if !t.On() || !trace.Recorded(ctx) {
		return ctx, req, trace.Span{}
	}
	ctx, span := t.Call(ctx, spanOf(req))
	span.Text("blackhole.peer", to.String())
	return ctx, &pb.Request{TimeoutMs: req.TimeoutMs, Op: req.Op, Traceparent: trace.Traceparent(ctx)}, span
}

// Serving begins the span of a request of another peer, if it belongs to a recorded trace there.
func (l *Life) Serving(ctx context.Context, from Source, req *pb.Request) (context.Context, trace.Span) {
	t := l.signals.Tracer
	if !t.On() || req.Traceparent == "" {
		return ctx, trace.Span{}
	}
	ctx, span := t.Served(ctx, spanOf(req), req.Traceparent)
	span.Text("blackhole.peer", from.Peer.String())
	return ctx, span
}

// spanOf names the spans of a request: that of the asker and that of the keeper, which differ in kind.
func spanOf(req *pb.Request) string { return "keeper." + OperationOf(req) }

// OperationOf names the operation of a request.
func OperationOf(req *pb.Request) string {
	m := req.ProtoReflect()
	if op := m.WhichOneof(m.Descriptor().Oneofs().ByName("op")); op != nil {
		return string(op.Name())
	}
	return "unknown"
}
