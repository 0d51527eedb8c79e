package trace_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/fault"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func newTracer(options ...sdk.TracerProviderOption) (*trace.Tracer, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	return trace.New(append(options, sdk.WithSyncer(spans))...), spans
}

func TestRequestJoinsItsCaller(t *testing.T) {
	for name, tc := range map[string]struct {
		traceparent string
		joins       bool
	}{
		"the standard's example": {parent, true},
		"none":                   {"", false},
		"no traceparent":         {"hello", false},
		"zero id":                {"00-00000000000000000000000000000000-00f067aa0ba902b7-01", false},
		"too long":               {parent + "-" + strings.Repeat("x", 1000), false},
		"capitals":               {strings.ToUpper(parent), false},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, spans := newTracer()
			ctx, span := tracer.Request(t.Context(), "GET /", tc.traceparent)
			require.True(t, trace.Recorded(ctx))
			span.End(nil)
			got := spans.GetSpans()
			require.Len(t, got, 1)
			require.Equal(t, tc.joins, got[0].SpanContext.TraceID().String() == "4bf92f3577b34da6a3ce929d0e0e4736")
			require.Equal(t, tc.joins, got[0].Parent.SpanID().String() == "00f067aa0ba902b7")
		})
	}
}

func TestTraceCrossesPeers(t *testing.T) {
	here, made := newTracer()
	there, madeThere := newTracer()
	ctx, request := here.Request(t.Context(), "lock", parent)
	ctx, part := here.Part(ctx, "directory.publish")
	ctx, call := here.Call(ctx, "TryLock")
	said := trace.Traceparent(ctx)
	require.Len(t, said, trace.MaxTraceparent)
	_, served := there.Served(t.Context(), "TryLock", said)
	served.Text("blackhole.peer", "p")
	served.End(fault.New("op", fault.NotFound, "no lock secret/name"))
	call.End(nil)
	part.End(nil)
	request.End(nil)

	far := madeThere.GetSpans()[0]
	near := made.GetSpans()
	require.Len(t, near, 3)
	require.Equal(t, near[0].SpanContext.SpanID(), far.Parent.SpanID())
	require.Equal(t, near[1].SpanContext.SpanID(), near[0].Parent.SpanID())
	require.Equal(t, near[2].SpanContext.SpanID(), near[1].Parent.SpanID())
	require.Equal(t, near[2].SpanContext.TraceID(), far.SpanContext.TraceID())
	require.Equal(t, "not_found", far.Status.Description, "a text may name what only the caller should see")
}

func TestOnlyApplicationsBeginTraces(t *testing.T) {
	tracer, spans := newTracer()
	_, part := tracer.Part(t.Context(), "part")
	_, call := tracer.Call(t.Context(), "call")
	for _, traceparent := range []string{"", "nonsense", strings.TrimSuffix(parent, "1") + "0"} { // the last one is not recorded
		ctx, served := tracer.Served(t.Context(), "served", traceparent)
		require.False(t, trace.Recorded(ctx))
		require.Empty(t, trace.Traceparent(ctx))
		served.End(errors.New("x"))
	}
	part.End(nil)
	call.End(nil)
	require.Empty(t, spans.GetSpans())
}

func TestStrangersCannotFloodTheExporter(t *testing.T) {
	tracer, spans := newTracer()
	for range 5000 {
		_, span := tracer.Served(t.Context(), "served", parent)
		span.End(nil)
	}
	require.Less(t, len(spans.GetSpans()), 5000)
	_, span := tracer.Request(t.Context(), "an application", parent)
	span.End(nil)
	all := spans.GetSpans()
	require.Equal(t, "an application", all[len(all)-1].Name)
}

func TestCallersDecideWhatIsRecorded(t *testing.T) {
	tracer, spans := newTracer(sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	ctx, span := tracer.Request(t.Context(), "not wanted", "")
	require.Empty(t, trace.Traceparent(ctx))
	span.End(nil)
	_, span = tracer.Request(t.Context(), "wanted", parent)
	span.End(nil)
	require.Len(t, spans.GetSpans(), 1)
}

func TestCarry(t *testing.T) {
	tracer, _ := newTracer()
	caller, cancel := context.WithCancel(t.Context())
	caller, span := tracer.Request(caller, "query", parent)
	defer span.End(nil)
	shared := trace.Carry(t.Context(), caller)
	cancel()
	require.NoError(t, shared.Err())
	require.Equal(t, trace.Traceparent(caller), trace.Traceparent(shared))
}

// off does everything that the parts of a peer do with a Tracer on their hot paths.
func off(ctx context.Context, t *trace.Tracer) {
	ctx, request := t.Request(ctx, "request", parent)
	ctx, served := t.Served(ctx, "served", parent)
	ctx, part := t.Part(trace.Carry(ctx, ctx), "part")
	ctx, call := t.Call(ctx, "call")
	call.Text("key", "value")
	if trace.Recorded(ctx) || trace.Traceparent(ctx) != "" {
		panic("a trace without a tracer")
	}
	for _, span := range []trace.Span{call, part, served, request} {
		span.End(nil)
	}
}

func TestOffAllocatesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.Zero(t, testing.AllocsPerRun(100, func() { off(ctx, nil) }))
	require.NoError(t, (*trace.Tracer)(nil).Close(ctx))
}

func BenchmarkOff(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		off(ctx, nil)
	}
}

func BenchmarkOn(b *testing.B) {
	tracer := trace.New()
	b.ReportAllocs()
	for b.Loop() {
		ctx, request := tracer.Request(b.Context(), "request", parent)
		ctx, call := tracer.Call(ctx, "call")
		_ = trace.Traceparent(ctx)
		call.End(nil)
		request.End(nil)
	}
}

func TestEnvironment(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, tc := range map[string]struct {
		variables map[string]string
		on        bool
		wrong     string // the variable
	}{
		"none":                  {nil, false, ""},
		"only a name":           {map[string]string{"OTEL_SERVICE_NAME": "x"}, false, ""},
		"an endpoint":           {map[string]string{endpoint: "http://localhost:4318"}, true, ""},
		"of traces":             {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, true, ""},
		"the default endpoint":  {map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		"exporter off":          {map[string]string{endpoint: "http://localhost:4318", "OTEL_TRACES_EXPORTER": "none"}, false, ""},
		"all off":               {map[string]string{endpoint: "http://localhost:4318", "OTEL_SDK_DISABLED": "true"}, false, ""},
		"another exporter":      {map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, false, "OTEL_TRACES_EXPORTER"},
		"another protocol":      {map[string]string{endpoint: "http://localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		"the protocol we speak": {map[string]string{endpoint: "http://localhost:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, true, ""},
		"a sampler":             {map[string]string{endpoint: "x", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, true, ""},
		"no such sampler":       {map[string]string{endpoint: "x", "OTEL_TRACES_SAMPLER": "sometimes"}, false, "OTEL_TRACES_SAMPLER"},
		"no share":              {map[string]string{endpoint: "x", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "NaN"}, false, "OTEL_TRACES_SAMPLER_ARG"},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, err := trace.FromEnvironment(t.Context(), func(name string) string { return tc.variables[name] }, trace.Program{}, slog.New(slog.DiscardHandler))
			require.Equal(t, tc.on, tracer.On())
			require.Equal(t, tc.wrong, fault.FieldOf(err), "%v", err)
			require.Equal(t, tc.wrong == "", err == nil)
			require.NoError(t, tracer.Close(t.Context()))
		})
	}
}

func TestFailedExportIsLoggedOnce(t *testing.T) {
	broken := true
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken {
			w.WriteHeader(http.StatusBadRequest) // not to be repeated
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
	var log bytes.Buffer
	trial := func() {
		tracer, err := trace.FromEnvironment(t.Context(), func(name string) string {
			return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL}[name]
		}, trace.Program{Name: "test"}, slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		for range 5 {
			_, span := tracer.Request(t.Context(), "x", "")
			span.End(nil)
		}
		require.NoError(t, tracer.Close(t.Context()))
	}
	trial()
	require.Equal(t, 1, strings.Count(log.String(), "spans are lost"), log.String())
	log.Reset()
	broken = false
	trial()
	require.Empty(t, log.String())
}
