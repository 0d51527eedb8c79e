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

// TestLimitsOfTheLeader: limits set at the leader become the group's; others keep their values.
func TestLimitsOfTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3)
		for i, p := range w.peers {
			p.limits = func(l coord.Limits) coord.Limits {
				l.PerOwner.Leases = 2
				return l
			}
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		time.Sleep(time.Second)
		client := w.peers[(w.leader()+1)%3]
		var last coord.LeaseID
		grant := func() error {
			r, _, err := ops.Of(client).Do(t.Context(), ops.Command{Owner: client.id(), Op: &ops.LeaseGrant{TTL: 60_000}})
			if err == nil {
				last = r.Lease
			}
			return err
		}
		require.NoError(t, grant())
		require.NoError(t, grant())
		err := grant()
		require.ErrorIs(t, err, fault.PoolExhausted)
		require.Equal(t, "pool.leases.share", fault.FieldOf(err))

		for _, p := range w.peers {
			p.stop(t)
		}
		for i, p := range w.peers {
			p.limits = func(l coord.Limits) coord.Limits {
				l.PerOwner.Claims = 0 // useless limits
				l.PerOwner.Leases = 100
				return l
			}
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		time.Sleep(5 * time.Second)
		require.ErrorIs(t, grant(), fault.PoolExhausted, "limits of no use are refused as a whole")
		_, _, err = ops.Of(client).Do(t.Context(), ops.Command{Owner: client.id(), Op: &ops.LeaseRevoke{ID: last}})
		require.NoError(t, err)
		require.NoError(t, grant())
	})
}
