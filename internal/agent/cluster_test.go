package agent

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// cluster is a fake directory for all peers, and the network between them.
type cluster struct {
	t *testing.T

	mu       sync.Mutex // guards the fields below
	desks    map[string]*clusterPeer
	revision uint64
	entries  map[instance.Key]*instance.Instance
	gone     map[instance.Key]string // owner of the last removal
	leads    bool
	commits  time.Duration // time from Publish to the commit
	follows  time.Duration // time from the commit to a catalog
	refuses  func(*instance.Instance) error
	away     map[string]error // unreachable peers
	hangs    map[string]bool  // peers whose calls never return
}

// clusterPeer is one peer with its part of the directory.
type clusterPeer struct {
	*Service
	group *cluster
	self  string
	known *catalog.Catalog
	calls int // calls of other peers, guarded by group.mu
	disk  vfs.FS
	stop  func()

	mu      sync.Mutex // guards the fields below; lock it before group.mu
	pending map[instance.Key]instances.Change
	fates   map[instance.Key]error
	done    map[instance.Key]uint64
	settled chan struct{} // closed at each decision
	work    chan struct{}
	feed    chan fed
	log     bytes.Buffer // read it after synctest.Wait
}

// fed is one revision on its way to a catalog.
type fed struct {
	at       time.Time
	revision uint64
	changes  []instances.Change
}

func newCluster(t *testing.T, peers ...string) *cluster {
	g := &cluster{
		t: t, desks: map[string]*clusterPeer{}, revision: 1, entries: map[instance.Key]*instance.Instance{}, gone: map[instance.Key]string{}, leads: true,
		commits: 5 * time.Millisecond, follows: 5 * time.Millisecond, away: map[string]error{}, hangs: map[string]bool{},
	}
	for _, self := range peers {
		g.desks[self] = &clusterPeer{group: g, self: self, disk: vfs.NewMem(), feed: make(chan fed, 100_000)}
	}
	for _, self := range peers {
		g.desks[self].start()
		t.Cleanup(func() { g.desks[self].stop() })
	}
	synctest.Wait()
	return g
}

// start starts a process of the peer with an empty memory.
func (d *clusterPeer) start() {
	t, g := d.group.t, d.group
	var err error
	d.known = catalog.New(catalog.Config{Now: time.Now})
	d.pending, d.fates, d.done = map[instance.Key]instances.Change{}, map[instance.Key]error{}, map[instance.Key]uint64{}
	d.settled, d.work = make(chan struct{}), make(chan struct{}, 1)
	d.Service, err = newService(Config{
		Registry: registry.Config{Dir: "instances", FS: d.disk, Self: d.self}, Loopback: true, Now: time.Now,
		Logger: slog.New(slog.NewTextHandler(&d.log, nil)),
		Peers:  d, Checks: health.Config{Random: rand.New(rand.NewPCG(1, 2)).Uint64},
	}, d, d.known)
	require.NoError(t, err)
	g.mu.Lock()
	require.NoError(t, d.known.Reset(g.revision, slices.Collect(maps.Values(g.entries))))
	g.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { d.commit(ctx) })
	work.Go(func() { d.follow(ctx) })
	d.stop = func() {
		require.NoError(t, d.Close())
		cancel()
		work.Wait()
	}
}

func (d *clusterPeer) Publish(changes []instances.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range changes {
		if c.Instance != nil && d.pending[c.Key].Reason == instances.ReasonRegistered {
			c.Reason = instances.ReasonRegistered
		}
		d.pending[c.Key] = c
		delete(d.fates, c.Key)
	}
	d.rouse()
}

func (d *clusterPeer) rouse() {
	select {
	case d.work <- struct{}{}:
	default:
	}
}

// commit commits all pending changes in one revision while a leader exists.
func (d *clusterPeer) commit(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.work:
		}
		d.group.mu.Lock()
		wait, leads := d.group.commits, d.group.leads
		d.group.mu.Unlock()
		if !leads {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		d.mu.Lock()
		if lost := d.group.take(d); len(lost) > 0 {
			go d.Lost(lost)
		}
		close(d.settled)
		d.settled = make(chan struct{})
		d.mu.Unlock()
	}
}

// take commits the pending changes of a locked peer and returns its foreign
// keys.
func (g *cluster) take(d *clusterPeer) (lost []instance.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.revision++
	var changes []instances.Change
	for _, k := range slices.SortedFunc(maps.Keys(d.pending), func(a, b instance.Key) int { return cmp.Compare(a.String(), b.String()) }) {
		p, has := d.pending[k], g.entries[k]
		d.done[k] = g.revision
		switch {
		case p.Instance == nil && has != nil && has.Peer == d.self:
			delete(g.entries, k)
			g.gone[k] = d.self
			changes = append(changes, instances.Change{Key: k})
		case p.Instance == nil:
		case g.refuses != nil && g.refuses(p.Instance) != nil:
			d.fates[k] = g.refuses(p.Instance)
		case has != nil && has.Peer != d.self && p.Reason != instances.ReasonRegistered:
			d.fates[k] = fault.New("cluster", fault.Conflict, "%s has it", has.Peer)
			lost = append(lost, k)
		case g.gone[k] != "" && g.gone[k] != d.self && p.Reason != instances.ReasonRegistered:
			d.fates[k] = fault.New("cluster", fault.Conflict, "%s removed it", g.gone[k])
			lost = append(lost, k)
		default:
			if has != nil && has.Peer != d.self {
				go g.desks[has.Peer].lose(k)
			}
			i := *p.Instance
			i.Peer, i.Revision = d.self, g.revision
			g.entries[k] = &i
			delete(g.gone, k)
			changes = append(changes, instances.Change{Key: k, Instance: &i})
		}
	}
	clear(d.pending)
	for _, to := range g.desks {
		to.feed <- fed{time.Now().Add(g.follows), g.revision, changes}
	}
	return lost
}

// lose informs a peer of an adopted key.
func (d *clusterPeer) lose(k instance.Key) {
	d.mu.Lock()
	if _, pending := d.pending[k]; !pending {
		d.fates[k] = fault.New("cluster", fault.Conflict, "it was adopted")
	}
	d.mu.Unlock()
	d.Lost([]instance.Key{k})
}

func (d *clusterPeer) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-d.feed:
			if len(f.changes) == 0 {
				continue // other keys of the group use this revision
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(f.at)):
			}
			if found, _ := d.known.List(ctx, instances.ListQuery{}); found.Revision < f.revision {
				require.NoError(d.group.t, d.known.Apply(f.revision, f.changes))
			}
		}
	}
}

func (d *clusterPeer) Committed(ctx context.Context, k instance.Key) (uint64, error) {
	for {
		d.mu.Lock()
		_, pending := d.pending[k]
		fate, revision, settled := d.fates[k], d.done[k], d.settled
		d.mu.Unlock()
		d.group.mu.Lock()
		leads := d.group.leads
		d.group.mu.Unlock()
		switch {
		case fate != nil:
			return 0, fate
		case !pending:
			return revision, nil
		case !leads:
			return 0, fault.New("cluster", fault.Unavailable, "no leader is known")
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return 0, fault.Wrap("cluster", ctx.Err())
		}
	}
}

func (d *clusterPeer) Read(_ context.Context, n instance.Name) (list []*instance.Instance, revision uint64, err error) {
	g := d.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.leads {
		return nil, 0, fault.New("cluster", fault.Unavailable, "no leader is known")
	}
	for k, i := range g.entries {
		if k.Namespace == n.Namespace && (n.Service == "" || k.Service == n.Service) {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b *instance.Instance) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return list, g.revision, nil
}

// At implements Peers.
func (d *clusterPeer) At(peer string) (instances.Registrar, error) {
	g := d.group
	g.mu.Lock()
	defer g.mu.Unlock()
	to := g.desks[peer]
	if err := g.away[peer]; err != nil {
		return nil, err
	}
	if to == nil {
		return nil, fault.New("cluster", fault.NotFound, "no peer %s", peer)
	}
	return line{to.Direct(), to}, nil
}

// line is a connection to a peer.
type line struct {
	instances.Registrar
	to *clusterPeer
}

func (l line) call(ctx context.Context) error {
	l.to.group.mu.Lock()
	l.to.calls++
	hangs := l.to.group.hangs[l.to.self]
	l.to.group.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return fault.Wrap("line", ctx.Err())
	}
	return nil
}

func (l line) Heartbeat(ctx context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	if err := l.call(ctx); err != nil {
		return nil, err
	}
	return l.Registrar.Heartbeat(ctx, refs)
}

func (l line) Deregister(ctx context.Context, k instance.Key) (instances.Removal, error) {
	if err := l.call(ctx); err != nil {
		return instances.Removal{}, err
	}
	return l.Registrar.Deregister(ctx, k)
}

func (l line) SetStatus(ctx context.Context, k instance.Key, s instance.Status) (*instance.Instance, error) {
	if err := l.call(ctx); err != nil {
		return nil, err
	}
	return l.Registrar.SetStatus(ctx, k, s)
}

// set changes the cluster.
func (g *cluster) set(change func()) {
	g.mu.Lock()
	change()
	g.mu.Unlock()
	for _, d := range g.desks {
		d.rouse()
	}
}

// dies cuts a peer off.
func (g *cluster) dies(peer string) {
	g.set(func() { g.away[peer] = fault.New("cluster", fault.Unavailable, "%s is away", peer) })
}

// holder returns the owner of a key in the directory, or "".
func (g *cluster) holder(k instance.Key) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := g.entries[k]; i != nil {
		return i.Peer
	}
	return ""
}

// called returns the number of calls of other peers at a peer.
func (g *cluster) called(peer string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.desks[peer].calls
}

// rest waits for all running work.
func rest() {
	time.Sleep(500 * time.Millisecond)
	synctest.Wait()
}

// agree checks that all registries, all catalogs and the directory are equal.
func (g *cluster) agree() {
	rest()
	want := map[instance.Key]string{}
	for self, d := range g.desks {
		all, _ := d.registry.All()
		for _, i := range all {
			require.Empty(g.t, want[i.Key], "%s and %s both have %v", want[i.Key], self, i.Key)
			want[i.Key] = fmt.Sprint(self, i.Lease, i.Status, i.Spec.Host, i.Spec.Port)
		}
	}
	show := func(list []*instance.Instance) map[instance.Key]string {
		shown := map[instance.Key]string{}
		for _, i := range list {
			shown[i.Key] = fmt.Sprint(i.Peer, i.Lease, i.Status, i.Spec.Host, i.Spec.Port)
		}
		return shown
	}
	require.Equal(g.t, want, show(slices.Collect(maps.Values(g.entries))))
	for self, d := range g.desks {
		found, err := d.List(g.t.Context(), instances.ListQuery{Namespace: "default", Selector: instance.Selector{AnyStatus: true}})
		require.NoError(g.t, err)
		require.Equal(g.t, want, show(found.Instances), self)
	}
}
