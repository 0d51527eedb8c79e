// Package trace makes spans of what a peer does for its callers, in the data model of OpenTelemetry.
//
// A trace begins where an application calls this peer, or earlier, in the application. The parts that work for the
// call add spans to it, and requests to other peers carry its traceparent (W3C Trace Context), so that their spans
// join. Work without a caller, such as renewals, comparisons and keepalives, is never part of a trace.
//
// A nil Tracer makes no spans and allocates nothing. There is no global state: the daemon hands the Tracer to its
// parts.
package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otel "go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Header is the name of the traceparent, in HTTP and in the metadata of gRPC.
const Header = "traceparent"

// MaxTraceparent is the length of a traceparent in bytes. Longer ones are ignored.
const MaxTraceparent = 55

// Bounds of the spans that requests of other peers cause. Strangers choose these requests, and must not fill the
// queue of the exporter.
const (
	servedPerSecond = 200
	servedAtOnce    = 400
)

// Tracer makes spans. It is safe for concurrent use. Nil makes none.
type Tracer struct {
	tracer   otel.Tracer
	provider *sdk.TracerProvider
	served   *rate.Limiter // spans of Served
}

// New returns a Tracer whose finished spans go to a processor.
func New(options ...sdk.TracerProviderOption) *Tracer {
	provider := sdk.NewTracerProvider(options...)
	return &Tracer{
		tracer: provider.Tracer("github.com/blackhole/blackhole"), provider: provider, served: rate.NewLimiter(servedPerSecond, servedAtOnce),
	}
}

// Close exports the finished spans until ctx ends. Later spans are lost.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return fault.As("trace.Close", fault.Unavailable, t.provider.Shutdown(ctx))
}

// On reports whether this Tracer makes spans.
func (t *Tracer) On() bool { return t != nil }

// Request begins the span of a call of an application: in the trace of its traceparent, or in a new one. The
// sampler decides which traces are recorded.
func (t *Tracer) Request(ctx context.Context, name, traceparent string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	return t.begin(join(ctx, traceparent), name, otel.SpanKindServer)
}

// Served begins the span of a request of another peer, if the peer says that it belongs to a recorded trace.
func (t *Tracer) Served(ctx context.Context, name, traceparent string) (context.Context, Span) {
	if t == nil || traceparent == "" {
		return ctx, Span{}
	}
	joined := join(ctx, traceparent)
	if !Recorded(joined) || !t.served.Allow() {
		return ctx, Span{}
	}
	return t.begin(joined, name, otel.SpanKindServer)
}

// Call begins the span of a request to another peer, within a recorded trace.
func (t *Tracer) Call(ctx context.Context, name string) (context.Context, Span) {
	return t.within(ctx, name, otel.SpanKindClient)
}

// Part begins the span of a step of this peer, within a recorded trace.
func (t *Tracer) Part(ctx context.Context, name string) (context.Context, Span) {
	return t.within(ctx, name, otel.SpanKindInternal)
}

func (t *Tracer) within(ctx context.Context, name string, kind otel.SpanKind) (context.Context, Span) {
	if t == nil || !Recorded(ctx) {
		return ctx, Span{}
	}
	return t.begin(ctx, name, kind)
}

func (t *Tracer) begin(ctx context.Context, name string, kind otel.SpanKind) (context.Context, Span) {
	ctx, span := t.tracer.Start(ctx, name, otel.WithSpanKind(kind))
	return ctx, Span{span}
}

// Recorded reports whether ctx belongs to a recorded trace.
func Recorded(ctx context.Context) bool { return otel.SpanContextFromContext(ctx).IsSampled() }

// Carry returns a context with the lifetime of to in the trace of from: for work that several callers share and that
// outlives the first of them.
func Carry(to, from context.Context) context.Context {
	if sc := otel.SpanContextFromContext(from); sc.IsSampled() {
		return otel.ContextWithSpanContext(to, sc)
	}
	return to
}

// Traceparent returns the traceparent for requests under ctx, or "" outside a recorded trace.
func Traceparent(ctx context.Context) string {
	if !Recorded(ctx) {
		return ""
	}
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, c)
	return c[Header]
}

// join returns ctx in the trace of a traceparent. A malformed one is ignored, as the standard asks. It takes no tracestate: that of
// vendors has no small bound, and peers have no use for it.
func join(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" || len(traceparent) > MaxTraceparent {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: traceparent})
}

// Span is a step of a trace. The zero Span is none.
type Span struct{ span otel.Span }

// Rename gives the span a name that was not known at its begin.
func (s Span) Rename(name string) {
	if s.span != nil {
		s.span.SetName(name)
	}
}

// Text adds an attribute.
func (s Span) Text(key, value string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// Number adds an attribute.
func (s Span) Number(key string, value int) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int(key, value))
	}
}

// Link names another trace that the step works for too.
func (s Span) Link(ctx context.Context) {
	if s.span != nil {
		s.span.AddLink(otel.Link{SpanContext: otel.SpanContextFromContext(ctx)})
	}
}

// Failed marks the span as failed, with a short name of the cause. The text of an error may name what only the
// caller should see, so it stays out.
func (s Span) Failed(cause string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, cause)
		s.span.SetAttributes(attribute.String("error.type", cause))
	}
}

// End ends the span with the outcome of its step.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.Failed(fault.KindOf(err).String())
	}
	s.span.End()
}
