package keeper

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/condition"
)

// All peers of a network restart. Each compares within seconds of the last contact. Meanwhile, from the end of the grace on, it says
// that it joins, and so a peer that says nothing then will not say it later.
func TestRestartOfAll(t *testing.T) {
	for _, gap := range []time.Duration{0, 300 * time.Millisecond, 2 * time.Second} { // between two starts
		for _, known := range []bool{true, false} { // the tables name peers that are not up yet
			t.Run(fmt.Sprint(gap, known), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newLimitedCluster(t, 8, protocol.Limits{})
					defer w.close()
					time.Sleep(time.Minute)
					everybody := slices.Clone(w.dht.peers)
					for _, n := range w.nodes {
						require.NoError(t, n.Close())
						w.hosts.Delete(n.Self)
					}
					told := make([]*condition.Set, len(w.nodes))
					began := make([]time.Time, len(w.nodes))
					for i, n := range w.nodes {
						w.hosts.Store(n.Self, n.host)
						w.dht.edit(func() {
							if w.dht.failure = nil; i == 0 {
								w.dht.failure = errLookup // a lookup fails, so that the first peer does not think that it is alone
							}
							if w.dht.peers = everybody; !known {
								w.dht.peers = slices.Clone(everybody[:i+1])
							}
							w.dht.fire()
						})
						told[i], began[i] = condition.NewSet(slog.New(slog.DiscardHandler), time.Now), time.Now()
						w.nodes[i] = w.start(n.host, protocol.Limits{}, told[i])
						time.Sleep(gap)
					}
					joined := make([]time.Duration, len(w.nodes))
					for start := time.Now(); slices.Min(joined) == 0; time.Sleep(100 * time.Millisecond) {
						require.Less(t, time.Since(start), 15*time.Second, joined)
						for i, n := range w.nodes {
							synctest.Wait()
							if knows := n.sync.Know.Knows.Load(); knows && joined[i] == 0 {
								joined[i] = time.Since(start) + 1
							}
							if time.Since(began[i]) > keep.JoiningGrace+2*time.Second {
								require.Equal(t, joined[i] == 0, slices.Contains(told[i].ActiveNames(), string(condition.Joining)),
									"%v after the start of peer %d", time.Since(began[i]), i)
							}
						}
					}
					t.Log(joined)
				})
			})
		}
	}
}

// All peers of a network restart beside strangers in their tables. Those that are no keepers delay nobody. Mute ones delay the first complete
// answers for a minute and a round, also if they come with a new identity each time.
func TestRestartAmongStrangers(t *testing.T) {
	for name, most := range map[string]time.Duration{"no keepers": 15 * time.Second, "mute": 90 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newLimitedCluster(t, 0, protocol.Limits{})
				defer w.close()
				strange := func(n int) {
					w.dht.edit(func() {
						w.dht.peers = slices.DeleteFunc(w.dht.peers, func(id peer.ID) bool { return strings.HasPrefix(string(id), "stranger") })
						for i := range 2 + n%2 { // routers notice another size
							id := peer.ID(fmt.Sprint("stranger ", n, i))
							h := &lightHost{id: id, hosts: w.hosts, addr: ma.StringCast("/ip4/127.0.0.1/udp/1/quic-v1")}
							if name == "mute" {
								h.SetStreamHandler("", func(s network.Stream) { _, _ = io.Copy(io.Discard, s) })
							}
							w.hosts.Store(id, h)
							w.dht.peers = append(w.dht.peers, id)
						}
						w.dht.fire()
					})
				}
				strange(0)
				for i := range 5 {
					w.join(peer.ID(fmt.Sprint("honest ", i)), protocol.Limits{})
				}
				for start := time.Now(); slices.ContainsFunc(w.nodes, func(n *lightNode) bool { return !n.sync.Know.Knows.Load() }); {
					require.Less(t, time.Since(start), most)
					time.Sleep(time.Second)
					if past := int(time.Since(start).Seconds()); name == "mute" && past%9 == 0 {
						strange(past)
					}
				}
			})
		})
	}
}

// A peer that was no keeper for a while, and becomes one again, compares with those that gave no answer before.
func TestKeeperAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLimitedCluster(t, 1, protocol.Limits{})
		defer w.close()
		a, b := w.nodes[0], w.join("asks nobody", protocol.Limits{Sync: -1})
		time.Sleep(time.Minute)
		w.hosts.lose(func(_, _ peer.ID) bool { return true })
		time.Sleep(2 * time.Minute)
		require.True(t, a.sync.Know.Silent(b.Self))
		serves := func(clients ...peer.ID) {
			w.dht.edit(func() {
				w.dht.clients = clients
				w.dht.fire()
			})
		}
		serves(a.Self)
		time.Sleep(time.Minute)
		w.hosts.lose(func(_, _ peer.ID) bool { return false })
		serves()
		time.Sleep(10 * time.Second)
		require.False(t, a.sync.Know.Silent(b.Self))
	})
}
