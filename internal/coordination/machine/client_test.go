package machine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

func TestCommandsOfAClientAreAppliedOnce(t *testing.T) {
	l := newLog()
	id := l.lease(t, alice)
	opened, _ := l.must(t, &apiv1.OpenClientRequest{})
	send := func(sequence uint64, op proto.Message) (ops.Result, machine.ApplyEffects) {
		return l.send(coordtest.Once(opened.Client, sequence, coordtest.Command(alice, op)))
	}
	first, _ := send(1, lock("db", id))
	again, e := send(1, lock("db", id))
	require.Equal(t, first, again)
	require.Equal(t, uint32(1), again.Lock.Count, "not reentered")
	require.Empty(t, e.Events)

	failed, _ := send(2, unlock("db", id, 999))
	require.ErrorIs(t, failed.Err, fault.NotFound)
	once, _ := send(2, unlock("db", id, first.Lock.Token))
	require.Equal(t, failed, once, "a refusal is a result too")

	l.Machine, _ = machine.Restore(l.Snapshot())
	once, _ = send(2, write(put("a", "", 0)))
	require.Equal(t, failed, once, "over a restore")
	stale, _ := send(1, lock("db", id))
	require.ErrorIs(t, stale.Err, fault.Conflict)
	require.Equal(t, "sequence", fault.FieldOf(stale.Err))
	none, _ := send(0, lock("db", id))
	require.ErrorIs(t, none.Err, fault.Invalid)
}

// The leader chooses the ids of clients and leases at random. Nobody else can guess them, and a client works
// through any peer.
func TestIDsAreTheLeadersChoice(t *testing.T) {
	const random = 1<<63 | 7_000_000
	l := newLog()
	for i := range 3 {
		opened, _ := l.send(chosen(random, coordtest.Command(alice, &apiv1.OpenClientRequest{})))
		require.Equal(t, random+coord.ClientID(i), opened.Client, "a collision takes the next id")
		r, _ := l.send(chosen(random, coordtest.Once(opened.Client, 1, coordtest.Command(bob, &apiv1.LeaseGrantRequest{TtlMs: 5000}))))
		require.NoError(t, r.Err)
		require.Equal(t, coord.LeaseID(7_000_000+i), r.Lease, "63 bits")
	}
	r, _ := l.send(chosen(1<<63-1, coordtest.Command(alice, &apiv1.LeaseGrantRequest{TtlMs: 5000})))
	require.Equal(t, coord.LeaseID(1<<63-1), r.Lease)
	r, _ = l.send(chosen(1<<63-1, coordtest.Command(alice, &apiv1.LeaseGrantRequest{TtlMs: 5000})))
	require.Equal(t, coord.LeaseID(1), r.Lease, "behind the last id follows the first")
}

// chosen is a command with the leader's random choice of an id.
func chosen(random uint64, cmd *coordv1.Command) *coordv1.Command {
	cmd.Random = random
	return cmd
}

// A forgotten client's command may have been applied: the machine refuses it.
func TestForgottenClientsAreRefused(t *testing.T) {
	l := newLog()
	old, _ := l.must(t, &apiv1.OpenClientRequest{})
	busy, _ := l.must(t, &apiv1.OpenClientRequest{})
	l.send(coordtest.Once(busy.Client, 1, coordtest.Command(alice, write(put("a", "", 0)))))
	l.refused(t, fault.Conflict, "term", &coordv1.ClientsExpire{Term: 2, IdleSince: 3})
	r, _ := l.must(t, &coordv1.ClientsExpire{Term: 1, IdleSince: 3})
	require.Equal(t, 1, r.Changed)
	require.Equal(t, 1, l.Clients())
	r, _ = l.send(coordtest.Once(old.Client, 1, coordtest.Command(alice, write(put("b", "", 0)))))
	require.ErrorIs(t, r.Err, fault.NotFound)
	require.Equal(t, "client", fault.FieldOf(r.Err))

	l.refused(t, fault.Invalid, "client", &apiv1.CloseClientRequest{})
	r, _ = l.send(coordtest.Once(busy.Client, 2, coordtest.Command(alice, &apiv1.CloseClientRequest{})))
	require.NoError(t, r.Err)
	require.Zero(t, l.Clients())
}

// A repeated transaction gets its first answer, without keys above the bound on what a client keeps.
func TestLargeResultsAreForgotten(t *testing.T) {
	l := newLog()
	opened, _ := l.must(t, &apiv1.OpenClientRequest{})
	read := &apiv1.TxnRequest{Then: []*apiv1.TxnStep{put("b", "new", 0), nested(&apiv1.TxnBranch{Then: []*apiv1.TxnStep{
		{Step: &apiv1.TxnStep_Range{Range: &apiv1.TxnRange{Key: []byte("a")}}},
	}})}}
	for sequence, size := range []int{100, 5000} {
		l.must(t, write(put("a", strings.Repeat("x", size), 0)))
		cmd := coordtest.Once(opened.Client, uint64(sequence+1), coordtest.Command(alice, read))
		first, _ := l.send(cmd)
		require.Len(t, first.Txn.Steps[1].Steps[0].Keys[0].Value, size)
		require.False(t, first.Txn.Forgotten)
		again, e := l.send(cmd)
		require.Empty(t, e.Events)
		if size == 100 {
			require.Equal(t, first, again)
			continue
		}
		require.True(t, again.Txn.Forgotten)
		within := again.Txn.Steps[1]
		require.Empty(t, within.Steps[0].Keys)
		require.Equal(t, []any{true, 1, true, 1, first.Revision}, []any{again.Txn.Succeeded, again.Changed, within.Succeeded, within.Steps[0].Count, again.Revision})
	}
}
