package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// lasting returns a registration that never falls silent during a test.
func lasting(id string) instance.Registration {
	r := web(id)
	r.Spec.UnhealthyAfter, r.Spec.RemoveAfter = time.Hour, 2*time.Hour
	return r
}

func surely() instance.Query {
	q := webs()
	q.Consistency = instance.Linearizable
	return q
}

// TestCommitted checks that an answered registration is in the directory and
// has its revision.
func TestCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		g.set(func() { g.revision = 1000; g.follows = time.Second })
		got, err := g.desks["a"].Register(t.Context(), lasting("x"))
		require.NoError(t, err)
		require.True(t, got.Committed)
		require.Equal(t, g.entries[got.Key].Revision, got.Revision)

		found, err := g.desks["b"].Discover(t.Context(), webs())
		require.NoError(t, err)
		require.Empty(t, found.Instances, "the news is under way")
		began := time.Now()
		found, err = g.desks["b"].Discover(t.Context(), surely())
		require.NoError(t, err)
		require.Len(t, found.Instances, 1)
		require.Equal(t, time.Second, time.Since(began))

		i, err := g.desks["a"].SetStatus(t.Context(), got.Key, instance.StatusOutOfService)
		require.NoError(t, err)
		require.Equal(t, g.entries[got.Key].Revision, i.Revision)
		found, err = g.desks["b"].Discover(t.Context(), surely())
		require.NoError(t, err)
		require.Equal(t, instance.StatusOutOfService, found.Instances[0].Status)

		_, err = g.desks["a"].Deregister(t.Context(), got.Key)
		require.NoError(t, err)
		require.Empty(t, g.entries)
		found, err = g.desks["b"].Discover(t.Context(), surely())
		require.NoError(t, err)
		require.Empty(t, found.Instances)
		g.agree()
	})
}

// TestNoLeader checks that a registration waits for a leader, and that one with
// a required commit leaves no trace.
func TestNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a := g.desks["a"]
		first, err := a.Register(t.Context(), lasting("old"))
		require.NoError(t, err)
		g.set(func() { g.leads = false })
		began := time.Now()
		got, err := a.Register(t.Context(), lasting("new"))
		require.NoError(t, err)
		require.False(t, got.Committed)
		_, ok := a.registry.Get(got.Key)
		require.True(t, ok)

		r := lasting("must")
		r.RequireCommit = true
		_, err = a.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Unavailable)
		_, ok = a.registry.Get(r.Key)
		require.False(t, ok)
		r = lasting("old")
		r.RequireCommit, r.Spec.Port = true, 9
		_, err = a.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Unavailable)
		i, _ := a.registry.Get(r.Key)
		require.True(t, first.Instance.Same(i))
		r = lasting("old")
		r.RequireCommit, r.Status = true, instance.StatusStarting
		_, err = a.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Unavailable)
		i, _ = a.registry.Get(r.Key)
		require.Equal(t, instance.StatusUp, i.Status)
		_, err = a.Deregister(t.Context(), first.Key)
		require.NoError(t, err, "it is gone here, and will be everywhere")
		_, err = a.Discover(t.Context(), surely())
		require.ErrorIs(t, err, fault.Unavailable)
		require.Equal(t, began, time.Now(), "nobody waited")

		g.set(func() { g.leads = true })
		g.agree()
		require.Equal(t, "a", g.holder(got.Key))
		require.Len(t, g.entries, 1)
	})
}

// TestSlowCommit checks that a slow commit is awaited at most for commitWait,
// or until the caller leaves.
func TestSlowCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a")
		g.set(func() { g.commits = 20 * time.Second })
		a, began := g.desks["a"], time.Now()
		got, err := a.Register(t.Context(), lasting("x"))
		require.NoError(t, err)
		require.False(t, got.Committed)
		require.Equal(t, 5*time.Second, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err = a.Register(ctx, lasting("y"))
		require.NoError(t, err)
		require.False(t, got.Committed)
		require.Equal(t, 6*time.Second, time.Since(began))

		r := lasting("x")
		r.RequireCommit, r.Spec.Port = true, 9
		before := time.Now()
		second := make(chan error, 1)
		go func() {
			time.Sleep(time.Second)
			other := lasting("x")
			other.Spec.Port = 10
			got, err := a.Register(t.Context(), other)
			if err == nil && got.Spec.Port != 10 {
				err = fault.New("test", fault.Internal, "it was undone by the one before")
			}
			second <- err
		}()
		_, err = a.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Unavailable)
		require.Equal(t, 5*time.Second, time.Since(before))
		require.NoError(t, <-second)
		i, _ := a.registry.Get(r.Key)
		require.Equal(t, 10, i.Spec.Port, "who registered behind it was not undone with it")
		time.Sleep(time.Minute)
		g.agree()
	})
}

// TestDirectoryRefuses checks that a rejected registration is undone, unless only room is missing.
func TestDirectoryRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a")
		first, err := g.desks["a"].Register(t.Context(), lasting("x"))
		require.NoError(t, err)
		g.set(func() {
			g.refuses = func(i *instance.Instance) error {
				switch i.Spec.Port {
				case 666:
					return &fault.Error{Kind: fault.TooLarge, Err: errMissing}
				case 777:
					return fault.Exhausted("", "keys", false, "no room")
				}
				return nil
			}
		})
		r := lasting("x")
		r.Spec.Port = 666
		_, err = g.desks["a"].Register(t.Context(), r)
		require.ErrorIs(t, err, fault.TooLarge)
		r.ID = "y"
		_, err = g.desks["a"].Register(t.Context(), r)
		require.ErrorIs(t, err, fault.TooLarge)
		g.agree()
		require.Equal(t, 8080, g.entries[first.Key].Spec.Port)
		require.Len(t, g.entries, 1)

		r.ID, r.Spec.Port, r.RequireCommit = "z", 777, true
		_, err = g.desks["a"].Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Unavailable)
		_, kept := g.desks["a"].registry.Get(r.Key)
		require.False(t, kept)
		r.RequireCommit = false
		got, err := g.desks["a"].Register(t.Context(), r)
		require.NoError(t, err, "without room the peer keeps the registration")
		require.False(t, got.Committed)
		_, kept = g.desks["a"].registry.Get(r.Key)
		require.True(t, kept)
	})
}

// TestMoves checks that a registration at another peer moves the application,
// and that the former peer drops it.
func TestMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		got, err := g.desks["a"].Register(t.Context(), lasting("x"))
		require.NoError(t, err)
		rest()
		r := lasting("x")
		r.Strict = true
		_, err = g.desks["b"].Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Exists)
		r.Strict = false
		moved, err := g.desks["b"].Register(t.Context(), r)
		require.NoError(t, err)
		require.True(t, moved.Committed)
		g.agree()
		require.Equal(t, "b", g.holder(r.Key))
		beats, err := g.desks["a"].Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}, {Key: r.Key}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Gone)
		require.NoError(t, beats[1].Err, "by its name it is found where it is")
		require.Equal(t, 1, g.called("b"))

		back, err := g.desks["a"].Register(t.Context(), r)
		require.NoError(t, err)
		require.True(t, back.Created)
		g.agree()
		require.Equal(t, "a", g.holder(r.Key))
	})
}

// TestRivals registers one key at two peers: one owns it in the end, and both
// answers were true.
func TestRivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		for range 20 {
			errs := make(chan error, 2)
			for _, d := range g.desks {
				go func() {
					got, err := d.Register(t.Context(), lasting("x"))
					if err == nil && !got.Committed {
						err = errUncommitted
					}
					errs <- err
				}()
			}
			require.NoError(t, <-errs)
			require.NoError(t, <-errs)
			g.agree()
			require.Len(t, g.entries, 1)
		}
	})
}

// TestTakenBack checks that a new registration takes back an instance lost
// without notice.
func TestTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a := g.desks["a"]
		got, err := a.Register(t.Context(), lasting("x"))
		require.NoError(t, err)
		g.set(func() { // b adopted it without a message to a
			g.revision++
			i := *g.entries[got.Key]
			i.Peer, i.Lease, i.Revision = "b", "lease-b", g.revision
			g.entries[got.Key] = &i
			require.NoError(t, a.known.Apply(g.revision, []instances.Change{{Key: i.Key, Instance: &i}}))
		})
		again, err := a.Register(t.Context(), lasting("x"))
		require.NoError(t, err)
		require.True(t, again.Committed)
		require.Equal(t, "a", g.holder(got.Key))
		beats, err := a.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}, {Lease: again.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		require.NoError(t, beats[1].Err)
		g.agree()

		// a learns of it only after the new registration
		a.mu.Lock()
		a.fates[got.Key] = fault.New("test", fault.Conflict, "it was another's")
		a.mu.Unlock()
		r := lasting("x")
		r.Spec.Port = 9
		_, err = a.Register(t.Context(), r)
		require.NoError(t, err)
		a.Lost([]instance.Key{got.Key})
		g.agree()
		require.Equal(t, 9, g.entries[got.Key].Spec.Port)
	})
}

// TestComesBack checks that a returning peer publishes its instances and drops
// moved ones.
func TestComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a, b := g.desks["a"], g.desks["b"]
		for _, id := range []string{"x", "y"} {
			_, err := a.Register(t.Context(), lasting(id))
			require.NoError(t, err)
		}
		rest()
		g.dies("a")
		a.stop()
		beats, err := b.Heartbeat(t.Context(), []instances.Ref{{Key: lasting("x").Key}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		rest()
		require.Equal(t, "b", g.holder(lasting("x").Key))
		a.start()
		g.set(func() { delete(g.away, "a") })
		g.agree()
		require.Equal(t, "b", g.holder(lasting("x").Key))
		require.Equal(t, "a", g.holder(lasting("y").Key))
	})
}

// TestDeregisteredWhileDead checks that an instance deregistered through
// another peer stays away when its own peer returns, and that its application
// must register again.
func TestDeregisteredWhileDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a, b := g.desks["a"], g.desks["b"]
		x, y := a.register(lasting("x")), a.register(lasting("y"))
		g.dies("a")
		a.stop()
		_, err := b.Deregister(t.Context(), x.Key)
		require.NoError(t, err)
		rest()
		require.Empty(t, g.holder(x.Key))
		a.start()
		g.set(func() { delete(g.away, "a") })
		rest()
		g.agree()
		require.Empty(t, g.holder(x.Key))
		require.Equal(t, "a", g.holder(y.Key))
		all, _ := a.registry.All()
		require.Len(t, all, 1)
		for _, d := range g.desks {
			beats, err := d.Heartbeat(t.Context(), []instances.Ref{{Lease: x.Lease}, {Key: x.Key}})
			require.NoError(t, err)
			require.Error(t, beats[0].Err)
			require.Error(t, beats[1].Err)
		}
		beats, err := a.Heartbeat(t.Context(), []instances.Ref{{Lease: x.Lease}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Gone)
		again := a.register(lasting("x"))
		require.True(t, again.Committed)
		require.Equal(t, "a", g.holder(x.Key))
	})
}

// TestConflict checks that a foreign key is taken back once; a second takeover
// stands.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a := g.desks["a"]
		first := a.register(lasting("x"))
		a.mu.Lock()
		a.fates[first.Key] = fault.New("test", fault.Conflict, "b has it")
		a.mu.Unlock()
		again, err := a.Register(t.Context(), lasting("x"))
		require.NoError(t, err)
		require.True(t, again.Committed)
		require.NotEqual(t, first.Lease, again.Lease)
		g.agree()

		puts := 0
		g.set(func() {
			g.refuses = func(*instance.Instance) error {
				puts++
				return fault.New("test", fault.Conflict, "b has it")
			}
		})
		r := lasting("x")
		r.Spec.Port = 9
		_, err = a.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Conflict)
		require.Empty(t, a.Census())
		require.Equal(t, 2*2, puts, "the fake asks twice of each")
	})
}

// TestInTurn checks that a deregistration waits for a running registration of
// the key.
func TestInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a")
		a := g.desks["a"]
		g.set(func() { g.commits = 3 * time.Second })
		registered := make(chan bool, 1)
		go func() {
			got, err := a.Register(t.Context(), lasting("x"))
			registered <- err == nil && got.Committed && g.holder(got.Key) == "a"
		}()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Deregister(ctx, lasting("x").Key)
		require.ErrorIs(t, err, fault.Timeout)
		_, err = a.Deregister(t.Context(), lasting("x").Key)
		require.NoError(t, err)
		require.True(t, <-registered)
		g.agree()
		require.Empty(t, g.entries)
	})
}
