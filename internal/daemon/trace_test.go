package daemon

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/trace/collector"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/query"
)

// traced is a leaf, the peer that it asks, and the collector of both.
type traced struct {
	*collector.Collector
	leaf      *peerUnderTest
	at, there string // ids of the leaf and the other peer
}

const callerSpan = "00f067aa0ba902b7"

func traceID(digit string) string { return "4bf92f3577b34da6a3ce929d0e0e473" + digit }

func traceparent(trace string) string { return "00-" + trace + "-" + callerSpan + "-01" }

// requireChain waits for a chain of spans from the caller's span down: each names a peer, a kind and the end of a name.
func (w *traced) requireChain(t *testing.T, trace string, steps ...collector.Span) {
	t.Helper()
	parent := callerSpan
	for _, want := range steps {
		until(t, want.Name+" of "+want.Peer, func() bool {
			all := w.Spans()
			n := slices.IndexFunc(all, func(s collector.Span) bool {
				return s.Trace == trace && s.Parent == parent && s.Peer == want.Peer && s.Kind == want.Kind && strings.HasSuffix(s.Name, want.Name)
			})
			if n >= 0 {
				parent = all[n].ID
			}
			return n >= 0
		})
	}
}

// TestTraces: one trace holds the span of the caller, those of its peer, and those of the peer that its peer asks.
func TestTraces(t *testing.T) {
	if testing.Short() {
		t.Skip("whole peers on loopback")
	}
	w := &traced{Collector: collector.New(t)}
	other := start(t, t.TempDir())
	settings := config.Default()
	settings.Leaf = "on"
	w.leaf = startWith(t, settings, t.TempDir(), other.addr)
	w.at, w.there = w.leaf.parts.node.Host().ID().String(), other.parts.node.Host().ID().String()
	until(t, "the leaf uses the group", func() bool {
		_, _, err := w.leaf.Locks().Grant(t.Context(), time.Minute)
		return err == nil
	})
	limit := 0
	until(t, "the leaf asks the keeper", func() bool { // at first it believes that it is alone
		limit++ // each time another question, which the cache does not know
		a, err := w.leaf.Offers().Query(t.Context(), query.Query{Type: "storage", Limit: limit})
		return err == nil && a.Source == query.SourceNetwork
	})

	t.Run("lock", w.lock)
	t.Run("registration", w.registration)
	t.Run("offer", w.offer)
	t.Run("query", w.query)
	t.Run("work of its own is in no trace", func(t *testing.T) {
		for _, s := range w.Spans() {
			if s.Parent == "" {
				require.Equal(t, collector.Serves, s.Kind, s.Name)
				require.NotContains(t, s.Name, "keeper.")
			}
		}
	})
}

func (w *traced) lock(t *testing.T) {
	app, err := operator.New(w.leaf.grpc, client.WithTrace(func(context.Context, string) (string, func(error)) { return traceparent(traceID("1")), nil }))
	require.NoError(t, err)
	defer app.Close()
	lease, _, err := app.Locks().Grant(t.Context(), time.Minute)
	require.NoError(t, err)
	_, _, err = ops.Of(app.Coordination()).Do(t.Context(), ops.Command{Op: &ops.Lock{Name: "db", Lease: coord.LeaseID(lease)}})
	require.NoError(t, err)
	const method = "LockService/TryLock"
	w.requireChain(t, traceID("1"), collector.Span{Peer: w.at, Kind: collector.Serves, Name: method},
		collector.Span{Peer: w.at, Kind: collector.Calls, Name: method}, collector.Span{Peer: w.there, Kind: collector.Serves, Name: method})
}

func (w *traced) registration(t *testing.T) {
	w.send(t, "/v1/services/web/instances", traceID("2"), `{"host":"127.0.0.1","port":8080}`)
	const method = "CoordinationService/PublishInstances"
	w.requireChain(t, traceID("2"), collector.Span{Peer: w.at, Kind: collector.Serves, Name: "POST /v1/services/{service}/instances"},
		collector.Span{Peer: w.at, Kind: collector.Works, Name: "directory.publish"},
		collector.Span{Peer: w.at, Kind: collector.Calls, Name: method}, collector.Span{Peer: w.there, Kind: collector.Serves, Name: method})
}

func (w *traced) offer(t *testing.T) {
	w.send(t, "/v1/discovery/records", traceID("3"), `{"id":"s","metadata":{"type":"storage"},"capabilities":{"storage":{"total_space":2,"available_space":1}}}`)
	w.requireChain(t, traceID("3"), collector.Span{Peer: w.at, Kind: collector.Serves, Name: "POST /v1/discovery/records"},
		collector.Span{Peer: w.at, Kind: collector.Calls, Name: "keeper.store"}, collector.Span{Peer: w.there, Kind: collector.Serves, Name: "keeper.store"})
}

func (w *traced) query(t *testing.T) {
	w.send(t, "/v1/discovery/query", traceID("4"), `{"type":"storage"}`)
	w.requireChain(t, traceID("4"), collector.Span{Peer: w.at, Kind: collector.Serves, Name: "POST /v1/discovery/query"},
		collector.Span{Peer: w.at, Kind: collector.Calls, Name: "keeper.query"}, collector.Span{Peer: w.there, Kind: collector.Serves, Name: "keeper.query"})
}

// send posts a request of a trace to the leaf.
func (w *traced) send(t *testing.T, path, trace, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.leaf.http+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("traceparent", traceparent(trace))
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Less(t, resp.StatusCode, 300, "%s", text)
}
