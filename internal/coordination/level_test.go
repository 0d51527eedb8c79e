package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
)

// newCommand returns a command that is new in the later of two versions.
func newCommand() map[string]uint32 { return map[string]uint32{"delete_requirement": 2} }

func version(most uint32) machine.Features {
	return machine.Features{Levels: coord.Levels{Min: 1, Max: most}, Since: newCommand()}
}

// TestRollingUpgrade: peers are upgraded one by one. The group refuses a new command, naming the peer that lacks it,
// until the last member and the last client support it. A peer that goes back then stays out, and says why.
func TestRollingUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 4)
		for i := range w.peers { // three founders and a client
			w.peers[i].features = version(1)
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		command := func(i int) error {
			p := w.peers[i]
			_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: p.id(), Op: &ops.DeleteRequirement{Name: "r"}})
			return err
		}
		asked := 0
		for i, p := range w.peers {
			p.stop(t)
			p.features = version(2)
			w.start(i, w.listed(3))
			w.await("all members again", func() bool {
				return w.leader() >= 0 && len(w.state().Voters) == 3 && w.state().Voters[0].Active && w.state().Voters[1].Active && w.state().Voters[2].Active
			})
			if i == 3 {
				break
			}
			time.Sleep(time.Minute)
			require.EqualValues(t, 1, w.state().Level)
			var old []string
			for _, later := range w.peers[i+1:] {
				old = append(old, later.id())
			}
			if w.leader() > i { // an old leader has nothing newer to offer
				continue
			}
			var held []string
			for _, h := range w.state().HeldBackBy {
				require.Equal(t, coord.Levels{Min: 1, Max: 1}, h.Levels)
				held = append(held, h.Peer)
			}
			require.ElementsMatch(t, old, held)
			err := command(w.leader())
			require.ErrorIs(t, err, fault.Unsupported)
			require.ErrorContains(t, err, "needs feature level 2, the group is at feature level 1; kept down by")
			require.ErrorContains(t, err, old[0]+" (supports 1)")
			asked++
		}
		require.Positive(t, asked)
		w.await("the level", func() bool { return w.state().Level == 2 && len(w.state().HeldBackBy) == 0 })
		require.ErrorIs(t, command(3), fault.NotFound, "it is known now, and there is no such requirement")
	})
}
