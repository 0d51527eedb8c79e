package service

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// cluster is a source in memory.
type cluster map[string]instance.Registration

func (c cluster) list(context.Context) (map[string]instance.Registration, error) {
	return maps.Clone(c), nil
}

func (c cluster) add(id string, port int, status instance.Status) {
	c[id] = instance.Registration{Key: instance.Key{Service: "web", ID: id}, Spec: instance.Spec{Host: "10.2.0.1", Port: port}, Status: status}
}

// local is a peer: it keeps the ports and states of its instances.
type local struct {
	ports   map[string]int
	states  map[string]instance.Status
	refused string // the id of an instance that is refused
	calls   int
}

type registeredHere struct {
	peer *local
	id   string
	done chan struct{}
}

func (l *local) register(_ context.Context, r instance.Registration) (handle, error) {
	l.calls++
	if r.ID == l.refused {
		return nil, fault.Invalidf("id", r.ID, "is not a name")
	}
	l.ports[r.ID], l.states[r.ID] = r.Spec.Port, instance.StatusUp
	return &registeredHere{peer: l, id: r.ID, done: make(chan struct{})}, nil
}

func (h *registeredHere) Update(_ context.Context, s instance.Spec) error {
	h.peer.calls++
	h.peer.ports[h.id] = s.Port
	return nil
}

func (h *registeredHere) SetStatus(_ context.Context, s instance.Status) error {
	h.peer.calls++
	h.peer.states[h.id] = s
	return nil
}

func (h *registeredHere) Close(context.Context) error {
	h.peer.calls++
	delete(h.peer.ports, h.id)
	delete(h.peer.states, h.id)
	return nil
}

func (h *registeredHere) Done() <-chan struct{} { return h.done }

// play returns a follower of a source, with what it says.
func play(from source) (*follower, *synchronizer, *local, *bytes.Buffer) {
	var out bytes.Buffer
	l := &local{ports: map[string]int{}, states: map[string]instance.Status{}}
	s := newSynchronizer(from, l.register)
	return &follower{con: &term.Console{Stderr: &out}, every: 10 * time.Second, round: s.round, said: report{found: -1}}, s, l, &out
}

// once plays a round, and says what it did.
func (f *follower) once(t *testing.T) error {
	t.Helper()
	did, err := f.round(t.Context())
	f.say(did, err)
	return err
}

// TestSyncRound registers, changes and deregisters what differs, and does nothing where nothing does.
func TestSyncRound(t *testing.T) {
	from := cluster{}
	from.add("a", 1, instance.StatusUp)
	from.add("b", 2, instance.StatusDown)
	f, _, peer, out := play(from)
	require.NoError(t, f.once(t))
	require.Equal(t, map[string]int{"a": 1, "b": 2}, peer.ports)
	require.Equal(t, map[string]instance.Status{"a": instance.StatusUp, "b": instance.StatusDown}, peer.states)
	require.Contains(t, out.String(), "2 instances at the source, 2 changed here")

	calls := peer.calls
	require.NoError(t, f.once(t))
	require.Equal(t, calls, peer.calls, "nothing differs")

	from.add("a", 3, instance.StatusDown)
	from.add("c", 4, instance.StatusUp)
	delete(from, "b")
	require.NoError(t, f.once(t))
	require.Equal(t, map[string]int{"a": 3, "c": 4}, peer.ports)
	require.Equal(t, instance.StatusDown, peer.states["a"])
}

// TestSyncEmptySource removes nothing: a wrong address, or a cluster that was just restored, looks the same.
func TestSyncEmptySource(t *testing.T) {
	from := cluster{}
	from.add("a", 1, instance.StatusUp)
	f, _, peer, out := play(from)
	require.NoError(t, f.once(t))
	clear(from)
	require.NoError(t, f.once(t))
	require.Contains(t, peer.ports, "a")
	require.Contains(t, out.String(), "the source is empty, so nothing is removed")
}

// TestSyncOneRefused registers the others, and names the one.
func TestSyncOneRefused(t *testing.T) {
	from := cluster{}
	for n, id := range []string{"a", "b", "c"} {
		from.add(id, n+1, instance.StatusUp)
	}
	f, _, peer, _ := play(from)
	peer.refused = "b"
	err := f.once(t)
	require.ErrorContains(t, err, "refuses 1 of them, the first is b: is not a name")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.Equal(t, []string{"a", "c"}, slices.Sorted(maps.Keys(peer.ports)))
}

// TestSyncRegistersAgain what the peer gave up.
func TestSyncRegistersAgain(t *testing.T) {
	from := cluster{}
	from.add("a", 1, instance.StatusUp)
	f, s, peer, _ := play(from)
	require.NoError(t, f.once(t))
	clear(peer.ports)
	close(s.have["a"].handle.(*registeredHere).done)
	require.NoError(t, f.once(t))
	require.Contains(t, peer.ports, "a")
}

// failing is a source that fails until it is told otherwise.
type failing struct {
	cluster
	broken bool
}

func (f *failing) list(ctx context.Context) (map[string]instance.Registration, error) {
	if f.broken {
		return nil, fault.New("", fault.Unavailable, "is down")
	}
	return f.cluster.list(ctx)
}

// TestSyncRounds go on after a failure, which is told and removes nothing.
func TestSyncRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &failing{cluster: cluster{}}
		from.add("a", 1, instance.StatusUp)
		f, _, peer, out := play(from)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.run(ctx) }()
		synctest.Wait()
		require.Contains(t, peer.ports, "a")
		from.broken = true
		time.Sleep(f.every)
		synctest.Wait()
		require.Contains(t, out.String(), "the round failed, and is repeated in 10s: --from: is down")
		require.Contains(t, peer.ports, "a")
		from.broken = false
		from.add("b", 2, instance.StatusUp)
		time.Sleep(f.every)
		synctest.Wait()
		require.Contains(t, peer.ports, "b")
		cancel()
		require.Equal(t, fault.Canceled, fault.KindOf(<-ended))
	})
}

// TestKubernetes reads what an API server answers, page by page.
func TestKubernetes(t *testing.T) {
	text, err := json.Marshal(map[string]any{"kind": "EndpointSliceList", "metadata": map[string]any{"continue": "more"}, "items": []any{map[string]any{
		"metadata": map[string]any{"name": "web-abc", "namespace": "shop", "labels": map[string]string{"kubernetes.io/service-name": "web"}},
		"endpoints": []any{
			map[string]any{"addresses": []string{"10.2.0.1"}, "conditions": map[string]bool{"ready": true}, "targetRef": map[string]string{"kind": "Pod", "name": "web-1"}},
			map[string]any{"addresses": []string{"10.2.0.2"}, "conditions": map[string]bool{"ready": false}},
			map[string]any{"addresses": []string{"10.2.0.3"}, "conditions": map[string]bool{"ready": false, "terminating": true}},
		},
		"ports": []any{map[string]any{"name": "http", "port": 8080, "protocol": "TCP"}},
	}}})
	require.NoError(t, err)
	pages := map[string]string{"": string(text), "more": `{"metadata":{},"items":[{"metadata":{"name":"headless"},"endpoints":[{"addresses":["10.2.0.9"]}],"ports":[{"port":1}]}]}`}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", r.URL.Path)
		require.Equal(t, "Bearer secret", r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, pages[r.URL.Query().Get("continue")])
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	k := &kubernetes{namespace: "shop"}
	k.connect(at, nil, "secret")
	t.Cleanup(k.close)
	all, err := k.list(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	one := all["shop-web-web-1-8080"]
	require.Equal(t, instance.StatusUp, one.Status)
	require.Equal(t, instance.Spec{
		Host: "10.2.0.1", Port: 8080, Tags: []string{"http"},
		Metadata: map[string]string{"k8s-namespace": "shop", "external-source": "kubernetes"},
	}, one.Spec)
	require.Equal(t, instance.StatusDown, all["shop-web-10-2-0-2-8080"].Status)

	pages[""] = "<html>"
	_, err = k.list(t.Context())
	require.ErrorContains(t, err, "is not answered as expected", "a failure is not an empty cluster")
}

func TestSyncAddresses(t *testing.T) {
	con := &term.Console{}
	for _, text := range []string{"", "h:1", "ftp://h", "http://u:p@h"} {
		err := new(kubernetes).open(con, "--from", text, "", "")
		require.ErrorContains(t, err, "must be the URL", text)
		require.Equal(t, "--from", fault.FieldOf(err))
	}
	require.NoError(t, new(kubernetes).open(con, "--to", "https://h:6443/base", "", ""))
}
