package machine_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// dissolved returns the end of a group that still has the revision and whatever else the test gave it.
func dissolved(t *testing.T, l *log) machine.Dissolution {
	t.Helper()
	over := machine.StandingOf(l.Machine).Over
	require.True(t, over.Over())
	require.Equal(t, l.Revision(), over.Final)
	return over
}

// A peer's own lease and entries, and the decisions on members, are no user data; a lock, a caller's lease and a key are.
func TestUserData(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	l.must(t, &apiv1.PublishInstancesRequest{LeaseId: int64(id[0]), Generation: 1, Puts: []*apiv1.DirectoryEntry{entry("n", "s", "a", 1)}})
	r, _ := l.do("", write(put(coord.MembersPrefix+alice, "wanted", 0)))
	require.NoError(t, r.Err)
	require.False(t, machine.StandingOf(l.Machine).UserData.Any())
	callers := []coord.LeaseID{l.lease(t, "@app"), l.lease(t, "~"+alice)}
	require.Equal(t, machine.UserData{Leases: 2}, machine.StandingOf(l.Machine).UserData)
	r, _ = l.do("@app", &apiv1.LeaseRevokeRequest{Id: int64(callers[0])})
	require.NoError(t, r.Err)
	l.must(t, lock("db", id[0]))
	l.must(t, write(put("bound", "1", id[0]), put("free", "1", 0)))
	require.Equal(t, machine.UserData{Locks: 1, Leases: 1, Keys: 2}, machine.StandingOf(l.Machine).UserData)
	l.refused(t, fault.Conflict, "group", &coordv1.Dissolve{Successor: []byte(groupID(1)), Reached: 1 << 40})
	require.False(t, machine.StandingOf(l.Machine).Over.Over())
}

// A peer's ledger is written by that peer alone.
func TestLedgersBelongToTheirPeers(t *testing.T) {
	l := newLog()
	key := coord.LedgersPrefix + alice
	r, _ := l.do(alice, write(put(key, "1", 0)))
	require.NoError(t, r.Err)
	for _, other := range []string{bob, "@app", "~" + alice, ""} {
		l.refusedTo(t, other, write(put(key, "2", 0)), fault.Conflict, "then[0].key")
	}
	l.refused(t, fault.Conflict, "then[0].delete", write(del(coord.Span{From: "", To: ""})))
	l.refused(t, fault.Conflict, "name", lock(key, l.lease(t, alice)))
}

// A group ends only for one that gives no token up to its own revision.
func TestGivesItselfUpBelowTheOther(t *testing.T) {
	l := newLog()
	l.leases(t, 1)
	l.must(t, write(put("k", "1", 0)))
	l.must(t, write(del(coord.Exactly("k"))))
	for _, reached := range []int64{0, int64(l.Revision()) - 1} {
		l.refused(t, fault.Conflict, "reached", &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: reached})
	}
	l.refused(t, fault.Invalid, "successor", &coordv1.Dissolve{Successor: []byte("x"), Reached: int64(l.Revision())})
	require.False(t, machine.StandingOf(l.Machine).Over.Over())
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: int64(l.Revision())})
	dissolved(t, l)
}

// A dissolved group gives no token, over a snapshot as well, and names its successor.
func TestDissolvedGroupRefusesEverything(t *testing.T) {
	l := newLog()
	l.leases(t, 2)
	_, e := l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: int64(l.Revision())})
	require.Len(t, e.Ended, 2)
	over := dissolved(t, l)
	require.Equal(t, groupID(7), over.Successor)
	restored, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, over, machine.StandingOf(restored).Over)
	require.Equal(t, l.StateHash(), restored.StateHash())
	for _, op := range every() {
		if _, restores := op.(*coordv1.BumpIncarnation); restores {
			continue
		}
		index, term := restored.Index()
		r, e := coordtest.Apply(restored, index+1, term, coordtest.Command("", op))
		require.ErrorIs(t, r.Err, fault.Unavailable, "%T", op)
		require.Contains(t, fault.Message(r.Err), groupID(7).String())
		require.Empty(t, e.Events)
		require.Equal(t, over, machine.StandingOf(restored).Over, "%T", op)
	}
}

// A restored backup of a group that gave itself up lives, above all that its successor may have given out.
func TestRestoredGroupLives(t *testing.T) {
	l := newLog()
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: 9})
	over := dissolved(t, l)
	l.must(t, &coordv1.BumpIncarnation{Incarnation: 1})
	require.False(t, machine.StandingOf(l.Machine).Over.Over())
	require.Equal(t, over.Final+1<<40, l.Revision())
	_, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
}

// A claim that waits will hold with a token of before, so a group with one has not reached its revision.
func TestReached(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	l.must(t, lock("db", id[0]))
	require.Equal(t, l.Revision(), machine.StandingOf(l.Machine).Reached)
	before := l.Revision()
	l.must(t, lock("db", id[1]))
	l.must(t, write(put("k", "1", 0)))
	require.Equal(t, before, machine.StandingOf(l.Machine).Reached)
}

// A claim that waits has its token already, so it must not hold after the leap. A holder stays.
func TestLeapEndsWaiting(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	first, _ := l.must(t, lock("db", id[0]))
	l.must(t, lock("db", id[1]))
	before := l.Revision()
	_, e := l.must(t, &coordv1.BumpIncarnation{Incarnation: 1})
	require.Len(t, e.Events, 1)
	require.Empty(t, e.Grants)
	require.Equal(t, 1, l.Claims("db"))
	require.Greater(t, l.Compacted(), before, "no watch of before goes on in this history")
	l.must(t, unlock("db", id[0], first.Lock.Token))
	next, _ := l.must(t, lock("db", id[2]))
	require.True(t, next.Lock.Granted)
	require.Greater(t, next.Lock.Token, coord.Token(before+1<<40))
	_, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
}

// TestTokensAreExactNumbers: after all restores that a group can have, revisions and tokens are below 2^52. A reader
// of JSON that takes numbers for doubles still tells two holders apart.
func TestTokensAreExactNumbers(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	var incarnation uint64
	for err := error(nil); err == nil; incarnation++ {
		r, _ := l.do(alice, &coordv1.BumpIncarnation{Incarnation: incarnation + 1})
		err = r.Err
	}
	require.Greater(t, incarnation, uint64(1000))
	first, _ := l.must(t, lock("db", id[0]))
	next, _ := l.must(t, lock("pool", id[1]))
	require.Less(t, next.Lock.Token, coord.Token(1<<52))
	require.Greater(t, float64(next.Lock.Token), float64(first.Lock.Token))
	var text any
	b, err := json.Marshal(next.Lock.Token)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &text))
	require.Equal(t, next.Lock.Token, coord.Token(text.(float64)), "read back as a double")
	_, err = machine.Restore(l.Snapshot())
	require.NoError(t, err)
}
