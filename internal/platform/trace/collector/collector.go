// Package collector is a collector of OpenTelemetry for tests: it takes the spans that peers export.
package collector

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Kinds of spans.
const (
	Works  = tracev1.Span_SPAN_KIND_INTERNAL
	Serves = tracev1.Span_SPAN_KIND_SERVER
	Calls  = tracev1.Span_SPAN_KIND_CLIENT
)

// Span is one span of a peer. Ids are hexadecimal.
type Span struct {
	Trace, ID, Parent string
	Peer, Name        string
	Kind              tracev1.Span_SpanKind
}

// Collector takes OTLP over HTTP.
type Collector struct {
	mu    sync.Mutex
	spans []Span
}

// New starts a collector, and names it in the environment of the test.
func New(t *testing.T) *Collector {
	c := new(Collector)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	return c
}

// Spans returns the spans taken so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// ServeHTTP takes spans.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	b, err := io.ReadAll(body)
	req := new(collectorv1.ExportTraceServiceRequest)
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(b, req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range req.ResourceSpans {
		peer := ""
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.instance.id" {
				peer = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{
					Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
					Peer: peer, Name: s.Name, Kind: s.Kind,
				})
			}
		}
	}
}
