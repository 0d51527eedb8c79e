package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/instance"
)

// eventsOf follows a peer over gRPC until the test ends.
func eventsOf(t *testing.T, p *peerUnderTest, q client.EventQuery) <-chan client.PeerEvent {
	ctx, cancel := context.WithCancel(t.Context())
	out, done := make(chan client.PeerEvent), make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range p.Client.Events(ctx, q) {
			if err != nil {
				return // ctx has ended, or the test waits in vain and fails
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

// seen reads events up to one of a topic whose data have all of the texts.
func seen(t *testing.T, events <-chan client.PeerEvent, topic string, texts ...string) client.PeerEvent {
	t.Helper()
	late, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		select {
		case e := <-events:
			all := e.Topic == topic
			for _, text := range texts {
				all = all && strings.Contains(string(e.Data), text)
			}
			if all {
				return e
			}
		case <-late.Done():
			require.FailNow(t, "no event within "+patience.String(), "%s %v", topic, texts)
		}
	}
}

// TestEventsOfAPeer: one stream over gRPC shows what happens to offers, services and locks of a real peer, and continues at an id of its own or of the stream over HTTP.
func TestEventsOfAPeer(t *testing.T) {
	a := start(t, t.TempDir())
	events := eventsOf(t, a, client.EventQuery{})
	open := seen(t, events, "open")
	for _, topic := range []string{"offers", "services", "keys"} {
		require.Contains(t, string(open.Data), `"`+topic+`"`)
	}
	seen(t, events, "keys", `"reset"`) // a watch that begins after the lock shows no put

	_, err := a.Register(t.Context(), compute("box", -17, 178, 1))
	require.NoError(t, err)
	seen(t, events, "offers", `"added"`, `"box"`)
	spec := instance.Spec{Host: "10.0.0.1", Port: 80}
	_, err = a.Services().Register(t.Context(), instance.Registration{Key: instance.Key{Namespace: "default", Service: "pay", ID: "pay-1"}, Spec: spec})
	require.NoError(t, err)
	seen(t, events, "services", `"pay-1"`, `"UP"`)
	session, err := a.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(context.WithoutCancel(t.Context())) }()
	lock, err := session.Lock(t.Context(), "nightly")
	require.NoError(t, err)
	at := seen(t, events, "keys", `"put"`, "nightly")
	require.NotEmpty(t, at.ID)
	require.NoError(t, lock.Unlock(t.Context()))
	seen(t, events, "keys", `"delete"`, "nightly")

	again := eventsOf(t, a, client.EventQuery{Topics: []string{"keys", "offers"}, After: at.ID})
	seen(t, again, "open")
	next := <-again
	for len(next.Data) == 0 || next.Topic != "keys" {
		require.NotContains(t, string(next.Data), `"reset"`)
		next = <-again
	}
	require.Contains(t, string(next.Data), "nightly", "the first change after the position is that of the lock")
	require.Contains(t, string(next.Data), `"delete"`)
}

func put(t *testing.T, p *peerUnderTest, key string) error {
	_, _, err := ops.Of(p.Coordination()).Do(t.Context(), ops.Command{Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: key}}}}})
	return err
}

// TestSlowViewerIsTold: a viewer that takes nothing while more happens than the group remembers gets reset, and the
// revision to read the keys at.
func TestSlowViewerIsTold(t *testing.T) {
	t.Parallel() // waits for its disk
	c := config.Default()
	c.Coordination.Limits.HistoryEvents = 100
	a := startWith(t, c, t.TempDir())
	until(t, "a group", func() bool { return put(t, a, "first") == nil })
	events := eventsOf(t, a, client.EventQuery{Topics: []string{"keys"}, Prefix: "many"})
	seen(t, events, "keys", `"reset"`)
	long := strings.Repeat("x", 1000) // of 1500 changes, more than the buffers of a connection hold
	for n := range 1500 {
		require.NoError(t, put(t, a, fmt.Sprintf("many/%s/%d", long, n)))
	}
	e := seen(t, events, "keys", `"reset"`)
	var data struct{ Revision int64 }
	require.NoError(t, json.Unmarshal(e.Data, &data))
	require.Positive(t, data.Revision)
	require.NoError(t, put(t, a, "many/last"))
	seen(t, events, "keys", `"put"`, "many/last")
}

// TestLogLevelOverHTTP changes the level of a running peer.
func TestLogLevelOverHTTP(t *testing.T) {
	a := start(t, t.TempDir())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, a.http+"/v1/log-level", strings.NewReader(`{"level":"error"}`))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	var got map[string]string
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&got))
	require.Equal(t, map[string]string{"level": "error", "previous": "warn"}, got)
}
