package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
)

// flip changes one bit of a value in the memory of one member.
func (p *node) flip(t *testing.T, key string) {
	t.Helper()
	page, _, err := ops.Of(p).Range(t.Context(), ops.Query{Span: coord.Exactly(key)}, ops.Local)
	require.NoError(t, err)
	require.Len(t, page.Keys, 1)
	page.Keys[0].Value[0] ^= 1
}

// flippable starts n members that all have the key "k".
func flippable(t *testing.T, n int) *testCluster {
	w := startCluster(t, n, n)
	w.await("all vote", func() bool { return len(w.state().Voters) == n })
	_, _, err := ops.Of(w.peers[0]).Do(t.Context(), ops.Command{Owner: w.peers[0].id(), Op: &ops.Txn{
		Then: []ops.Step{{Put: &ops.Put{Key: "k", Value: []byte("v")}}},
	}})
	require.NoError(t, err)
	for _, p := range w.peers {
		w.await("every member has it", func() bool {
			page, _, err := ops.Of(p).Range(t.Context(), ops.Query{Span: coord.Exactly("k")}, ops.Local)
			return err == nil && len(page.Keys) == 1
		})
	}
	return w
}

// TestFlippedBit: a member whose state differs from that of the majority stops, leader or not. The others go on, and the
// member comes back as a new one without its disk.
func TestFlippedBit(t *testing.T) {
	for name, leads := range map[string]bool{"of a follower": false, "of the leader": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := flippable(t, 3)
				i := w.leader()
				if !leads {
					i = (i + 1) % 3
				}
				victim := w.peers[i]
				victim.flip(t, "k")
				time.Sleep(3 * time.Minute)
				for _, p := range w.peers {
					if p == victim {
						require.Equal(t, "stopped", w.phase(p))
						require.Equal(t, []string{"member_stopped"}, p.conditions.ActiveNames())
						require.Contains(t, p.conditions.Active()[0].String(), "Stop this peer, remove data/raft")
					} else {
						require.Equal(t, "member", w.phase(p))
						require.Equal(t, []string{"no_reserve"}, p.conditions.ActiveNames())
					}
				}
				page, _, err := ops.Of(victim).Range(t.Context(), ops.Query{Span: coord.Exactly("k")}, ops.Linearizable)
				require.NoError(t, err, "as a client of the others")
				require.Equal(t, "v", string(page.Keys[0].Value))

				victim.stop(t)
				require.NoError(t, victim.fs.RemoveAll("data/raft"))
				w.start(i, w.listed(3))
				w.await("it is a member again", func() bool { return w.phase(victim) == "member" })
				time.Sleep(3 * time.Minute)
				require.Equal(t, "member", w.phase(victim))
			})
		})
	}
}

// TestFlippedBitOfTwo: without a majority nobody knows which state is right. Nobody stops, and the leader says so.
func TestFlippedBitOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := flippable(t, 2)
		w.peers[0].flip(t, "k")
		time.Sleep(3 * time.Minute)
		require.Equal(t, []string{"states_differ"}, w.peers[w.leader()].conditions.ActiveNames())
		for _, p := range w.peers {
			require.Equal(t, "member", w.phase(p))
		}
	})
}

// TestEqualStates: members with equal states go on. The absence and the return of one of them change nothing.
func TestEqualStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := flippable(t, 3)
		i := (w.leader() + 1) % 3
		away := w.peers[i]
		away.stop(t)
		time.Sleep(3 * time.Minute)
		w.start(i, w.listed(3))
		w.await("it is a member again", func() bool { return w.phase(away) == "member" })
		time.Sleep(3 * time.Minute)
		for _, p := range w.peers {
			require.Equal(t, "member", w.phase(p))
			require.Empty(t, p.conditions.ActiveNames())
		}
	})
}
