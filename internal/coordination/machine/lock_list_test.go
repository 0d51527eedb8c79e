package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
)

// A page of locks ends within a lock with many claims, and goes on behind any of them, also behind one that has ended.
func TestLocksInPages(t *testing.T) {
	m := machine.New()
	index := uint64(0)
	apply := func(op coord.Op) coord.Result {
		index++
		r, _ := m.Apply(index, 1, message(coord.Command{Owner: "a", Op: op}))
		require.NoError(t, r.Err)
		return r
	}
	var tokens []coord.Token
	var leases []coord.LeaseID
	for i := range 5 {
		lease := coord.LeaseID(i + 1)
		apply(&coord.LeaseGrant{ID: lease, TTL: 5000})
		leases = append(leases, lease)
		tokens = append(tokens, apply(&coord.Lock{Name: "db", Lease: lease, Wait: true, Metadata: make([]byte, 1000)}).Lock.Token)
	}
	apply(&coord.Lock{Name: "other", Lease: leases[0]})
	shape := func(q coord.LockQuery) (out [][]int) {
		for _, l := range machine.ListLocks(m, q) {
			out = append(out, []int{len(l.Holding), len(l.Waiting), l.LeftOut})
		}
		return out
	}
	require.Equal(t, [][]int{{1, 4, 0}, {1, 0, 0}}, shape(coord.LockQuery{}))
	require.Equal(t, [][]int{{1, 0, 4}}, shape(coord.LockQuery{Bytes: 1}))
	require.Equal(t, [][]int{{1, 1, 3}}, shape(coord.LockQuery{Bytes: 2000}))
	require.Equal(t, [][]int{{1, 0, 0}}, shape(coord.LockQuery{Bytes: 1, After: "db"}))
	require.Equal(t, [][]int{{0, 2, 1}}, shape(coord.LockQuery{Name: "db", Bytes: 2000, AfterToken: tokens[1]}))
	require.Equal(t, [][]int{{0, 0, 0}}, shape(coord.LockQuery{Name: "db", AfterToken: tokens[4]}))
	apply(&coord.Cancel{Name: "db", Lease: leases[1], Token: tokens[1]})
	require.Equal(t, [][]int{{0, 3, 0}}, shape(coord.LockQuery{Name: "db", AfterToken: tokens[1]}))
	require.Empty(t, shape(coord.LockQuery{Name: "none"}))
}
