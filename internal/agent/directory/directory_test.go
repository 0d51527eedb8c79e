package directory

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// cluster is a group with a leader chosen by the test, and peers that use it.
type cluster struct {
	*coordtest.Solo
	t *testing.T

	mu      sync.Mutex // guards the fields below
	term    uint64
	leader  string
	changed chan struct{}
	peers   []*peer
	batches int
}

// peer is a peer with its directory. The test can cut it off from the group.
type peer struct {
	*Directory
	c    *cluster
	name string
	lost []instance.Key
	off  bool
	lag  time.Duration // of its watch
	log  strings.Builder
}

func newCluster(t *testing.T) *cluster {
	after := func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	return &cluster{t: t, Solo: coordtest.New(coordtest.Config{Now: time.Now, After: after}), changed: make(chan struct{})}
}

// elect makes a peer the leader; "" starts an election.
func (c *cluster) elect(leader string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if leader != "" {
		c.term++
		c.Resume()
	} else {
		c.Halt("nobody leads")
	}
	c.leader = leader
	close(c.changed)
	c.changed = make(chan struct{})
}

// sent returns the number of batches sent to the group.
func (c *cluster) sent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.batches
}

// lostBy returns the keys reported as lost to a peer.
func (c *cluster) lostBy(p *peer) []instance.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(p.lost)
}

func (c *cluster) add(name string) *peer {
	known := catalog.New(catalog.Config{Now: time.Now})
	p := &peer{c: c, name: name}
	random := rand.New(rand.NewPCG(1, uint64(len(c.peers))))
	var mu sync.Mutex
	p.Directory = New(Config{
		Group: group{p}, Catalog: known, Self: name,
		Logger: slog.New(slog.NewTextHandler(&p.log, nil)),
		Lost: func(keys []instance.Key) {
			c.mu.Lock()
			defer c.mu.Unlock()
			p.lost = append(p.lost, keys...)
		},
		Random: func() float64 {
			mu.Lock()
			defer mu.Unlock()
			return random.Float64()
		},
	})
	c.peers = append(c.peers, p)
	return p
}

// end stops all peers.
func (c *cluster) end() {
	for _, p := range c.peers {
		p.Close()
	}
}

func (p *peer) reachable(op string) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.off || p.c.leader == "" {
		return fault.New(op, fault.Unavailable, "nobody leads")
	}
	return nil
}

func (p *peer) cut(off bool) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.off = off
}

func (p *peer) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	if err := p.reachable("execute"); err != nil {
		return nil, err
	}
	if cmd.GetPublishInstances() != nil {
		p.c.mu.Lock()
		p.c.batches++
		p.c.mu.Unlock()
	}
	return p.c.Solo.Execute(ctx, cmd)
}

// group is the group as a peer sees it.
type group struct{ *peer }

// Read implements Group.
func (g group) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	if err := g.reachable("read"); err != nil {
		return nil, err
	}
	return g.c.Solo.Read(ctx, q)
}

func (p *peer) Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	if err := p.reachable("watch"); err != nil {
		return err
	}
	return p.c.Solo.Watch(ctx, w, func(b *apiv1.WatchKeysResponse) error {
		time.Sleep(p.lag)
		if err := p.reachable("watch"); err != nil {
			return err
		}
		return send(b)
	})
}

func (p *peer) Leading() (uint64, string, <-chan struct{}) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.off {
		return 0, "", p.c.changed
	}
	return p.c.term, p.c.leader, p.c.changed
}

func running(service, id string) instances.Change {
	k := instance.Key{Namespace: "default", Service: service, ID: id}
	return instances.Change{Key: k, Instance: &instance.Instance{
		Key: k, Spec: instance.Spec{Host: "10.0.0.1", Port: 80, Weight: 1, UnhealthyAfter: 30 * time.Second, RemoveAfter: time.Minute},
		Status: instance.StatusUp, Lease: "lease-" + id, RegisteredAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}}
}

// ids returns the instances of a service in a peer's catalog, and whether they
// are stale.
func (p *peer) ids(service string) (ids []string, stale bool) {
	got, err := p.Catalog.Discover(p.c.t.Context(), instance.Query{
		Name: instance.Name{Namespace: "default", Service: service}, Selector: instance.Selector{AnyStatus: true},
	})
	require.NoError(p.c.t, err)
	for _, i := range got.Instances {
		ids = append(ids, i.ID)
	}
	return ids, got.Stale
}

func (p *peer) shows(service string, ids ...string) {
	p.c.t.Helper()
	got, stale := p.ids(service)
	require.Equal(p.c.t, ids, got, "at %s", p.name)
	require.False(p.c.t, stale, "at %s", p.name)
}

func run(t *testing.T, f func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.end()
		f(t, c)
	})
}

// TestNormalStart starts peers with a leader: one batch registers all
// instances.
func TestNormalStart(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a, b := c.add("a"), c.add("b")
		var all []instances.Change
		for i := range 300 {
			all = append(all, running("storage", fmt.Sprintf("s%03d", i)))
		}
		b.Publish(all)
		ids, stale := b.ids("storage")
		require.Len(t, ids, 300, "what runs here is shown here at once")
		require.True(t, stale)
		a.Start()
		b.Start()
		time.Sleep(100 * time.Millisecond)
		revision, err := b.Committed(t.Context(), all[0].Key)
		require.NoError(t, err)
		require.NotZero(t, revision)
		time.Sleep(time.Second)
		ids, stale = a.ids("storage")
		require.Len(t, ids, 300)
		require.False(t, stale)
		require.LessOrEqual(t, c.sent(), 2)
		list, at, err := a.Read(t.Context(), instance.Name{Namespace: "default", Service: "storage"})
		require.NoError(t, err)
		require.Len(t, list, 300)
		require.GreaterOrEqual(t, at, revision)
		require.Equal(t, "b", list[0].Peer)
	})
}

// TestElection starts a peer during an election: its instances wait for the
// leader.
func TestElection(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		a := c.add("a")
		a.Publish([]instances.Change{running("storage", "x")})
		a.Start()
		time.Sleep(time.Minute)
		_, err := a.Committed(t.Context(), running("storage", "x").Key)
		require.ErrorIs(t, err, fault.Unavailable, "at once")
		a.Publish([]instances.Change{running("storage", "y")})
		ids, stale := a.ids("storage")
		require.Equal(t, []string{"x", "y"}, ids)
		require.True(t, stale)
		c.elect("b")
		time.Sleep(6 * time.Second)
		a.shows("storage", "x", "y")
		_, err = a.Committed(t.Context(), running("storage", "y").Key)
		require.NoError(t, err)
	})
}

// TestRegisteredWhileLeaderless checks that a registration without a leader is
// visible at its own peer, marked as stale.
func TestRegisteredWhileLeaderless(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Millisecond, 10 * time.Second} {
		run(t, func(t *testing.T, c *cluster) {
			c.elect("a")
			a, b := c.add("a"), c.add("b")
			a.Start()
			b.Start()
			b.Publish([]instances.Change{running("storage", "x")})
			time.Sleep(time.Minute)
			c.elect("")
			time.Sleep(pause)
			b.Publish([]instances.Change{running("storage", "y")})
			time.Sleep(staleAfter + time.Second)
			ids, stale := b.ids("storage")
			require.Equal(t, []string{"x", "y"}, ids)
			require.True(t, stale)
			c.elect("b")
			time.Sleep(10 * time.Second)
			a.shows("storage", "x", "y")
			b.shows("storage", "x", "y")
		})
	}
}

// TestLateRegistration checks that registrations, changes and deregistrations
// reach all peers within moments.
func TestLateRegistration(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a, b := c.add("a"), c.add("b")
		a.Start()
		b.Start()
		time.Sleep(time.Minute)
		began := time.Now()
		x := running("storage", "x")
		b.Publish([]instances.Change{x})
		_, err := b.Committed(t.Context(), x.Key)
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
		synctest.Wait()
		a.shows("storage", "x")
		b.shows("storage", "x")
		b.Publish([]instances.Change{{Key: x.Key}})
		_, err = b.Committed(t.Context(), x.Key)
		require.NoError(t, err)
		time.Sleep(time.Second)
		a.shows("storage")
	})
}

// TestLeaderChange checks that a new leader inherits the directory without new
// registrations.
func TestLeaderChange(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a, b := c.add("a"), c.add("b")
		b.Publish([]instances.Change{running("storage", "x")})
		a.Start()
		b.Start()
		time.Sleep(time.Minute)
		batches := c.sent()
		c.elect("")
		time.Sleep(10 * time.Second)
		ids, stale := b.ids("storage")
		require.Equal(t, []string{"x"}, ids, "nothing ends while nobody leads")
		require.True(t, stale)
		c.elect("b")
		time.Sleep(10 * time.Second)
		a.shows("storage", "x")
		b.shows("storage", "x")
		require.Equal(t, batches, c.sent())
	})
}

// TestCutOff checks that a peer without contact shows its last state and its
// own changes, and that all peers agree afterwards.
func TestCutOff(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a, b := c.add("a"), c.add("b")
		a.Publish([]instances.Change{running("storage", "x")})
		b.Publish([]instances.Change{running("storage", "y")})
		a.Start()
		b.Start()
		time.Sleep(time.Minute)
		b.shows("storage", "x", "y")
		b.cut(true)
		a.Publish([]instances.Change{running("storage", "x2")})
		time.Sleep(40 * time.Second)
		b.Publish([]instances.Change{running("storage", "y2"), {Key: running("storage", "y").Key}})
		a.shows("storage", "x", "x2") // the lease of b has ended
		ids, stale := b.ids("storage")
		require.Equal(t, []string{"x", "y2"}, ids)
		require.True(t, stale)
		b.cut(false)
		time.Sleep(15 * time.Second)
		a.shows("storage", "x", "x2", "y2")
		b.shows("storage", "x", "x2", "y2")
	})
}

// TestAdopted checks that an adopting peer owns the instance and the former
// owner learns of it.
func TestAdopted(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a, b := c.add("a"), c.add("b")
		a.Publish([]instances.Change{running("storage", "x")})
		a.Start()
		b.Start()
		time.Sleep(time.Minute)
		taken := running("storage", "x")
		b.Publish([]instances.Change{taken})
		_, err := b.Committed(t.Context(), taken.Key)
		require.ErrorIs(t, err, fault.Conflict)
		taken.Reason = instances.ReasonRegistered
		b.Publish([]instances.Change{taken})
		_, err = b.Committed(t.Context(), taken.Key)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Contains(t, c.lostBy(a), taken.Key)
		list, _, err := a.Read(t.Context(), taken.Key.Name())
		require.NoError(t, err)
		require.Equal(t, "b", list[0].Peer)
	})
}

// TestIndexOfCommitted checks that a result has the group's revision of its
// commit as index, also if it was visible before: a reader with that index but
// without the instance is woken.
func TestIndexOfCommitted(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		a, b := c.add("a"), c.add("b")
		a.Start()
		b.Start()
		x := running("storage", "x")
		a.Publish([]instances.Change{x})
		time.Sleep(time.Second)
		c.elect("a")
		time.Sleep(10 * time.Second)
		revision, err := a.Committed(t.Context(), x.Key)
		require.NoError(t, err)
		for _, p := range c.peers {
			got, err := p.Catalog.Discover(t.Context(), instance.Query{Name: x.Key.Name()})
			require.NoError(t, err)
			require.Equal(t, revision, got.Index, p.name)
			require.Equal(t, revision, got.Instances[0].Revision, p.name)
		}
		page, _, err := ops.Of(c).Range(t.Context(), ops.Query{Span: coord.Exactly(directoryKey(x.Key))}, ops.Linearizable)
		require.NoError(t, err)
		require.EqualValues(t, revision, page.Keys[0].ModRevision, "directory and group count alike")
	})
}

// TestCommittedShows: also the end of an instance counts as committed only when this peer's catalog has it.
func TestCommittedShows(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a := c.add("a")
		a.lag = 50 * time.Millisecond
		a.Start()
		time.Sleep(10 * time.Second)
		x := running("storage", "x")
		for range 3 {
			a.Publish([]instances.Change{x})
			_, err := a.Committed(t.Context(), x.Key)
			require.NoError(t, err)
			a.shows("storage", "x")
			a.Publish([]instances.Change{{Key: x.Key}})
			_, err = a.Committed(t.Context(), x.Key)
			require.NoError(t, err)
			a.shows("storage")
		}
	})
}

// TestLastWordCounts checks that a registration waiting for a leader yields to
// a later one at another peer.
func TestLastWordCounts(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("a")
		a, b := c.add("a"), c.add("b")
		a.Start()
		b.Start()
		time.Sleep(time.Minute)
		a.cut(true)
		time.Sleep(10 * time.Second)
		old, last := running("web", "x"), running("web", "x")
		old.Reason, last.Reason = instances.ReasonRegistered, instances.ReasonRegistered
		old.Instance.RegisteredAt = time.Now()
		a.Publish([]instances.Change{old})
		time.Sleep(2 * time.Second)
		last.Instance.RegisteredAt = time.Now()
		last.Instance.Spec.Port = 81
		b.Publish([]instances.Change{last})
		_, err := b.Committed(t.Context(), last.Key)
		require.NoError(t, err)
		a.cut(false)
		time.Sleep(15 * time.Second)
		require.Equal(t, []instance.Key{old.Key}, c.lostBy(a))
		list, _, err := a.Read(t.Context(), last.Key.Name())
		require.NoError(t, err)
		require.Equal(t, []any{"b", 81}, []any{list[0].Peer, list[0].Spec.Port})
	})
}

// TestLastCommittedCounts checks that the later of two committed registrations
// wins, in any order of the peers' return after their leases, with any clocks.
func TestLastCommittedCounts(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		run(t, func(t *testing.T, c *cluster) {
			c.elect("a")
			a, b, other := c.add("a"), c.add("b"), c.add("c")
			for _, p := range c.peers {
				p.Start()
			}
			time.Sleep(time.Minute)
			old, last := running("web", "x"), running("web", "x")
			old.Reason, last.Reason, last.Instance.Spec.Port = instances.ReasonRegistered, instances.ReasonRegistered, 81
			old.Instance.RegisteredAt = time.Now().Add(time.Hour)
			a.Publish([]instances.Change{old})
			_, err := a.Committed(t.Context(), old.Key)
			require.NoError(t, err)
			a.cut(true)
			b.Publish([]instances.Change{last})
			_, err = b.Committed(t.Context(), last.Key)
			require.NoError(t, err)
			b.cut(true)
			time.Sleep(40 * time.Second)
			other.shows("web")
			for _, p := range []*peer{a, b} {
				if p.name == first {
					p.cut(false)
				}
			}
			time.Sleep(15 * time.Second)
			other.shows("web", "x")
			a.cut(false)
			b.cut(false)
			time.Sleep(15 * time.Second)
			list, at, err := other.Read(t.Context(), last.Key.Name())
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, []any{"b", 81}, []any{list[0].Peer, list[0].Spec.Port}, "%s was first", first)
			require.Equal(t, []instance.Key{old.Key}, c.lostBy(a))
			require.Empty(t, c.lostBy(b))
			time.Sleep(time.Minute)
			_, later, err := other.Read(t.Context(), last.Key.Name())
			require.NoError(t, err)
			require.Equal(t, at, later, "and there it stays")
		})
	}
}

// TestRemovedElsewhere checks that an instance removed through another peer
// stays removed when its own peer returns, before or after the end of its
// lease.
func TestRemovedElsewhere(t *testing.T) {
	for _, away := range []time.Duration{5 * time.Second, time.Minute} {
		run(t, func(t *testing.T, c *cluster) {
			c.elect("a")
			a, b := c.add("a"), c.add("b")
			a.Publish([]instances.Change{running("web", "x"), running("web", "y")})
			a.Start()
			b.Start()
			time.Sleep(time.Minute)
			a.cut(true)
			taken := running("web", "x")
			taken.Reason = instances.ReasonRegistered
			b.Publish([]instances.Change{taken})
			_, err := b.Committed(t.Context(), taken.Key)
			require.NoError(t, err)
			b.Publish([]instances.Change{{Key: taken.Key}})
			_, err = b.Committed(t.Context(), taken.Key)
			require.NoError(t, err)
			time.Sleep(away)
			a.cut(false)
			time.Sleep(15 * time.Second)
			a.shows("web", "y")
			b.shows("web", "y")
			require.Equal(t, []instance.Key{taken.Key}, c.lostBy(a))
			_, err = a.Committed(t.Context(), taken.Key)
			require.ErrorIs(t, err, fault.Conflict)
			a.Publish([]instances.Change{taken}) // the application registers here again
			_, err = a.Committed(t.Context(), taken.Key)
			require.NoError(t, err)
			time.Sleep(time.Second)
			b.shows("web", "x", "y")
		})
	}
}

// TestAnyOrder checks that after starts, cuts and leader changes in any order
// all peers show each running instance once.
func TestAnyOrder(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, func(t *testing.T, c *cluster) {
				random := rand.New(rand.NewPCG(seed, 7))
				pause := func() { time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond) }
				var want []string
				started := map[string]bool{}
				for _, n := range random.Perm(8) {
					p := c.add(fmt.Sprintf("peer%d", n))
					if random.IntN(2) == 0 {
						pause()
					}
					for i := range 1 + random.IntN(3) {
						id := fmt.Sprintf("%d-%d", n, i)
						p.Publish([]instances.Change{running("web", id)})
						want = append(want, id)
						if random.IntN(3) == 0 && !started[p.name] {
							p.Start()
							started[p.name] = true
							pause()
						}
					}
					if !started[p.name] {
						p.Start()
					}
					switch random.IntN(4) {
					case 0:
						c.elect("")
					case 1:
						c.elect([]string{"a", "b", "c"}[random.IntN(3)])
					case 2:
						p.cut(true)
					}
					pause()
				}
				for _, p := range c.peers {
					p.cut(false)
				}
				c.elect("c")
				time.Sleep(time.Minute)
				slices.Sort(want)
				for _, p := range c.peers {
					p.shows("web", want...)
				}
			})
		})
	}
}
