package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// A page of locks ends within a lock with many claims, and goes on behind any of them, also behind one that has ended.
func TestLocksInPages(t *testing.T) {
	m := machine.New()
	index := uint64(0)
	apply := func(op proto.Message) ops.Result {
		index++
		r, _ := coordtest.Apply(m, index, 1, coordtest.Command("a", op))
		require.NoError(t, r.Err)
		return r
	}
	var tokens []coord.Token
	var leases []coord.LeaseID
	for i := range 5 {
		lease := coord.LeaseID(i + 1)
		apply(&apiv1.LeaseGrantRequest{Id: int64(lease), TtlMs: 5000})
		leases = append(leases, lease)
		tokens = append(tokens, apply(&apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: int64(lease), Metadata: make([]byte, 1000)}).Lock.Token)
	}
	apply(&apiv1.TryLockRequest{Name: "other", LeaseId: int64(leases[0])})
	shape := func(q machine.LockQuery) (out [][]int) {
		for _, l := range machine.ListLocks(m, q) {
			out = append(out, []int{len(l.Holding), len(l.Waiting), l.LeftOut})
		}
		return out
	}
	require.Equal(t, [][]int{{1, 4, 0}, {1, 0, 0}}, shape(machine.LockQuery{}))
	require.Equal(t, [][]int{{1, 0, 4}}, shape(machine.LockQuery{Bytes: 1}))
	require.Equal(t, [][]int{{1, 1, 3}}, shape(machine.LockQuery{Bytes: 2000}))
	require.Equal(t, [][]int{{1, 0, 0}}, shape(machine.LockQuery{Bytes: 1, After: "db"}))
	require.Equal(t, [][]int{{0, 2, 1}}, shape(machine.LockQuery{Name: "db", Bytes: 2000, AfterToken: tokens[1]}))
	require.Equal(t, [][]int{{0, 0, 0}}, shape(machine.LockQuery{Name: "db", AfterToken: tokens[4]}))
	apply(&coordv1.Cancel{Name: "db", Lease: int64(leases[1]), Token: int64(tokens[1])})
	require.Equal(t, [][]int{{0, 3, 0}}, shape(machine.LockQuery{Name: "db", AfterToken: tokens[1]}))
	require.Empty(t, shape(machine.LockQuery{Name: "none"}))
}
