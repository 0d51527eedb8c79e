package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// patience bounds every wait for the network. A passing test does not depend on it.
const patience = time.Minute

// peerUnderTest is a whole peer on loopback.
type peerUnderTest struct {
	*operator.Client
	config config.Config
	parts  *parts
	addr   string // multiaddr with /p2p/
	http   string
	grpc   string
	stop   func()
}

func start(t *testing.T, dir string, bootstrap ...string) *peerUnderTest {
	t.Helper()
	return startFounder(t, dir, nil, bootstrap...)
}

// startFounder starts a peer of the network with these founders. Nil means itself alone.
func startFounder(t *testing.T, dir string, founders []string, bootstrap ...string) *peerUnderTest {
	t.Helper()
	c := config.Default()
	c.Coordination.Founders = founders
	return startWith(t, c, dir, bootstrap...)
}

// startIn starts a peer of a named network.
func startIn(t *testing.T, network, dir string, bootstrap ...string) *peerUnderTest {
	t.Helper()
	c := config.Default()
	c.Network.Name = network
	return startWith(t, c, dir, bootstrap...)
}

func startWith(t *testing.T, c config.Config, dir string, bootstrap ...string) *peerUnderTest {
	t.Helper()
	c.Data, c.HTTP, c.GRPC, c.DNS = dir, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.Listen, c.Bootstrap = []string{"/ip4/127.0.0.1/tcp/0"}, bootstrap
	if c.IsLeaf() {
		c.Listen = nil
	}
	c.Log.Level = "warn"
	c.Discovery.Health.CheckInterval = time.Second
	c.Discovery.Health.ConfirmAfter = time.Second
	c.Discovery.Health.CheckTimeout = patience // a stopped peer refuses immediately
	require.NoError(t, c.Validate())

	l, err := listen(c)
	require.NoError(t, err)
	log, journal := newJournal(c.Log, t.Output())
	p, err := build(t.Context(), c, l, log, journal, "test")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.serve(ctx, l, new(manager)) }()
	cl, err := operator.New(l.grpc.Addr().String())
	require.NoError(t, err)
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, p.close())
		require.NoError(t, cl.Close())
	}
	t.Cleanup(stop)
	return &peerUnderTest{Client: cl, config: c, parts: p, addr: strings.Join(p.node.Addrs()[:min(1, len(p.node.Addrs()))], ""), http: "http://" + l.http.Addr().String(), grpc: l.grpc.Addr().String(), stop: stop}
}

// until repeats f until it returns true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			require.FailNow(t, "not within "+patience.String(), what)
		case <-tick.C:
		}
	}
}

func compute(id string, lat, lon, price float64) records.Offer {
	return records.Offer{
		ID: id, Metadata: records.Metadata{Type: "compute", Subtype: "gpu", Name: id},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 16000, GPUs: []records.GPU{{Model: "A"}}}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: "FJ"},
		Pricing:      &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
		Health:       &records.Health{Status: "HEALTHY"},
	}
}

func near(lat, lon, km float64) query.Query {
	return query.Query{Type: "compute", Near: &query.Near{Latitude: lat, Longitude: lon, RadiusKM: &km}}
}

func ids(a query.AnswerView) (out []string) {
	for _, r := range a.Results {
		out = append(out, r.Record.ID)
	}
	return out
}

// cluster has three peers: a, the provider b, and the consumer c.
type cluster struct {
	a, b, c *peerUnderTest
	query   query.Query // finds b's service from the other side of the antimeridian
	receipt records.Receipt
	watch   *client.Watcher // of query, at c
}

// TestNetwork walks the life of a service through three whole peers.
func TestNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("whole peers on loopback")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience) // no call may hang
	defer cancel()
	a := start(t, t.TempDir())
	w := &cluster{a: a, b: start(t, t.TempDir(), a.addr), c: start(t, t.TempDir(), a.addr), query: near(-17.7, -179.9, 100)}
	for _, p := range []*peerUnderTest{w.a, w.b, w.c} {
		until(t, "everybody knows everybody", func() bool {
			s, err := p.Status(ctx)
			return err == nil && s.RoutingTable == 2 && s.Ready
		})
	}
	w.found(t, ctx)
	w.watched(t, ctx)
	w.restarted(t, ctx)
	w.withdrawn(t, ctx)
	w.cutOff(t, ctx)
}

// cutOff expects an incomplete answer from a peer that has lost all others.
func (w *cluster) cutOff(t *testing.T, ctx context.Context) {
	w.a.stop()
	w.b.stop()
	q := w.query
	q.Health = query.HealthAny
	until(t, "the answer says that contact is lost", func() bool {
		q.Limit = q.Limit%100 + 1 // not in the cache
		a, err := w.c.Offers().Query(ctx, q)
		return err == nil && !a.Complete && a.Reason != ""
	})
}

// found expects another peer to find a registered service, in the network, in its cache and by key.
func (w *cluster) found(t *testing.T, ctx context.Context) {
	var err error
	w.receipt, err = w.b.Offers().Register(ctx, compute("gpu-1", -17.7, 179.9, 1))
	require.NoError(t, err)
	require.Equal(t, records.Stored{On: 3, Of: 3}, w.receipt.Stored)
	_, err = w.b.Offers().Register(ctx, compute("gpu-1", -17.7, 179.9, 1))
	require.ErrorIs(t, err, discovery.ErrServiceExists)

	answer, err := w.c.Offers().Query(ctx, w.query)
	require.NoError(t, err)
	require.Equal(t, []string{"gpu-1"}, ids(answer))
	require.True(t, answer.Complete, answer.Reason)
	require.InDelta(t, 21.2, *answer.Results[0].DistanceKM, 0.1)
	until(t, "the answer comes from the cache", func() bool {
		again, err := w.c.Offers().Query(ctx, w.query)
		return err == nil && again.Source == query.SourceCache && again.Total == 1
	})
	until(t, "the key resolves", func() bool {
		rec, err := w.a.Offers().Resolve(ctx, w.receipt.Key)
		return err == nil && rec.Sequence == w.receipt.Sequence
	})
}

// watched expects a watch to see an update, and the update to replace the cached answer.
func (w *cluster) watched(t *testing.T, ctx context.Context) {
	var err error
	w.watch, err = w.c.Offers().Watch(ctx, w.query, "")
	require.NoError(t, err)
	require.Equal(t, query.Added, next(t, w.watch).Kind)
	require.Equal(t, query.Progress, next(t, w.watch).Kind)
	updated, err := w.b.Offers().Update(ctx, compute("gpu-1", -17.7, 179.9, 0.5))
	require.NoError(t, err)
	require.Greater(t, updated.Sequence, w.receipt.Sequence)
	w.receipt = updated
	ev := change(t, w.watch)
	require.Equal(t, query.Updated, ev.Kind)
	require.Equal(t, 0.5, *ev.Record.Pricing.BasePrice)
	until(t, "the cached answer is renewed", func() bool {
		again, err := w.c.Offers().Query(ctx, w.query)
		return err == nil && len(again.Results) == 1 && *again.Results[0].Record.Pricing.BasePrice == 0.5
	})
}

// restarted expects a stopped provider to be unusable, and to offer its service again after a
// restart with a higher sequence.
func (w *cluster) restarted(t *testing.T, ctx context.Context) {
	w.b.stop()
	until(t, "the provider is found unreachable", func() bool {
		usable, err := w.c.Offers().Query(ctx, w.query)
		return err == nil && len(usable.Results) == 0
	})
	require.Equal(t, query.Removed, change(t, w.watch).Kind)
	q := w.query
	q.Health = query.HealthAny
	all, err := w.c.Offers().Query(ctx, q)
	require.NoError(t, err)
	require.Equal(t, []string{"gpu-1"}, ids(all))
	require.Equal(t, records.Unreachable, all.Results[0].Measured.State)
	require.Equal(t, "HEALTHY", all.Results[0].Record.Health.Status)

	w.b = start(t, w.b.config.Data, w.a.addr)
	own, err := w.b.Offers().List(ctx)
	require.NoError(t, err)
	require.Len(t, own, 1)
	require.GreaterOrEqual(t, own[0].Sequence, w.receipt.Sequence)
	until(t, "the provider is usable again", func() bool {
		usable, err := w.c.Offers().Query(ctx, w.query)
		return err == nil && len(usable.Results) == 1
	})
	skipTo(t, w.watch, query.Added)
}

// withdrawn expects a withdrawn service to disappear everywhere.
func (w *cluster) withdrawn(t *testing.T, ctx context.Context) {
	_, err := w.b.Offers().Withdraw(ctx, "gpu-1")
	require.NoError(t, err)
	q := w.query
	q.Health = query.HealthAny
	for _, p := range []*peerUnderTest{w.a, w.b, w.c} {
		until(t, "the withdrawn service is gone", func() bool {
			gone, err := p.Offers().Query(ctx, q)
			return err == nil && len(gone.Results) == 0
		})
		_, err = p.Offers().Resolve(ctx, w.receipt.Key)
		require.ErrorIs(t, err, fault.NotFound)
	}
	skipTo(t, w.watch, query.Withdrawn)
}

func next(t *testing.T, w *client.Watcher) client.Event {
	t.Helper()
	ev, err := w.Next()
	require.NoError(t, err)
	return ev
}

// change skips progress events.
func change(t *testing.T, w *client.Watcher) client.Event {
	t.Helper()
	for {
		if ev := next(t, w); ev.Kind != query.Progress {
			return ev
		}
	}
}

// skipTo reads events until an event of a kind.
func skipTo(t *testing.T, w *client.Watcher, kind query.EventKind) client.Event {
	t.Helper()
	for {
		if ev := next(t, w); ev.Kind == kind {
			return ev
		}
	}
}

// TestGroupKept expects the DHT to store the announcement of the group, no invalid one, and no record.
func TestGroupKept(t *testing.T) {
	if testing.Short() {
		t.Skip("whole peers on loopback")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*patience)
	defer cancel()
	dirs := []string{t.TempDir(), t.TempDir()}
	var founders []string
	for _, dir := range dirs {
		id, err := Identity(dir)
		require.NoError(t, err)
		founders = append(founders, id)
	}
	a := startFounder(t, dirs[0], founders)
	b := startFounder(t, dirs[1], founders, a.addr)
	network, err := foundersOf(a.config.NetworkName(), a.config.Coordination)
	require.NoError(t, err)
	key := announce.Key(network)
	for _, p := range []*peerUnderTest{a, b} {
		until(t, "the group is in the DHT", func() bool {
			_, err := p.parts.node.Routing().GetValue(ctx, key)
			return err == nil
		})
		require.ErrorIs(t, p.parts.node.Routing().PutValue(ctx, key, []byte("noise")), fault.Invalid)
	}
	receipt, err := a.Offers().Register(ctx, compute("one", 52.52, 13.4, 1))
	require.NoError(t, err)
	own, err := a.parts.discovery.Own("one")
	require.NoError(t, err)
	require.Error(t, b.parts.node.Routing().PutValue(ctx, receipt.Key, own.Envelope()))
}

// TestServicesOfOneProvider: the setting admits as many services as the keepers of the network, and no more.
func TestServicesOfOneProvider(t *testing.T) {
	c := config.Default()
	c.Discovery.Limits.ServicesPerProvider = records.MaxPerProvider
	require.NoError(t, c.Validate())
	c.Discovery.Limits.ServicesPerProvider++
	require.ErrorContains(t, c.Validate(), "the keepers of the network accept no more")
}

// TestHTTP calls one peer like curl.
func TestHTTP(t *testing.T) {
	p := start(t, t.TempDir())
	post := func(path, body string) (int, map[string]any) {
		resp, err := http.Post(p.http+path, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		var out map[string]any
		require.NoError(t, json.Unmarshal(text, &out), "%s", text)
		return resp.StatusCode, out
	}
	code, receipt := post("/v1/discovery/records", `{"id":"s","metadata":{"type":"storage"},"capabilities":{"storage":{"total_space":2000000000,"available_space":1000000000}}}`)
	require.Equal(t, 201, code, "%v", receipt)
	require.Equal(t, map[string]any{"on": 1.0, "of": 1.0, "this_peer_only": true}, receipt["stored"])

	code, answer := post("/v1/discovery/query", `{"type":"storage","min_storage_gb":1}`)
	require.Equal(t, 200, code, "%v", answer)
	require.Len(t, answer["results"], 1)

	for body, field := range map[string]string{
		`nothing`: "body", `{"type":"storage","foo":1}`: "foo", `{"type":"storage","sort":"beauty"}`: "sort",
		`{"type":"storage","near":{"latitude":91,"longitude":0}}`:                "near.latitude",
		`{"type":"storage","near":{"latitude":1,"longitude":0,"radius_km":0}}`:   "near.radius_km",
		`{"type":"storage","near":{"latitude":NaN,"longitude":0}}`:               "",
		fmt.Sprintf(`{"type":%q}`, strings.Repeat("x", 100<<10)):                 "body",
		`{"type":"storage","max_price":-1}`:                                      "max_price",
		`{"type":"storage","attributes":{"a":1}}`:                                "attributes",
		`{"type":"storage","near":{"latitude":1,"longitude":0,"radius_km":"x"}}`: "near.radius_km",
	} {
		code, answer := post("/v1/discovery/query", body)
		require.True(t, code >= 400 && code < 500, "%d for %.80s", code, body)
		require.NotEmpty(t, answer["error"])
		require.Contains(t, fmt.Sprint(answer["field"]), field, "%v", answer)
	}
	code, batch := post("/v1/discovery/records:batch", `{"records":[{"id":"a/b","metadata":{"type":"x"}},{"id":"ok","metadata":{"type":"x"}}]}`)
	require.Equal(t, 200, code)
	results := batch["results"].([]any)
	require.Equal(t, "id", results[0].(map[string]any)["error"].(map[string]any)["field"])
	require.Equal(t, "ok", results[1].(map[string]any)["id"])

	resp, err := http.Get(p.http + "/v1/metrics")
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "blackhole_discovery_services_registered_total 2")
}

func TestIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	id, err := Identity(dir)
	require.NoError(t, err)
	again, err := Identity(dir)
	require.NoError(t, err)
	require.Equal(t, id, again)
	info, err := os.Stat(filepath.Join(dir, identityFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.Chmod(dir, 0o707))
	_, err = Identity(dir)
	require.ErrorIs(t, err, fault.Invalid)
	require.ErrorContains(t, err, "has mode 0707: every user may write there (chmod o-w)")
}

func TestRunReportsBadSettings(t *testing.T) {
	c := config.Default()
	c.Data, c.HTTP, c.GRPC, c.DNS = t.TempDir(), config.Off, config.Off, config.Off
	c.Bootstrap = []string{"/ip4/127.0.0.1/udp/1/quic-v1"} // without an id only TCP tells who is there
	err := Run(t.Context(), c, Options{Stderr: t.Output(), Version: "test"})
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "bootstrap", fault.FieldOf(err))
}

// The log says that a peer stops, why, and when it has stopped: its last line.
func TestRunFromStartToEnd(t *testing.T) {
	c := config.Default()
	c.Data, c.HTTP, c.GRPC, c.DNS, c.Listen = t.TempDir(), config.Off, "127.0.0.1:0", config.Off, []string{"/ip4/127.0.0.1/tcp/0"}
	ctx, stop := context.WithCancelCause(t.Context())
	var log bytes.Buffer
	var up Up
	err := Run(ctx, c, Options{Stderr: &log, Version: "test", Up: func(u Up) { up = u; stop(errors.New("enough")) }})
	require.NoError(t, err)
	require.Equal(t, "dev", up.Network)
	require.NotEqual(t, config.Off, up.GRPC)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	require.Contains(t, lines[len(lines)-1], `"peer is stopped"`)
	require.Contains(t, log.String(), `msg="peer is stopping" cause=enough`)
}

// An address in use is named with its setting, for each kind of address.
func TestRunReportsTakenAddresses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	address := taken.Addr().String()
	for field, set := range map[string]func(*config.Config){
		"http": func(c *config.Config) { c.HTTP = address },
		"grpc": func(c *config.Config) { c.GRPC = address },
		"dns":  func(c *config.Config) { c.DNS = address },
		"listen": func(c *config.Config) {
			c.Listen = []string{"/ip4/127.0.0.1/tcp/" + strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)}
		},
	} {
		c := config.Default()
		c.Data, c.HTTP, c.GRPC, c.DNS, c.Listen = t.TempDir(), config.Off, config.Off, config.Off, []string{"/ip4/127.0.0.1/tcp/0"}
		set(&c)
		err := Run(t.Context(), c, Options{Stderr: t.Output(), Version: "test"})
		require.Equal(t, field, fault.FieldOf(err), "%v", err)
		require.ErrorContains(t, err, "address already in use", field)
	}
}

// TestNewIdentityIsSaid: a peer whose data directory was lost starts as another peer, and says so until the next start.
func TestNewIdentityIsSaid(t *testing.T) {
	dir := t.TempDir()
	for _, fresh := range []bool{true, false} {
		p := start(t, dir)
		s, err := p.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, fresh, s.IdentityNew)
		p.stop()
	}
}
