package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestUnsure checks that a linearizable read fails if the catalog cannot catch
// up.
func TestUnsure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		b := g.desks["b"]
		g.desks["a"].register(lasting("x"))
		b.known.Freeze("test", time.Now())
		began := time.Now()
		_, err := b.Discover(t.Context(), surely())
		require.ErrorIs(t, err, fault.Unavailable)
		require.Equal(t, catchUpTimeout, time.Since(began))
		found, err := b.Discover(t.Context(), webs())
		require.NoError(t, err)
		require.True(t, found.Stale)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Discover(ctx, surely())
		require.ErrorIs(t, err, fault.Timeout)
		go func() {
			time.Sleep(time.Second)
			b.known.Thaw()
		}()
		found, err = b.Discover(t.Context(), surely())
		require.NoError(t, err)
		require.Len(t, found.Instances, 1)

		q := surely()
		q.Service = ""
		_, err = b.Discover(t.Context(), q)
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "service"})
		_, err = b.List(t.Context(), instances.ListQuery{Consistency: instance.Linearizable})
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "namespace"})
		g.set(func() { g.leads = false })
		began = time.Now()
		for _, read := range []func() error{
			func() error { _, err := b.Discover(t.Context(), surely()); return err },
			func() error { _, err := b.Await(t.Context(), surely(), 1); return err },
			func() error { return b.Watch(t.Context(), surely(), 0, nil) },
			func() error {
				_, err := b.List(t.Context(), instances.ListQuery{Namespace: "default", Consistency: instance.Linearizable})
				return err
			},
		} {
			require.ErrorIs(t, read(), fault.Unavailable)
		}
		require.Equal(t, began, time.Now())
	})
}

// TestHas checks that a catalog lacks an addition, a change or a removal,
// whatever its revision.
func TestHas(t *testing.T) {
	at := func(id string, revision uint64) *instance.Instance {
		return &instance.Instance{Key: web(id).Key, Peer: "b", Lease: id, Revision: revision}
	}
	name := webs().Name
	for what, c := range map[string]struct {
		known    uint64
		has      []*instance.Instance
		revision uint64
		read     []*instance.Instance
		want     bool
	}{
		"nothing":             {5, nil, 9, nil, true},
		"the same":            {5, []*instance.Instance{at("x", 4)}, 9, []*instance.Instance{at("x", 4)}, true},
		"an addition":         {5, []*instance.Instance{at("x", 4)}, 9, []*instance.Instance{at("x", 4), at("y", 8)}, false},
		"a change":            {5, []*instance.Instance{at("x", 4)}, 9, []*instance.Instance{at("x", 8)}, false},
		"a removal":           {5, []*instance.Instance{at("x", 4)}, 9, nil, false},
		"the revision passed": {9, []*instance.Instance{at("x", 4)}, 9, []*instance.Instance{at("x", 8)}, true},
		"newer altogether":    {9, nil, 8, []*instance.Instance{at("x", 8)}, true},
		"at the last change":  {8, []*instance.Instance{at("x", 4), at("y", 8)}, 9, []*instance.Instance{at("x", 4), at("y", 8)}, true},
		"between two changes": {7, []*instance.Instance{at("x", 7)}, 9, []*instance.Instance{at("x", 7), at("y", 8)}, false},
	} {
		known := catalog.New(catalog.Config{})
		require.NoError(t, known.Reset(c.known, c.has))
		s := &reader{Catalog: known, local: &local{ctx: t.Context()}}
		require.Equal(t, c.want, s.has(name, newReading(c.read, c.revision)), what)
		require.Equal(t, c.want, s.has(instance.Name{Namespace: "default"}, newReading(c.read, c.revision)), what)
		known.Freeze("test", time.Now())
		require.False(t, s.has(name, newReading(c.read, c.revision)), what)
	}
}

// TestOwnAhead checks that a linearizable read waits for an uncommitted local
// instance.
func TestOwnAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a")
		a := g.desks["a"]
		g.set(func() { g.commits = 3 * time.Second })
		r := lasting("x")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err := a.Register(ctx, r)
		require.NoError(t, err)
		require.NoError(t, a.known.Apply(2, []instances.Change{{Key: r.Key, Instance: got.Instance}}))
		g.set(func() { g.revision = 10 })
		began := time.Now()
		found, err := a.Discover(t.Context(), surely())
		require.NoError(t, err)
		require.Len(t, found.Instances, 1)
		require.Equal(t, 2*time.Second+g.follows, time.Since(began))
	})
}

// model is the allowed state of a cluster that answers one call at a time, by
// id.
type model map[string]told

type told struct {
	port   int
	status instance.Status
}

// TestOneRegistry checks that any peer, under any partition, answers like one
// registry, and that linearizable reads see each answer at once.
func TestOneRegistry(t *testing.T) {
	ids, peers := []string{"x", "y", "z"}, []string{"a", "b", "c"}
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			g, m := newCluster(t, peers...), model{}
			look := func() {
				d := g.desks[rapid.SampledFrom(peers).Draw(rt, "reader")]
				q := instances.ListQuery{Namespace: "default", Selector: instance.Selector{AnyStatus: true}, Consistency: instance.Linearizable}
				found, err := d.List(t.Context(), q)
				require.NoError(t, err)
				got := model{}
				for _, i := range found.Instances {
					got[i.ID] = told{i.Spec.Port, i.Status}
				}
				require.Equal(t, m, got)
			}
			for range rapid.IntRange(1, 25).Draw(rt, "calls") {
				g.set(func() {
					g.commits = time.Duration(rapid.IntRange(0, 400).Draw(rt, "commits")) * time.Millisecond
					g.follows = time.Duration(rapid.IntRange(0, 400).Draw(rt, "follows")) * time.Millisecond
				})
				d := g.desks[rapid.SampledFrom(peers).Draw(rt, "peer")]
				one(rt, g, d, lasting(rapid.SampledFrom(ids).Draw(rt, "id")), m)
				look()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				look()
			}
			time.Sleep(2 * time.Second)
			g.agree()
		})
	})
}

// one makes a random call about an instance and updates the model.
func one(rt *rapid.T, g *cluster, d *clusterPeer, r instance.Registration, m model) {
	t := g.t
	was, there := m[r.ID]
	answered := func(err error, next told) {
		if !there {
			require.ErrorIs(t, err, fault.NotFound)
			return
		}
		require.NoError(t, err)
		m[r.ID] = next
	}
	switch rapid.IntRange(0, 5).Draw(rt, "call") {
	case 0:
		r.Spec.Port = rapid.IntRange(1, 2).Draw(rt, "port")
		got, err := d.Register(t.Context(), r)
		require.NoError(t, err)
		require.True(t, got.Committed)
		m[r.ID] = told{r.Spec.Port, got.Status}
	case 1:
		_, err := d.Deregister(t.Context(), r.Key)
		answered(err, was)
		delete(m, r.ID)
	case 2:
		_, err := d.SetStatus(t.Context(), r.Key, instance.StatusOutOfService)
		answered(err, told{was.port, instance.StatusOutOfService})
	case 3:
		_, err := d.SetStatus(t.Context(), r.Key, instance.StatusUp)
		answered(err, told{was.port, instance.StatusUp})
	case 4:
		beats, err := d.Heartbeat(t.Context(), []instances.Ref{{Key: r.Key}})
		require.NoError(t, err)
		if err := beats[0].Err; there || fault.KindOf(err) != fault.Gone {
			answered(err, was)
		}
	default:
		peer := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "cut")
		if rapid.Bool().Draw(rt, "heals") {
			g.set(func() { delete(g.away, peer) })
		} else {
			g.dies(peer)
		}
	}
}
