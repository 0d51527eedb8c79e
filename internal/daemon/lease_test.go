package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestLeaseWorksAtEveryPeer: a client loses its peer and goes on at another one, with its lock and its token.
func TestLeaseWorksAtEveryPeer(t *testing.T) {
	if testing.Short() {
		t.Skip("whole peers on loopback")
	}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	var founders []string
	for _, dir := range dirs {
		id, err := Identity(dir)
		require.NoError(t, err)
		founders = append(founders, id)
	}
	a := startFounder(t, dirs[0], founders)
	b := startFounder(t, dirs[1], founders, a.addr)
	startFounder(t, dirs[2], founders, a.addr)
	until(t, "three voters", func() bool {
		g, err := b.Coordination().Group(t.Context())
		return err == nil && len(g.Voters) == 3 && g.Missing == ""
	})

	lease, _, err := a.Locks().Grant(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Greater(t, lease, client.LeaseID(1<<32), "random")
	held, _, err := ops.Of(a.Coordination()).Do(t.Context(), ops.Command{Op: &ops.Lock{Name: "db", Lease: coord.LeaseID(lease)}})
	require.NoError(t, err)
	requireHidden(t, b, coord.LeaseID(lease))
	requirePeersOutOfReach(t, b)
	a.stop()

	until(t, "another leader", func() bool {
		_, err := b.Locks().Renew(t.Context(), lease)
		return err == nil
	})
	locks, _, err := ops.Of(b.Coordination()).Locks(t.Context(), ops.LockQuery{Name: "db"})
	require.NoError(t, err)
	require.Equal(t, held.Lock.Token, locks[0].Holding[0].Token)
	_, _, err = ops.Of(b.Coordination()).Do(t.Context(), ops.Command{Op: &ops.Unlock{Name: "db", Lease: coord.LeaseID(lease), Token: held.Lock.Token}})
	require.NoError(t, err)
	require.NoError(t, b.Locks().Revoke(t.Context(), lease))
}

// requireHidden expects that no answer at a peer tells the id of a lease.
func requireHidden(t *testing.T, p *peerUnderTest, lease coord.LeaseID) {
	t.Helper()
	leases, _, err := ops.Of(p.Coordination()).Leases(t.Context(), ops.LeaseQuery{})
	require.NoError(t, err)
	require.Len(t, leases, 1)
	require.Equal(t, coord.HiddenLease, leases[0].ID)
	require.Equal(t, lease.Tag(), leases[0].Tag)
	require.Equal(t, "daemon.test", leases[0].Application)
	locks, _, err := ops.Of(p.Coordination()).Locks(t.Context(), ops.LockQuery{Name: "db"})
	require.NoError(t, err)
	require.Equal(t, coord.HiddenLease, locks[0].Holding[0].Lease)
	require.Equal(t, "daemon.test", locks[0].Holding[0].Application)
	page, _, err := ops.Of(p.Coordination()).Range(t.Context(), ops.Query{}, ops.Linearizable)
	require.NoError(t, err)
	for _, kv := range page.Keys {
		require.LessOrEqual(t, kv.Lease, coord.LeaseID(0), kv.Key)
	}
}

// requirePeersOutOfReach expects that no call at a peer reaches the leases of peers.
func requirePeersOutOfReach(t *testing.T, p *peerUnderTest) {
	t.Helper()
	all, _, err := ops.Of(p.parts.coordination.plane).Leases(t.Context(), ops.LeaseQuery{})
	require.NoError(t, err)
	peers := 0
	for _, l := range all {
		if principals.IsAnonymous(l.Owner) {
			continue
		}
		peers++
		_, err = p.Locks().Renew(t.Context(), client.LeaseID(l.ID))
		require.ErrorIs(t, err, fault.NotFound)
		_, _, err = ops.Of(p.Coordination()).Leases(t.Context(), ops.LeaseQuery{ID: l.ID})
		require.ErrorIs(t, err, fault.NotFound)
		require.ErrorIs(t, p.Locks().Revoke(t.Context(), client.LeaseID(l.ID)), fault.Forbidden)
		_, _, err = ops.Of(p.Coordination()).Do(t.Context(), ops.Command{Op: &ops.Lock{Name: "x", Lease: l.ID}})
		require.ErrorIs(t, err, fault.Forbidden)
	}
	require.Positive(t, peers, "with agents, peers have leases")
}
