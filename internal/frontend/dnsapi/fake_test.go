package dnsapi

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// fakeCatalog is a Catalog of a list. It returns the same View until the list changes.
type fakeCatalog struct {
	mu      sync.Mutex // guards all
	list    []*instance.Instance
	views   map[instance.Name]*instance.View // of the UP instances
	index   uint64
	contact instance.Contact
	expires time.Time
	err     error
	asked   int // for Expires
}

func (c *fakeCatalog) set(list ...*instance.Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.views = list, make(map[instance.Name]*instance.View)
	c.index++
}

func (c *fakeCatalog) Discover(_ context.Context, q instance.Query) (instance.Result, error) {
	if err := q.Name.Validate(); err != nil {
		return instance.Result{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return instance.Result{}, c.err
	}
	if v, ok := c.views[q.Name]; ok && !q.AnyStatus {
		return instance.Result{View: v, Contact: c.contact}, nil
	}
	var found []*instance.Instance
	for _, i := range c.list {
		if i.Name() == q.Name && (q.AnyStatus || i.Status == instance.StatusUp) {
			found = append(found, i)
		}
	}
	v := &instance.View{Index: c.index, Instances: found}
	if !q.AnyStatus {
		c.views[q.Name] = v
	}
	return instance.Result{View: v, Contact: c.contact}, nil
}

func (c *fakeCatalog) Spellings(n instance.Name) (others []instance.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.list {
		if i.Name() != n && i.Namespace == n.Namespace && strings.EqualFold(i.Service, n.Service) && !slices.Contains(others, i.Name()) {
			others = append(others, i.Name())
		}
	}
	return others
}

func (c *fakeCatalog) Await(ctx context.Context, q instance.Query, _ uint64) (instance.Result, error) {
	return c.Discover(ctx, q)
}

func (c *fakeCatalog) List(_ context.Context, q instances.ListQuery) (instance.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*instance.Instance
	for _, i := range c.list {
		if i.Namespace == q.Namespace {
			found = append(found, i)
		}
	}
	return instance.Result{View: &instance.View{Index: c.index, Instances: found}}, c.err
}

func (c *fakeCatalog) Services(_ context.Context, namespace string) (instance.Services, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make(map[string]instance.Summary)
	for _, i := range c.list {
		if i.Namespace == namespace {
			names[i.Service] = instance.Summary{Name: i.Service}
		}
	}
	return instance.Services{Services: slices.Collect(maps.Values(names))}, c.err
}

func (c *fakeCatalog) Watch(context.Context, instance.Query, uint64, func(instance.Batch) error) error {
	return nil
}

func (c *fakeCatalog) LastBeat(instance.Key) (time.Time, bool) { return time.Time{}, false }

func (c *fakeCatalog) Expires([]*instance.Instance) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.expires
}

const self = "k51self"

// at makes an instance that is UP; with changes it.
func at(service, id, host string, port int, with ...func(*instance.Instance)) *instance.Instance {
	i := &instance.Instance{
		Key:    instance.Key{Namespace: instance.DefaultNamespace, Service: service, ID: id},
		Spec:   instance.Spec{Host: host, Port: port, Weight: 1},
		Status: instance.StatusUp, Peer: self,
	}
	for _, w := range with {
		w(i)
	}
	return i
}

func tagged(tags ...string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Spec.Tags = tags }
}

func inZone(zone string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Spec.Zone = zone }
}

func inNamespace(namespace string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Namespace = namespace }
}

func withStatus(s instance.Status) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Status = s }
}

func weighing(w int) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Spec.Weight = w }
}

func ofPeer(p string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.Peer = p }
}

// fixture is a server without sockets, with a clock and a catalog that tests move.
type fixture struct {
	t       testing.TB
	server  *Server
	r       *responder
	catalog *fakeCatalog
	now     time.Time
}

func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

func newFixture(t testing.TB, change ...func(*Config)) *fixture {
	b := &fixture{t: t, catalog: &fakeCatalog{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	b.catalog.set()
	seed := uint64(1)
	c := Config{
		Catalog: b.catalog, Self: self, SelfName: "n1", TTL: 30 * time.Second, Now: func() time.Time { return b.now },
		Random: func() uint64 { seed++; return seed },
		Logger: slog.New(slog.NewTextHandler(complaints{t}, nil)),
		Node: func(name string) (Node, bool) {
			n, ok := map[string]Node{
				"n1": {Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, Zone: "eu-1", Text: []string{"os=linux"}},
				"n2": {Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
			}[name]
			return n, ok
		},
	}
	for _, f := range change {
		f(&c)
	}
	var err error
	b.server, err = New(c)
	require.NoError(t, err)
	t.Cleanup(b.server.Close)
	b.r = newResponder(b.server)
	return b
}

// complaints fails a test for any log line, such as of a panic.
type complaints struct{ t testing.TB }

func (c complaints) Write(p []byte) (int, error) {
	c.t.Errorf("logged: %s", p)
	return len(p), nil
}

// question makes a packet with a question, and with EDNS of the given size unless zero.
func question(name string, qtype uint16, edns uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	if edns > 0 {
		m.SetEdns0(edns, false)
	}
	return m
}

// udp sends a message as if over UDP from this host.
func (b *fixture) udp(m *dns.Msg) *dns.Msg { return b.exchange(m, loopback(), true) }

func (b *fixture) tcp(m *dns.Msg) *dns.Msg { return b.exchange(m, loopback(), false) }

// exchange returns the answer to a message, or nil, after checks for all answers.
func (b *fixture) exchange(m *dns.Msg, client netip.Addr, udp bool) *dns.Msg {
	b.t.Helper()
	raw, err := m.Pack()
	require.NoError(b.t, err)
	out := b.r.respond(nil, raw, client, udp)
	if len(out) == 0 {
		return nil
	}
	limit := maxMessage
	if opt := m.IsEdns0(); udp && opt != nil {
		limit = min(max(int(opt.UDPSize()), minUDP), maxUDP)
	} else if udp {
		limit = minUDP
	}
	require.LessOrEqual(b.t, len(out), limit)
	answer := new(dns.Msg)
	require.NoError(b.t, answer.Unpack(out))
	require.Equal(b.t, m.Id, answer.Id)
	require.True(b.t, answer.Response)
	require.Equal(b.t, m.RecursionDesired, answer.RecursionDesired)
	require.False(b.t, answer.RecursionAvailable)
	if len(answer.Question) > 0 {
		require.Equal(b.t, m.Question, answer.Question)
	}
	require.Equal(b.t, m.IsEdns0() != nil && len(m.Question) == 1 && m.Opcode == dns.OpcodeQuery, answer.IsEdns0() != nil)
	if len(answer.Answer) == 0 {
		require.LessOrEqual(b.t, len(withoutOPT(answer.Extra)), 0, "nothing but additional records")
	}
	return answer
}

func withoutOPT(list []dns.RR) []dns.RR {
	return slices.DeleteFunc(slices.Clone(list), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
}

// lines returns records as sorted text with single spaces.
func lines(list []dns.RR) []string {
	out := []string{}
	for _, rr := range withoutOPT(list) {
		out = append(out, strings.Join(strings.Fields(rr.String()), " "))
	}
	slices.Sort(out)
	return out
}
