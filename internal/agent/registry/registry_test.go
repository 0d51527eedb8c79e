package registry

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func TestRegister(t *testing.T) {
	c := config(vfs.NewMem())
	f := follow(t, &c)
	r := open(t, c, epoch())
	now := epoch().Add(time.Minute)
	out, err := r.Register(registration("a"), now)
	require.NoError(t, err)
	require.True(t, out.Created)
	require.Equal(t, 30*time.Second, out.TTL)
	require.Equal(t, 10*time.Second, out.Interval)
	require.Regexp(t, `^lease-[0-9a-f]{32}$`, out.Lease)
	require.Equal(t, self, out.Peer)
	require.Equal(t, now, out.RegisteredAt)
	require.Equal(t, instance.StatusUp, out.Status)
	require.Equal(t, "default", out.Namespace)
	got, ok := r.Get(instance.Key{Service: "web", ID: "a"})
	require.True(t, ok)
	require.Same(t, out.Instance, got)
	found, ok := r.leases[out.Lease]
	require.True(t, ok)
	k := found.Key
	require.Equal(t, out.Key, k)

	again, err := r.Register(registration("a"), now.Add(time.Second))
	require.NoError(t, err)
	require.False(t, again.Created)
	require.Same(t, out.Instance, again.Instance, "nothing changed")
	last, ok := r.LastBeat(k)
	require.True(t, ok)
	require.Equal(t, now.Add(time.Second), last, "but it was heard of")

	changed := registration("a")
	changed.Spec.Tags = []string{"blue"}
	out2, err := r.Register(changed, now.Add(2*time.Second))
	require.NoError(t, err)
	require.False(t, out2.Created)
	require.Equal(t, out.Lease, out2.Lease)
	require.Equal(t, out.RegisteredAt, out2.RegisteredAt)
	require.Greater(t, out2.Revision, out.Revision)
	require.Equal(t, []string{"a UP registered", "a UP registered"}, f.take())
	f.agrees(t, r)
}

func TestRegisterMakesNames(t *testing.T) {
	r := open(t, config(vfs.NewMem()), epoch())
	a := register(t, r, registration(""), epoch())
	b := register(t, r, registration(""), epoch())
	require.Regexp(t, `^web-[0-9a-f]{8}$`, a.ID)
	require.NotEqual(t, a.ID, b.ID)
	require.NotEqual(t, a.Lease, b.Lease)
}

func TestRegisterRefuses(t *testing.T) {
	c := config(vfs.NewMem())
	c.MaxInstances = 2
	f := follow(t, &c)
	r := open(t, c, epoch())
	register(t, r, registration("a"), epoch())

	strict := registration("a")
	strict.Strict = true
	_, err := r.Register(strict, epoch())
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Exists, Op: "instances.Register", Field: "id"})
	bad := registration("b")
	bad.Spec.Port = 65536
	_, err = r.Register(bad, epoch())
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Op: "instances.Register", Field: "port"})
	strict.ID = "b"
	register(t, r, strict, epoch())
	_, err = r.Register(registration("c"), epoch())
	require.ErrorIs(t, err, fault.PoolExhausted)
	changed := registration("a")
	changed.Spec.Tags = []string{"x"}
	register(t, r, changed, epoch())
	_, err = r.Deregister(changed.Key, epoch())
	require.NoError(t, err)
	register(t, r, registration("c"), epoch())
	require.Equal(t, 2, len(r.entries))
	f.agrees(t, r)
}

// TestInstancesAreShared: clients that register all they can, one or five, with a name or without, leave room for the first instances of
// another one and of the peer itself, also after a restart. The refusal says so.
func TestInstancesAreShared(t *testing.T) {
	for _, greedy := range []int{1, 5} {
		for _, mark := range []string{"@", "192.0.2."} {
			c := config(vfs.NewMem())
			c.MaxInstances = 1024
			r := open(t, c, epoch())
			of := func(client, id string) instance.Registration {
				reg := registration(id)
				if reg.Client = client; mark == "@" && client != "" {
					reg.Principal = client
				}
				return reg
			}
			takeAll := func() {
				for n := range greedy {
					client := fmt.Sprint(mark, n)
					var err error
					for err == nil {
						_, err = r.Register(of(client, ""), epoch())
					}
					require.ErrorIs(t, err, fault.PoolExhausted)
					require.Equal(t, "pool.instances.share", fault.FieldOf(err))
				}
			}
			takeAll()
			register(t, r, of(mark+"honest", "a"), epoch())
			_, err := r.Deregister(registration("a").Key, epoch())
			require.NoError(t, err)
			require.NoError(t, r.Close())
			r = open(t, c, epoch())
			if mark == "@" { // of others nobody remembers who they were
				takeAll()
			}
			register(t, r, of(mark+"new", "b"), epoch())
			_, err = r.Deregister(registration("b").Key, epoch())
			require.NoError(t, err)
			register(t, r, of("", "c"), epoch())
			for k := range r.entries {
				_, err := r.Deregister(k, epoch())
				require.NoError(t, err)
			}
			require.Empty(t, r.owned)
		}
	}
}

func TestRandomnessFails(t *testing.T) {
	c := config(vfs.NewMem())
	c.Random = io.LimitReader(c.Random, 20)
	r := open(t, c, epoch())
	register(t, r, registration("a"), epoch())
	_, err := r.Register(registration("b"), epoch())
	require.ErrorIs(t, err, fault.Internal)
	_, err = r.Register(registration(""), epoch())
	require.ErrorIs(t, err, fault.Internal)
	require.Equal(t, 1, len(r.entries))

	c = config(vfs.NewMem())
	c.Random = zeros{}
	r = open(t, c, epoch())
	register(t, r, registration(""), epoch())
	_, err = r.Register(registration(""), epoch())
	require.ErrorContains(t, err, "repeats itself")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func TestHeartbeat(t *testing.T) {
	r := open(t, config(vfs.NewMem()), epoch())
	a := register(t, r, registration("a"), epoch())
	now := epoch().Add(10 * time.Second)
	beats := r.Heartbeat([]instances.Ref{
		{Lease: a.Lease},
		{Key: instance.Key{Service: "web", ID: "a"}},
		{Lease: "lease-x"},
		{Key: instance.Key{Service: "web", ID: "b"}},
	}, now)
	want := instances.Beat{Key: a.Key, Lease: a.Lease, Status: instance.StatusUp, At: now, TTL: 30 * time.Second, Expires: now.Add(30 * time.Second)}
	require.Equal(t, []instances.Beat{want, want}, beats[:2])
	require.ErrorIs(t, beats[2].Err, &fault.Error{Kind: fault.NotFound, Field: "lease_id"})
	require.ErrorIs(t, beats[3].Err, &fault.Error{Kind: fault.NotFound, Field: "id"})
	require.Equal(t, now.Add(30*time.Second), r.Expires([]*instance.Instance{a}))
	require.Empty(t, r.Heartbeat(nil, now))
}

func TestSilence(t *testing.T) {
	c := config(vfs.NewMem())
	f := follow(t, &c)
	r := open(t, c, epoch())
	require.True(t, r.Expire(epoch()).IsZero())
	at := func(second int) time.Time { return epoch().Add(time.Duration(second) * time.Second) }
	for _, id := range []string{"b", "a", "c"} {
		register(t, r, registration(id), at(0))
	}
	f.take()
	require.Equal(t, at(30), r.Expire(at(10)))
	beat(r, "a", at(20))
	require.Equal(t, at(50), min2(r.Expire(at(30)), at(50)))
	require.Equal(t, []string{"b UNHEALTHY silent", "c UNHEALTHY silent"}, f.take())
	beat(r, "c", at(40))
	require.Equal(t, []string{"c UP heartbeat"}, f.take())
	r.Expire(at(50))
	require.Equal(t, []string{"a UNHEALTHY silent"}, f.take())
	r.Expire(at(60))
	require.Equal(t, []string{"b gone lost"}, f.take())
	gone := beat(r, "b", at(61))
	require.ErrorIs(t, gone.Err, fault.Gone)
	require.Equal(t, at(60), fault.ValueOf(gone.Err))
	require.Equal(t, at(80), r.Expire(at(70)))
	require.True(t, r.Expire(at(500)).IsZero())
	require.Equal(t, []string{"c UNHEALTHY silent", "a gone lost", "c gone lost"}, f.take())
	f.agrees(t, r)
}

func min2(a, b time.Time) time.Time {
	if a.Before(b) {
		return b // the queue may wake early, never late
	}
	return a
}

func TestReport(t *testing.T) {
	c := config(vfs.NewMem())
	f := follow(t, &c)
	r := open(t, c, epoch())
	a := register(t, r, checked("a"), epoch())
	register(t, r, registration("b"), epoch())
	require.True(t, r.Report(a.Key, true, instance.StatusUp, epoch()))
	require.True(t, r.Report(a.Key, false, instance.StatusDown, epoch()))
	require.False(t, r.Report(registration("b").Key, false, instance.StatusDown, epoch()), "has no check")
	require.False(t, r.Report(registration("x").Key, false, instance.StatusUnknown, epoch()))
	require.Equal(t, []string{"a UNKNOWN registered", "b UP registered", "a UP checked", "a DOWN checked"}, f.take())

	other := checked("a")
	other.Spec.Check.Endpoint = "/other"
	require.Equal(t, instance.StatusUnknown, register(t, r, other, epoch()).Status)
	f.agrees(t, r)
}

func TestSetStatus(t *testing.T) {
	c := config(vfs.NewMem())
	f := follow(t, &c)
	r := open(t, c, epoch())
	a := register(t, r, registration("a"), epoch())
	f.take()
	for _, s := range []instance.Status{instance.StatusOutOfService, instance.StatusOutOfService, instance.StatusDown, instance.StatusStarting} {
		i, err := r.SetStatus(a.Key, s, epoch())
		require.NoError(t, err)
		require.Equal(t, s, i.Status)
		require.Equal(t, s, i.Override)
	}
	changed := registration("a")
	changed.Spec.Weight = 7
	require.Equal(t, instance.StatusStarting, register(t, r, changed, epoch()).Status, "stays when it registers again")
	i, err := r.SetStatus(a.Key, instance.StatusUp, epoch())
	require.NoError(t, err)
	require.Equal(t, instance.StatusUp, i.Status)
	require.Equal(t, instance.StatusUnknown, i.Override)
	require.Len(t, f.take(), 5)

	_, err = r.SetStatus(a.Key, instance.StatusUnhealthy, epoch())
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "status"})
	_, err = r.SetStatus(registration("x").Key, instance.StatusDown, epoch())
	require.ErrorIs(t, err, fault.NotFound)
	f.agrees(t, r)
}

func TestDeregister(t *testing.T) {
	r := open(t, config(vfs.NewMem()), epoch())
	a := register(t, r, registration("a"), epoch())
	now := epoch().Add(time.Second)
	out, err := r.Deregister(a.Key, now)
	require.NoError(t, err)
	require.Equal(t, now, out.At)
	_, err = r.Deregister(a.Key, now)
	require.ErrorIs(t, err, fault.NotFound)
	for _, ref := range []instances.Ref{{Lease: a.Lease}, {Key: a.Key}} {
		b := r.Heartbeat([]instances.Ref{ref}, now)[0]
		require.ErrorIs(t, b.Err, fault.Gone)
		require.Equal(t, now, fault.ValueOf(b.Err))
	}
	b := register(t, r, registration("a"), now)
	require.NotEqual(t, a.Lease, b.Lease)
	require.NoError(t, beat(r, "a", now).Err)
	require.ErrorIs(t, r.Heartbeat([]instances.Ref{{Lease: a.Lease}}, now)[0].Err, fault.Gone, "the old lease")
}

func TestRestart(t *testing.T) {
	fs := vfs.NewMem()
	c := config(fs)
	r := open(t, c, epoch())
	a := register(t, r, registration("a"), epoch())
	b := checked("b")
	b.Spec.RemoveAfter = time.Minute
	register(t, r, b, epoch())
	register(t, r, registration("c"), epoch())
	_, err := r.SetStatus(registration("c").Key, instance.StatusOutOfService, epoch())
	require.NoError(t, err)
	register(t, r, registration("d"), epoch())
	_, err = r.Deregister(registration("d").Key, epoch())
	require.NoError(t, err)
	_, before := r.All()
	require.NoError(t, r.Close())

	now := epoch().Add(24 * time.Hour)
	f := follow(t, &c)
	r = open(t, c, now)
	require.Empty(t, f.take(), "All has what is there")
	all, after := r.All()
	require.Greater(t, after, before)
	require.Len(t, all, 3)
	for _, i := range all {
		f.seen[i.Key] = i
		require.Greater(t, i.Revision, before)
	}
	require.Equal(t, a.Lease, all[0].Lease)
	require.Equal(t, epoch(), all[0].RegisteredAt)
	require.Equal(t, instance.StatusUnknown, status(t, r, "a"))
	require.Equal(t, instance.StatusUnknown, status(t, r, "b"))
	require.Equal(t, instance.StatusOutOfService, status(t, r, "c"))
	_, heard := r.LastBeat(a.Key)
	require.False(t, heard)
	require.Equal(t, now.Add(30*time.Second), r.Expire(now), "deadlines count from the restart")
	require.Equal(t, instance.StatusUp, r.Heartbeat([]instances.Ref{{Lease: a.Lease}}, now)[0].Status)
	require.Equal(t, []string{"a UP heartbeat"}, f.take())
	r.Expire(now.Add(time.Hour))
	f.agrees(t, r)
	require.NoError(t, r.Close())
	require.Zero(t, len(open(t, c, now).entries), "removal is durable")
}

// An instance with a check of its own stays DOWN, over restarts of its peer too, until it is deregistered, or until a time
// that its registration named. Like every instance, it is removed when its heartbeats stop.
func TestFailingCheckRemovesNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*instance.Registration)
		beats   bool
		removed time.Duration // 0: never
	}{
		{name: "a check alone"},
		{name: "its own time", change: func(r *instance.Registration) { r.Spec.RemoveAfter = 90 * time.Second }, removed: 90 * time.Second},
		{name: "never", change: func(r *instance.Registration) { r.Spec.RemoveAfter = instance.Never }, beats: true},
		{name: "heartbeats that stop", beats: true, removed: time.Minute},
		{name: "heartbeats alone", change: func(r *instance.Registration) { r.Spec.Check = nil }, removed: time.Minute},
		{name: "never, without a check", change: func(r *instance.Registration) {
			r.Spec.Check, r.Spec.RemoveAfter = nil, instance.Never
		}},
	} {
		for _, restart := range []string{"none", "ordered", "crash"} {
			t.Run(c.name+", restart "+restart, func(t *testing.T) {
				conf := config(vfs.NewMem())
				r := open(t, conf, epoch())
				reg := checked("a")
				if c.change != nil {
					c.change(&reg)
				}
				register(t, r, reg, epoch())
				if c.beats {
					require.NoError(t, beat(r, "a", epoch()).Err)
				}
				r.Report(reg.Key, false, instance.StatusDown, epoch())
				from := epoch()
				if restart != "none" {
					if restart == "ordered" {
						require.NoError(t, r.Suspend(epoch()))
					}
					require.NoError(t, r.Close())
					from = epoch().Add(time.Second)
					r = open(t, conf, from)
					r.Report(reg.Key, false, instance.StatusDown, from)
				}
				want := c.removed
				if c.beats && restart == "crash" {
					want = 0 // heartbeats before a crash are not known: the instance stays until the next one
				}
				for s := time.Second; s < 2*time.Minute; s += time.Second {
					r.Expire(from.Add(s))
					i, ok := r.Get(reg.Key)
					require.Equal(t, want == 0 || s < want, ok, s)
					if ok && reg.Spec.Check != nil {
						require.Equal(t, instance.StatusDown, i.Status)
					}
				}
				if want == 0 {
					r.Expire(from.Add(1000 * time.Hour))
					_, ok := r.Get(reg.Key)
					require.True(t, ok)
				}
			})
		}
	}
}

func TestStandingStill(t *testing.T) {
	c := config(vfs.NewMem())
	c.Stall = 5 * time.Second
	r := open(t, c, epoch())
	register(t, r, registration("a"), epoch())
	at := func(second int) time.Time { return epoch().Add(time.Duration(second) * time.Second) }
	for s := range 20 {
		r.Expire(at(s))
	}
	r.Expire(at(100))
	require.Equal(t, instance.StatusUp, status(t, r, "a"))
	last, _ := r.LastBeat(registration("a").Key)
	require.Equal(t, epoch(), last, "it was not heard of")
	for s := 101; s < 111; s++ {
		r.Expire(at(s))
	}
	require.Equal(t, instance.StatusUp, status(t, r, "a"))
	r.Expire(at(111))
	require.Equal(t, instance.StatusUnhealthy, status(t, r, "a"), "19 s before, 11 s after")
}

func TestExpires(t *testing.T) {
	r := open(t, config(vfs.NewMem()), epoch())
	a := register(t, r, registration("a"), epoch().Add(time.Second))
	b := register(t, r, registration("b"), epoch())
	stranger := &instance.Instance{Key: registration("x").Key}
	require.Equal(t, epoch().Add(30*time.Second), r.Expires([]*instance.Instance{a, b, stranger}))
	require.Equal(t, epoch().Add(31*time.Second), r.Expires([]*instance.Instance{a}))
	require.True(t, r.Expires([]*instance.Instance{stranger}).IsZero())
	_, err := r.SetStatus(b.Key, instance.StatusOutOfService, epoch())
	require.NoError(t, err)
	require.True(t, r.Expires([]*instance.Instance{b}).IsZero())
}

func TestGravesAreBounded(t *testing.T) {
	g := newTombstones()
	bury := func(n int, now time.Time) instances.Ref {
		i := &instance.Instance{Key: registration(fmt.Sprint(n)).Key, Lease: fmt.Sprint("lease-", n)}
		g.add(i, now)
		return instances.Ref{Lease: i.Lease}
	}
	first := bury(0, epoch())
	second := bury(1, epoch())
	for n := 2; n <= maxTombstones; n++ {
		bury(n, epoch())
	}
	_, ok := g.find(first, epoch())
	require.False(t, ok)
	_, ok = g.find(second, epoch())
	require.True(t, ok)
	require.Equal(t, maxTombstones, g.byKey.Len())
	require.Equal(t, maxTombstones, g.byLease.Len())
	_, ok = g.find(second, epoch().Add(tombstoneTime))
	require.False(t, ok)

	one := instances.Ref{Key: registration("7").Key}
	bury(7, epoch())
	bury(7, epoch().Add(time.Minute))
	at, ok := g.find(one, epoch().Add(tombstoneTime))
	require.True(t, ok)
	require.Equal(t, epoch().Add(time.Minute), at)
}

func TestOpenRefuses(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, config(fs), epoch())
	_, err := Open(config(fs), epoch())
	require.ErrorIs(t, err, fault.Unavailable, "it is open")
	require.NoError(t, r.Close())
	c := config(fs)
	c.Self = "somebody else"
	_, err = Open(c, epoch())
	require.ErrorIs(t, err, fault.Conflict)
}

// TestOpenSetsAside: a value that does not pass neither keeps a peer from starting nor vanishes, and the others go on.
func TestOpenSetsAside(t *testing.T) {
	valid := putEdit(&instance.Instance{Key: registration("a").Key, Spec: registration("a").Spec, Lease: "l", Peer: self})
	for name, bad := range map[string]store.Edit{
		"value":    {Name: "a/b/c", Value: []byte{0xff}},
		"wrong":    {Name: "a/b/c", Value: valid.Value},
		"no lease": putEdit(&instance.Instance{Key: registration("a").Key, Spec: registration("a").Spec, Peer: self}),
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			r := open(t, config(fs), epoch())
			require.NoError(t, r.disk.Commit([]store.Edit{valid, bad, {Name: resumeName, Value: []byte("[null]")}}, 0))
			count := 1
			if bad.Name == valid.Name {
				count = 0
			}
			require.NoError(t, r.Close())
			for range 2 {
				r = open(t, config(fs), epoch())
				require.Len(t, r.Aside(), 1)
				require.Contains(t, r.Aside()[0], bad.Name)
				all, _ := r.All()
				require.Len(t, all, count)
				require.NoError(t, r.Close())
			}
		})
	}
}

func TestClosed(t *testing.T) {
	c := config(vfs.NewMem())
	r, err := Open(c, epoch())
	require.NoError(t, err)
	a := register(t, r, registration("a"), epoch())
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	_, err = r.Register(registration("b"), epoch())
	require.ErrorIs(t, err, fault.Unavailable)
	_, err = r.Deregister(a.Key, epoch())
	require.ErrorIs(t, err, fault.Unavailable)
	require.NoError(t, beat(r, "a", epoch()).Err)
	r.Expire(epoch().Add(time.Hour))
	require.Equal(t, 1, len(r.entries), "what cannot be forgotten on disk stays")
}

// TestFloorMoves uses up the reserved revisions.
func TestFloorMoves(t *testing.T) {
	fs := vfs.NewMem()
	r := open(t, config(fs), epoch())
	a := register(t, r, registration("a"), epoch())
	for range 5 {
		r.revision.Add(floorStep/2 - 1)
		beat(r, "a", epoch())
		require.GreaterOrEqual(t, r.disk.Floor()-r.revision.Load(), uint64(floorStep/2))
	}
	last := r.revision.Load()
	require.NoError(t, r.Close())
	r = open(t, config(fs), epoch())
	b, _ := r.Get(a.Key)
	require.Greater(t, b.Revision, last)
}

// TestConcurrent runs many clients: memory, changes and disk end in the state
// of their last calls.
func TestConcurrent(t *testing.T) {
	fs := vfs.NewMem()
	c := config(fs)
	var failed error
	f := follow(fatalTo{&failed}, &c)
	r := open(t, c, epoch())
	var clients sync.WaitGroup
	const each = 40
	for n := range 16 {
		clients.Go(func() {
			for k := range each {
				own := fmt.Sprintf("own-%d-%d", n, k)
				_, err := r.Register(registration(own), epoch())
				shared := registration(fmt.Sprint("shared-", k%5))
				shared.Spec.Weight = n + 1
				_, err2 := r.Register(shared, epoch())
				r.Heartbeat([]instances.Ref{{Key: shared.Key}, {Key: registration(own).Key}}, epoch())
				_, _ = r.SetStatus(shared.Key, instance.Status(k%4), epoch())
				if k%3 == 0 {
					_, _ = r.Deregister(shared.Key, epoch())
				}
				if k%2 == 0 {
					_, err = r.Deregister(registration(own).Key, epoch())
				}
				r.Expire(epoch())
				if err := errors.Join(err, err2); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	require.NoError(t, failed)
	f.agrees(t, r)
	all, _ := r.All()
	require.NoError(t, r.Close())
	r = open(t, c, epoch())
	stored, _ := r.All()
	require.Len(t, stored, len(all))
	for n, i := range all {
		require.Equal(t, i.Spec, stored[n].Spec)
		require.Equal(t, i.Lease, stored[n].Lease)
		require.Equal(t, i.Override, stored[n].Override)
	}
}

// fatalTo keeps the first failure, because require must not end another
// goroutine.
type fatalTo struct{ err *error }

func (f fatalTo) Errorf(format string, args ...any) {
	if *f.err == nil {
		*f.err = fmt.Errorf(format, args...)
	}
}

func (fatalTo) FailNow() {}
