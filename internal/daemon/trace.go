package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/trace"
)

// lastSpans bounds the export of the last spans at the end of this peer.
const lastSpans = 3 * time.Second

// tracing makes the spans of this peer at its edges. Without a tracer it does nothing.
type tracing struct{ *trace.Tracer }

// newTracing returns the tracing that the environment asks for. A peer without traces works, so a variable that it does not
// understand is no reason to stop.
func newTracing(ctx context.Context, who trace.Program, log *slog.Logger) tracing {
	tracer, err := trace.FromEnvironment(ctx, os.Getenv, who, log.With("part", "trace"))
	if err != nil {
		log.Warn("this peer makes no traces", "error", err)
	}
	return tracing{tracer}
}

// stop exports the last spans.
func (t tracing) stop(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	if err := t.Close(ctx); err != nil {
		log.Warn("the last spans are lost", "error", err)
	}
}

// fronts traces the calls of applications.
func (t tracing) fronts(web *httpapi.Config, rpc *grpcapi.Config) {
	if !t.On() {
		return
	}
	web.Trace = t.request
	spans(rpc, t.Request)
}

// spans makes each call of a front end a span that begin begins.
func spans(c *grpcapi.Config, begin func(ctx context.Context, name, parent string) (context.Context, trace.Span)) {
	c.Unary = append([]grpc.UnaryServerInterceptor{func(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
		ctx, span := begin(ctx, methodName(info.FullMethod), parentOf(ctx))
		resp, err := call(ctx, req)
		span.End(err)
		return resp, err
	}}, c.Unary...)
}

// peers traces the calls of other peers, whose traces began elsewhere.
func (t tracing) peers(c *grpcapi.Config) {
	if t.On() {
		spans(c, t.Served)
	}
}

// calls begins the spans of calls to another peer; nil without traces.
func (t tracing) calls(to string) calls.BeginSpan {
	if !t.On() {
		return nil
	}
	return func(ctx context.Context, method string) (string, func(error)) {
		if !trace.Recorded(ctx) {
			return "", nil
		}
		ctx, span := t.Call(ctx, methodName(method))
		span.Text("blackhole.peer", to)
		return trace.Traceparent(ctx), func(err error) {
			if err != nil {
				span.Failed(status.Code(err).String())
			}
			span.End(nil)
		}
	}
}

// request begins the span of a REST request. Its route is known at its end.
func (t tracing) request(r *http.Request) (*http.Request, func(route string, status int)) {
	ctx, span := t.Request(r.Context(), r.Method, r.Header.Get(trace.Header))
	span.Text("http.request.method", r.Method)
	return r.WithContext(ctx), func(route string, status int) {
		_, path, _ := strings.Cut(route, " ")
		span.Rename(strings.TrimSpace(r.Method + " " + path))
		span.Text("http.route", path)
		span.Number("http.response.status_code", status)
		if status >= http.StatusInternalServerError {
			span.Failed(http.StatusText(status))
		}
		span.End(nil)
	}
}

// parentOf returns the traceparent of a gRPC call, or "".
func parentOf(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, trace.Header); len(values) == 1 {
		return values[0]
	}
	return ""
}

// methodName is the name of the span of a gRPC method, without the first slash as the conventions ask.
func methodName(full string) string { return strings.TrimPrefix(full, "/") }
