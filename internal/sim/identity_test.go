package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/platform/condition"
)

// twinRefresh is the refresh interval of the twins: hours of simulation cost minutes.
const twinRefresh = 10 * time.Minute

// twins is a network with two machines of one identity.
type twins struct {
	*cluster
	others []*simPeer
	a, b   *simPeer
}

func newTwins(t *testing.T, others int) *twins {
	w := newCluster(t, Params{Peers: others + 2, Seed: 1, RTT: 20 * time.Millisecond})
	return &twins{cluster: w, others: w.join(others)}
}

// machine starts a machine with the common identity.
func (w *twins) machine(i int, disk vfs.FS) *simPeer {
	at := newPlace(address(50+i), keyOf(w.params.Seed, 50))
	at.disk, at.refresh = disk, twinRefresh
	p, err := startPeer(w.wire, at, w.doors(), 0)
	require.NoError(w.t, err)
	w.peers = append(w.peers, p)
	time.Sleep(settling)
	return p
}

func (w *twins) both() {
	w.a = w.machine(0, vfs.NewMem())
	w.b = w.machine(1, vfs.NewMem())
}

func (w *twins) offer(p *simPeer, id, name string) {
	o := offerOf(id)
	o.Metadata.Name = name
	_, err := p.discovery.Register(context.Background(), o)
	require.NoError(w.t, err)
}

// names returns the names of the live records of a peer's answer, by id.
func (w *twins) names(p *simPeer) map[string]string {
	a, err := p.discovery.Query(w.t.Context(), anyDatabase())
	require.NoError(w.t, err)
	names := make(map[string]string)
	for _, r := range a.Results {
		names[r.Record.Name().ID] = r.Record.Service().GetMetadata().GetName()
	}
	return names
}

func noticed(p *simPeer) bool {
	for _, c := range p.conditions.Active() {
		if c.Name == condition.IdentityInUse {
			return p.errors.n.Load() == 1
		}
	}
	return false
}

// Updated at one machine and withdrawn at the other: the withdrawal wins everywhere and stays, while refreshes of
// both machines pass.
func TestTwinsDoNotResurrect(t *testing.T) {
	for name, others := range map[string]int{"small network": 1, "keepers only": 21} {
		t.Run(name, func(t *testing.T) {
			if others > 1 {
				long(t)
			}
			synctest.Test(t, func(t *testing.T) {
				w := newTwins(t, others)
				w.both()
				w.offer(w.a, "both", "a1")
				w.offer(w.b, "both", "b1")
				_, err := w.a.discovery.Update(t.Context(), offerOf("both"))
				require.NoError(t, err)
				_, err = w.b.discovery.Withdraw(t.Context(), "both")
				require.NoError(t, err)
				for range 8 {
					time.Sleep(2 * time.Minute)
					for _, p := range w.others[:1] {
						require.NotContains(t, w.names(p), "both")
					}
				}
				require.True(t, noticed(w.a), "its refresh is due")
				require.NotContains(t, w.names(w.a), "both", "its own answers too")
				receipt, err := w.a.discovery.Register(t.Context(), offerOf("later"))
				require.NoError(t, err)
				require.Len(t, receipt.Warnings, 1)
				require.Contains(t, receipt.Warnings[0], "another machine uses its identity")
			})
		})
	}
}

// The machine with the older version notices, whichever it is, within a refresh.
func TestEitherTwinNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTwins(t, 1)
		w.both()
		w.offer(w.a, "x", "a")
		w.offer(w.b, "x", "b")
		w.offer(w.b, "y", "b")
		w.offer(w.a, "y", "a")
		time.Sleep(2 * twinRefresh)
		require.True(t, noticed(w.a))
		require.True(t, noticed(w.b))
		require.Equal(t, map[string]string{"x": "b", "y": "a"}, w.names(w.others[0]))
		time.Sleep(4 * twinRefresh)
		require.Empty(t, w.names(w.others[0]), "neither renews any more")
	})
}

// A data directory from a backup: nothing withdrawn comes back, and the operator can make it valid again.
func TestRestoredDirectory(t *testing.T) {
	for _, away := range []time.Duration{time.Minute, 15 * time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTwins(t, 3)
				disk := vfs.NewCrashableMem()
				a := w.machine(0, disk)
				w.offer(a, "kept", "old")
				w.offer(a, "gone", "old")
				time.Sleep(time.Minute)
				backup := disk.CrashClone(vfs.CrashCloneCfg{})
				o := offerOf("kept")
				o.Metadata.Name = "new"
				_, err := a.discovery.Update(t.Context(), o)
				require.NoError(t, err)
				_, err = a.discovery.Withdraw(t.Context(), "gone")
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.NoError(t, a.close())
				time.Sleep(away)

				restored := w.machine(0, backup)
				time.Sleep(time.Minute)
				require.True(t, noticed(restored))
				for _, p := range append(w.others, restored) {
					require.Equal(t, map[string]string{"kept": "new"}, w.names(p), "what the network knows is newer")
				}
				require.NoError(t, restored.close())

				n, err := offers.Reclaim(offers.Config{Network: networkName, Dir: "registry", FS: backup, Key: restored.key}, time.Now())
				require.NoError(t, err)
				require.Equal(t, 2, n)
				reclaimed := w.machine(0, backup)
				time.Sleep(time.Minute)
				require.False(t, noticed(reclaimed))
				require.Zero(t, reclaimed.errors.n.Load())
				for _, p := range append(w.others, reclaimed) {
					require.Equal(t, map[string]string{"kept": "old", "gone": "old"}, w.names(p), "the operator decided")
				}
			})
		})
	}
}
