package agent

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// register registers an instance and waits until all peers know it.
func (d *clusterPeer) register(r instance.Registration) instances.Registered {
	got, err := d.Register(d.group.t.Context(), r)
	require.NoError(d.group.t, err)
	rest()
	return got
}

// TestForward checks that calls run at the instance's own peer and stay there.
func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a, b := g.desks["a"], g.desks["b"]
		r := lasting("x")
		r.Status = instance.StatusStarting
		got := a.register(r)
		require.Equal(t, instance.StatusStarting, got.Status)
		beats, err := b.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		require.Equal(t, got.Key, beats[0].Key)
		require.Equal(t, got.Lease, beats[0].Lease)
		require.Equal(t, instance.StatusUp, beats[0].Status, "it has started")
		g.agree()

		i, err := b.SetStatus(t.Context(), instance.Key{Service: "web", ID: "x"}, instance.StatusOutOfService)
		require.NoError(t, err)
		require.Equal(t, g.entries[got.Key].Revision, i.Revision)
		require.Equal(t, "a", g.holder(got.Key))
		rest()
		_, err = b.Deregister(t.Context(), instance.Key{Service: "web", ID: "x"})
		require.NoError(t, err)
		g.agree()
		require.Empty(t, g.entries)
		require.Equal(t, 3, g.called("a"))
		synctest.Wait()
		require.Contains(t, b.log.String(), "audit=foreign_deregistration instance=default/web/x peer=a")
		_, err = b.Deregister(t.Context(), got.Key)
		require.ErrorIs(t, err, fault.NotFound)
		_, err = b.SetStatus(t.Context(), got.Key, instance.StatusUp)
		require.ErrorIs(t, err, fault.NotFound)
		require.Equal(t, 3, g.called("a"), "who has nothing is not asked")
	})
}

// TestBeatAfterDeregistration checks that the called peer knows of a removal that
// it forwarded, until the instance returns elsewhere.
func TestBeatAfterDeregistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b", "c")
		a, b := g.desks["a"], g.desks["b"]
		got := a.register(lasting("x"))
		_, err := b.Deregister(t.Context(), got.Key)
		require.NoError(t, err)
		rest()
		at := time.Now()
		refs := []instances.Ref{{Lease: got.Lease}, {Key: got.Key}, {Key: lasting("nobody").Key}}
		for _, p := range []*clusterPeer{a, b} {
			beats, err := p.Heartbeat(t.Context(), refs)
			require.NoError(t, err)
			for _, beat := range beats[:2] {
				require.ErrorIs(t, beat.Err, fault.Gone, p.self)
				require.WithinDuration(t, at, fault.ValueOf(beat.Err).(time.Time), time.Second)
			}
			require.ErrorIs(t, beats[2].Err, fault.NotFound)
		}
		g.desks["c"].register(lasting("x"))
		beats, err := b.Heartbeat(t.Context(), refs[1:2])
		require.NoError(t, err)
		require.NoError(t, beats[0].Err, "c answers for it")
		time.Sleep(2 * time.Hour)
		beats, err = b.Heartbeat(t.Context(), refs[:1])
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.NotFound, "forgotten")
	})
}

// TestUnknownBeatsAreNoFailures checks that a heartbeat of an unknown instance
// leaves the success rate alone, and a late one does not.
func TestUnknownBeatsAreNoFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a, b := g.desks["a"], g.desks["b"]
		reg := prometheus.NewRegistry()
		var err error
		b.local.config.Metrics, err = metrics.NewAgent(reg, nil, func() map[string]int { return nil }, time.Now)
		require.NoError(t, err)
		rate := func() float64 {
			families, err := reg.Gather()
			require.NoError(t, err)
			for _, f := range families {
				if f.GetName() == "manifest_heartbeat_success_rate" {
					return f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			return math.NaN()
		}
		x, y := a.register(lasting("x")), b.register(lasting("y"))
		refs := []instances.Ref{{Lease: x.Lease}, {Lease: y.Lease}, {Lease: "lease-nobody"}, {Key: lasting("nobody").Key}}
		_, err = b.Heartbeat(t.Context(), refs)
		require.NoError(t, err)
		require.Equal(t, 1.0, rate(), "two renewed")
		_, err = b.Deregister(t.Context(), y.Key)
		require.NoError(t, err)
		_, err = b.Heartbeat(t.Context(), refs)
		require.NoError(t, err)
		require.Equal(t, 0.75, rate(), "three renewed, one refused")
	})
}

// TestCount checks that each peer counts the instances of all peers.
func TestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		g.desks["a"].register(lasting("x"))
		starting := lasting("y")
		starting.Namespace, starting.Status = "other", instance.StatusStarting
		g.desks["b"].register(starting)
		for name, p := range g.desks {
			require.Equal(t, map[instance.Status]int{instance.StatusUp: 1, instance.StatusStarting: 1}, p.Count(), name)
			require.Len(t, p.Census(), 1, name)
		}
	})
}

// TestMixedBeats checks that each beat is answered in its place, with one call
// per peer.
func TestMixedBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b", "c", "dead", "hung")
		a := g.desks["a"]
		owners := []string{"a", "b", "c", "dead", "hung"}
		var refs []instances.Ref
		for n := range 200 {
			switch owner := owners[n%len(owners)]; n % 7 {
			case 0:
				refs = append(refs, instances.Ref{Lease: fmt.Sprintf("lease-nobody-%d", n)})
			case 1:
				refs = append(refs, instances.Ref{Key: lasting(fmt.Sprintf("nobody-%d", n)).Key})
			default:
				got, err := g.desks[owner].Register(t.Context(), lasting(fmt.Sprintf("%s-%d", owner, n)))
				require.NoError(t, err)
				ref := instances.Ref{Lease: got.Lease}
				if n%2 == 0 {
					ref = instances.Ref{Key: got.Key}
				}
				refs = append(refs, ref)
			}
		}
		gone := a.register(lasting("gone"))
		_, err := a.Deregister(t.Context(), gone.Key)
		require.NoError(t, err)
		rest()
		refs = append(refs, instances.Ref{Lease: gone.Lease})
		g.dies("dead")
		g.set(func() { g.hangs["hung"] = true })
		began := time.Now()
		beats, err := a.Heartbeat(t.Context(), refs)
		require.NoError(t, err)
		require.Equal(t, forwardTimeout, time.Since(began), "all peers at once")
		require.Len(t, beats, len(refs))
		for n := range 200 {
			if n%7 < 2 {
				require.ErrorIs(t, beats[n].Err, fault.NotFound, n)
				continue
			}
			require.NoError(t, beats[n].Err, n)
			require.Equal(t, fmt.Sprintf("%s-%d", owners[n%len(owners)], n), beats[n].Key.ID)
		}
		require.ErrorIs(t, beats[200].Err, fault.Gone)
		require.Equal(t, []int{0, 1, 1, 0, 1}, []int{g.called("a"), g.called("b"), g.called("c"), g.called("dead"), g.called("hung")})
		g.agree()
		for k, i := range g.entries {
			adopted := slices.Contains([]string{"a", "dead", "hung"}, k.ID[:len(k.ID)-len(k.ID[slices.Index([]byte(k.ID), '-'):])])
			require.Equal(t, adopted, i.Peer == "a", k)
		}
	})
}

// TestAdopt checks that any called peer adopts the instance of a dead peer
// unchanged, and that its lease continues.
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b", "c")
		a, b := g.desks["a"], g.desks["b"]
		r := lasting("x")
		r.Spec.Metadata = map[string]string{"shard": "7"}
		got := a.register(r)
		status, drained, removed := a.register(lasting("status")), a.register(lasting("drained")), a.register(lasting("removed"))
		r = lasting("starting")
		r.Status = instance.StatusStarting
		starting := a.register(r)
		_, err := a.SetStatus(t.Context(), drained.Key, instance.StatusOutOfService)
		require.NoError(t, err)
		rest()
		g.dies("a")

		beats, err := b.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}, {Lease: got.Lease}, {Lease: drained.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		require.NotEqual(t, got.Lease, beats[0].Lease)
		require.Equal(t, beats[0].Lease, beats[1].Lease)
		require.Equal(t, instance.StatusOutOfService, beats[2].Status)
		i, err := b.SetStatus(t.Context(), status.Key, instance.StatusDown)
		require.NoError(t, err)
		require.Equal(t, instance.StatusDown, i.Status)
		i, err = b.SetStatus(t.Context(), starting.Key, instance.StatusUp)
		require.NoError(t, err)
		require.Equal(t, instance.StatusStarting, i.Status, "its own word")
		_, err = b.Deregister(t.Context(), removed.Key)
		require.NoError(t, err)
		require.Empty(t, g.holder(removed.Key), "the directory removes what this peer adopted")
		synctest.Wait()
		require.Contains(t, b.log.String(), "audit=instance_takeover instance="+got.Key.String()+" peer=a")
		g.agree()
		require.Equal(t, map[string]string{"shard": "7"}, g.entries[got.Key].Spec.Metadata)
		for _, k := range []instance.Key{got.Key, status.Key, drained.Key} {
			require.Equal(t, "b", g.holder(k))
		}
		beats, err = b.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}, {Lease: beats[0].Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err, "the lease that it had")
		require.NoError(t, beats[1].Err, "the lease that it has")
		require.Zero(t, g.called("a"))

		// it moves on: b remembers the owner of the lease
		g.dies("b")
		c := g.desks["c"]
		beats, err = c.Heartbeat(t.Context(), []instances.Ref{{Key: got.Key}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		g.agree()
		beats, err = b.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		require.Equal(t, 1, g.called("c"))
	})
}

// TestCheckOfLoopbackIsNotAdopted: nobody makes another peer check its own host.
func TestCheckOfLoopbackIsNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		r := lasting("x")
		r.Spec.Host, r.Local = "127.0.0.1", true
		r.Spec.Check = &instance.Check{Type: instance.TCP}
		got := g.desks["a"].register(r)
		rest()
		g.dies("a")
		beats, err := g.desks["b"].Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Invalid)
		require.Equal(t, "host", fault.FieldOf(beats[0].Err))
		all, _ := g.desks["b"].registry.All()
		require.Empty(t, all)
	})
}

// TestAdoptWithoutLeader checks that a peer also adopts without a leader and
// publishes later, but does not remove an instance its own peer could bring
// back.
func TestAdoptWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		x, y := g.desks["a"].register(lasting("x")), g.desks["a"].register(lasting("y"))
		g.dies("a")
		g.set(func() { g.leads = false })
		began := time.Now()
		_, err := g.desks["b"].SetStatus(t.Context(), x.Key, instance.StatusOutOfService)
		require.NoError(t, err)
		_, err = g.desks["b"].Deregister(t.Context(), y.Key)
		require.ErrorIs(t, err, fault.Unavailable, "its peer may come back with it")
		require.Equal(t, began, time.Now())
		all, _ := g.desks["b"].registry.All()
		require.Len(t, all, 1)
		g.set(func() { g.leads = true })
		rest()
		require.Equal(t, "b", g.holder(x.Key))
		require.Equal(t, "a", g.holder(y.Key))
		_, err = g.desks["b"].Deregister(t.Context(), y.Key)
		require.NoError(t, err)
		require.Empty(t, g.holder(y.Key))
	})
}

// TestUnknownWithoutContact checks that a peer without contact to the group does
// not call an instance unknown that another peer may have.
func TestUnknownWithoutContact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCluster(t, "a", "b").desks["b"]
		own, k := b.register(lasting("own")), lasting("x").Key
		call := func(k instance.Key) []error {
			_, set := b.SetStatus(t.Context(), k, instance.StatusDown)
			_, ended := b.Deregister(t.Context(), k)
			return []error{set, ended}
		}
		for _, err := range call(k) {
			require.ErrorIs(t, err, fault.NotFound)
		}
		b.catalog.Freeze("no member answers", time.Now())
		for _, err := range call(k) {
			require.ErrorIs(t, err, fault.Unavailable)
			require.ErrorContains(t, err, "cannot see whether another peer has one (no member answers): retry later")
		}
		for _, err := range call(own.Key) {
			require.NoError(t, err)
		}
		beats, err := b.Heartbeat(t.Context(), []instances.Ref{{Key: k}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.NotFound, "its application registers again, here")
	})
}

// TestNotAdopted checks that a leaving caller and an answering owner cause no
// adoption.
func TestNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a, b := g.desks["a"], g.desks["b"]
		got := a.register(lasting("x"))
		g.set(func() { g.hangs["a"] = true })
		ctx, cancel := context.WithTimeout(t.Context(), forwardTimeout/2)
		defer cancel()
		beats, err := b.Heartbeat(ctx, []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Timeout)
		require.Equal(t, got.Key, beats[0].Key)
		_, err = b.SetStatus(ctx, got.Key, instance.StatusDown)
		require.ErrorIs(t, err, fault.Timeout)
		require.Empty(t, b.Census())

		g.set(func() { g.hangs["a"] = false; g.leads = false })
		_, err = a.Deregister(t.Context(), got.Key)
		require.NoError(t, err)
		beats, err = b.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}, {Key: got.Key}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Gone)
		require.ErrorIs(t, beats[1].Err, fault.Gone)
		_, err = b.SetStatus(t.Context(), got.Key, instance.StatusDown)
		require.ErrorIs(t, err, fault.NotFound)
		require.Empty(t, b.Census())

		g.set(func() { g.away["a"] = fault.New("test", fault.Forbidden, "strangers") })
		beats, err = b.Heartbeat(t.Context(), []instances.Ref{{Key: got.Key}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Forbidden)
		require.Empty(t, b.Census())
	})
}

// TestRegisteredWhileAdopted checks that a registration here wins over the
// pending call to the old peer.
func TestRegisteredWhileAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		got := g.desks["a"].register(lasting("x"))
		g.set(func() { g.hangs["a"] = true })
		beaten := make(chan []instances.Beat, 1)
		go func() {
			beats, _ := g.desks["b"].Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
			beaten <- beats
		}()
		time.Sleep(forwardTimeout / 2)
		r := lasting("x")
		r.Spec.Port = 9
		moved := g.desks["b"].register(r)
		beats := <-beaten
		require.Len(t, beats, 1)
		require.NoError(t, beats[0].Err)
		require.Equal(t, moved.Lease, beats[0].Lease)
		g.agree()
		require.Equal(t, 9, g.entries[got.Key].Spec.Port)
	})
}

// stingy answers fewer beats than asked.
type stingy struct{ instances.Registrar }

func (s stingy) At(string) (instances.Registrar, error) { return s, nil }

func (stingy) Heartbeat(context.Context, []instances.Ref) ([]instances.Beat, error) { return nil, nil }

// TestUnfit checks that malformed answers are errors, and that a peer adopts no
// instance it cannot check.
func TestUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		a, b := g.desks["a"], g.desks["b"]
		r := lasting("x")
		r.Spec.Check = &instance.Check{Type: instance.Script, Endpoint: "there"}
		got, err := a.registry.Register(r, time.Now())
		require.NoError(t, err)
		rest()
		g.dies("a")
		beats, err := b.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Invalid)
		require.Empty(t, b.Census())
		b.config.Peers = stingy{}
		beats, err = b.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Internal)
		require.Empty(t, b.Census())
	})
}

// TestDirect checks that calls of peers are never forwarded.
func TestDirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCluster(t, "a", "b")
		got := g.desks["a"].register(lasting("x"))
		d := g.desks["b"].Direct()
		beats, err := d.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}, {Key: got.Key}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.NotFound)
		require.ErrorIs(t, beats[1].Err, fault.NotFound)
		_, err = d.Heartbeat(t.Context(), make([]instances.Ref, instances.MaxBeats+1))
		require.ErrorIs(t, err, fault.Invalid)
		_, err = d.SetStatus(t.Context(), got.Key, instance.StatusDown)
		require.ErrorIs(t, err, fault.NotFound)
		_, err = d.Deregister(t.Context(), got.Key)
		require.ErrorIs(t, err, fault.NotFound)
		_, err = d.Register(t.Context(), lasting("y"))
		require.ErrorIs(t, err, fault.Unsupported)
		require.Zero(t, g.called("a"))
		require.Equal(t, "a", g.holder(got.Key))

		// it waits for the directory no longer than its caller waits for it
		g.set(func() { g.commits = time.Minute })
		began := time.Now()
		_, err = g.desks["b"].SetStatus(t.Context(), got.Key, instance.StatusDown)
		require.NoError(t, err)
		require.Equal(t, forwardTimeout/2, time.Since(began))
		require.Empty(t, g.desks["b"].Census())
	})
}

// TestFormerLeasesAreBounded: the one that was not used for the longest time is forgotten.
func TestFormerLeasesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aliases := newCluster(t, "a").desks["a"].local.aliases
		for n := range maxAliases + 1 {
			aliases.Add(fmt.Sprint(n), web("x").Key)
		}
		require.Equal(t, maxAliases, aliases.Len())
		require.False(t, aliases.Contains("0"))
		require.True(t, aliases.Contains("1"))
	})
}
