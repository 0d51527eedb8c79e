package machine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestCommandsOfAClientAreAppliedOnce(t *testing.T) {
	l := newLog()
	id := l.lease(t, alice)
	opened, _ := l.must(t, &coord.ClientOpen{})
	send := func(sequence uint64, op coord.Op) (coord.Result, machine.ApplyEffects) {
		return l.send(coord.Command{Client: opened.Client, Sequence: sequence, Owner: alice, Op: op})
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
		opened, _ := l.send(coord.Command{Owner: alice, Random: random, Op: &coord.ClientOpen{}})
		require.Equal(t, random+coord.ClientID(i), opened.Client, "a collision takes the next id")
		r, _ := l.send(coord.Command{Client: opened.Client, Sequence: 1, Owner: bob, Random: random, Op: &coord.LeaseGrant{TTL: 5000}})
		require.NoError(t, r.Err)
		require.Equal(t, coord.LeaseID(7_000_000+i), r.Lease, "63 bits")
	}
	r, _ := l.send(coord.Command{Owner: alice, Random: 1<<63 - 1, Op: &coord.LeaseGrant{TTL: 5000}})
	require.Equal(t, coord.LeaseID(1<<63-1), r.Lease)
	r, _ = l.send(coord.Command{Owner: alice, Random: 1<<63 - 1, Op: &coord.LeaseGrant{TTL: 5000}})
	require.Equal(t, coord.LeaseID(1), r.Lease, "behind the last id follows the first")
}

// A forgotten client's command may have been applied: the machine refuses it.
func TestForgottenClientsAreRefused(t *testing.T) {
	l := newLog()
	old, _ := l.must(t, &coord.ClientOpen{})
	busy, _ := l.must(t, &coord.ClientOpen{})
	l.send(coord.Command{Client: busy.Client, Sequence: 1, Owner: alice, Op: write(put("a", "", 0))})
	l.refused(t, fault.Conflict, "term", &coord.ClientsExpire{Term: 2, IdleSince: 3})
	r, _ := l.must(t, &coord.ClientsExpire{Term: 1, IdleSince: 3})
	require.Equal(t, 1, r.Changed)
	require.Equal(t, 1, l.Clients())
	r, _ = l.send(coord.Command{Client: old.Client, Sequence: 1, Owner: alice, Op: write(put("b", "", 0))})
	require.ErrorIs(t, r.Err, fault.NotFound)
	require.Equal(t, "client", fault.FieldOf(r.Err))

	l.refused(t, fault.Invalid, "client", &coord.ClientClose{})
	r, _ = l.send(coord.Command{Client: busy.Client, Sequence: 2, Owner: alice, Op: &coord.ClientClose{}})
	require.NoError(t, r.Err)
	require.Zero(t, l.Clients())
}

// A repeated transaction gets its first answer, without keys above the bound on what a client keeps.
func TestLargeResultsAreForgotten(t *testing.T) {
	l := newLog()
	opened, _ := l.must(t, &coord.ClientOpen{})
	read := &coord.Txn{Then: []coord.Step{put("b", "new", 0), {Read: &coord.Read{Query: coord.Query{Span: coord.Exactly("a")}}}}}
	for sequence, size := range []int{100, 5000} {
		l.must(t, write(put("a", strings.Repeat("x", size), 0)))
		cmd := coord.Command{Client: opened.Client, Sequence: uint64(sequence + 1), Owner: alice, Op: read}
		first, _ := l.send(cmd)
		require.Len(t, first.Txn.Steps[1].Keys[0].Value, size)
		require.False(t, first.Txn.Forgotten)
		again, e := l.send(cmd)
		require.Empty(t, e.Events)
		if size == 100 {
			require.Equal(t, first, again)
			continue
		}
		require.True(t, again.Txn.Forgotten)
		require.Empty(t, again.Txn.Steps[1].Keys)
		require.Equal(t, []any{true, 1, 1, first.Revision}, []any{again.Txn.Succeeded, again.Changed, again.Txn.Steps[1].Count, again.Revision})
	}
}
