package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestReadsAlone: a member without a leader answers what may be old from its own state, and nothing else.
func TestReadsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3)
		for i := range w.peers {
			w.start(i, w.listed(3))
		}
		w.await("three voters", func() bool { return len(w.state().Voters) == 3 })
		w.await("a leader", func() bool { return w.leader() >= 0 })
		leader := w.leader()
		left := w.peers[(leader+1)%3]
		_, _, err := ops.Of(left).Do(t.Context(), ops.Command{Owner: left.id(), Op: &ops.Txn{
			Then: []ops.Step{{Put: &ops.Put{Key: "k", Value: []byte("v")}}},
		}})
		require.NoError(t, err)
		ask := coord.Exactly("k").Request(0)
		_, err = coord.Range(t.Context(), left, ask) // it has applied the change now
		require.NoError(t, err)
		require.NoError(t, w.peers[leader].Close())
		require.NoError(t, w.peers[(leader+2)%3].Close())
		time.Sleep(time.Minute)
		_, err = coord.Range(t.Context(), left, ask)
		require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
		ask.Local = true
		got, err := coord.Range(t.Context(), left, ask)
		require.NoError(t, err)
		require.Len(t, got.GetKvs(), 1)
	})
}
