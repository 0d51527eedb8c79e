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
	l.refused(t, fault.Conflict, "force", &coordv1.Dissolve{Successor: []byte(groupID(1))})
	require.False(t, machine.StandingOf(l.Machine).Over.Over())
}

// A dissolved group gives no token, over a snapshot as well, and names its successor.
func TestDissolvedGroupRefusesEverything(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	l.must(t, lock("db", id[0]))
	l.must(t, lock("db", id[1]))
	_, e := l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7)), Force: true})
	require.Len(t, e.Ended, 2)
	require.Empty(t, e.Grants, "a claim that waits gets no token of a group that ends")
	over := dissolved(t, l)
	require.Equal(t, groupID(7), over.Successor)
	restored, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, over, machine.StandingOf(restored).Over)
	require.Equal(t, l.StateHash(), restored.StateHash())
	for _, op := range every() {
		if _, again := op.(*coordv1.Dissolve); again {
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

// The members of a frozen group may go over once its successor has reached the final revision.
func TestRelease(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)
	l.must(t, lock("db", id[0]))
	l.refused(t, fault.Conflict, "reached", &coordv1.Dissolve{Successor: []byte(groupID(7)), Force: true, Reached: 1})
	require.False(t, machine.StandingOf(l.Machine).Over.Over())
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7)), Force: true})
	over := dissolved(t, l)
	require.False(t, over.Released)
	l.refused(t, fault.Conflict, "reached", &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: int64(over.Final) - 1})
	l.refused(t, fault.Conflict, "successor", &coordv1.Dissolve{Successor: []byte(groupID(8)), Reached: int64(over.Final)})
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7))})
	require.Equal(t, over, dissolved(t, l), "a repeated order changes nothing")
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: int64(over.Final)})
	over.Released = true
	require.Equal(t, over, dissolved(t, l))
	restored, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, over, machine.StandingOf(restored).Over)
}

// A group that gives itself up names the revision of the other one: a later token there is above all of its own.
func TestGivesItselfUpBelowTheOther(t *testing.T) {
	l := newLog()
	l.leases(t, 1)
	l.must(t, write(put("k", "1", 0)))
	l.must(t, write(del(coord.Exactly("k"))))
	l.refused(t, fault.Conflict, "reached", &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: int64(l.Revision()) - 1})
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(7)), Reached: int64(l.Revision())})
	require.True(t, dissolved(t, l).Released)
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

// Every token of the survivor is above the last revision of the group that ends for it.
func TestRaiseRevision(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)
	l.must(t, &coordv1.RaiseRevision{To: 1000})
	r, _ := l.must(t, lock("db", id[0]))
	require.Equal(t, coord.Token(1001), r.Lock.Token)
	l.must(t, &coordv1.RaiseRevision{To: 7})
	require.Equal(t, coord.Revision(1002), l.Revision(), "a revision never falls")
	require.Equal(t, coord.Revision(1002), l.Compacted(), "no watch of the other group goes on in this history")
	for _, to := range []int64{1<<63 - 1, 1 << 52, 1<<41 + 1007} {
		l.refused(t, fault.LimitReached, "to", &coordv1.RaiseRevision{To: to})
	}
	l.refused(t, fault.Invalid, "to", &coordv1.RaiseRevision{To: -1})
	l.refused(t, fault.Conflict, "resume", &coordv1.RaiseRevision{Resume: 3})
}

// A claim that waits has its token already, so it must not hold after the leap. A holder stays.
func TestRaiseRevisionEndsWaiting(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	first, _ := l.must(t, lock("db", id[0]))
	l.must(t, lock("db", id[1]))
	_, e := l.must(t, &coordv1.RaiseRevision{To: 1000})
	require.Len(t, e.Events, 1)
	require.Empty(t, e.Grants)
	require.Equal(t, 1, l.Claims("db"))
	l.must(t, unlock("db", id[0], first.Lock.Token))
	next, _ := l.must(t, lock("db", id[2]))
	require.True(t, next.Lock.Granted)
	require.Greater(t, next.Lock.Token, coord.Token(1000))
	_, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
}

// Only the Dissolve that is in force can be undone: a late copy of the command revives nothing.
func TestResume(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)
	l.must(t, lock("db", id[0]))
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(1)), Force: true})
	first := dissolved(t, l)
	l.refused(t, fault.Unavailable, "group", &coordv1.RaiseRevision{To: 50})
	resume := &coordv1.RaiseRevision{To: 50, Resume: first.Index}
	l.must(t, resume)
	require.False(t, machine.StandingOf(l.Machine).Over.Over())
	require.Equal(t, coord.Revision(50), l.Revision())
	l.leases(t, 1)
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(2)), Force: true})
	l.refused(t, fault.Unavailable, "group", resume)
	require.Equal(t, groupID(2), dissolved(t, l).Successor)
}

// TestTokensAreExactNumbers: after all merges and restores that a group can have, revisions and tokens are below 2^52. A reader
// of JSON that takes numbers for doubles still tells two holders apart.
func TestTokensAreExactNumbers(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	raises := 0
	for err := error(nil); err == nil; raises++ {
		r, _ := l.do(alice, &coordv1.RaiseRevision{To: int64(l.Revision()) + 1<<40})
		err = r.Err
	}
	require.Greater(t, raises, 1000)
	var incarnation uint64
	for err := error(nil); err == nil; incarnation++ {
		r, _ := l.do(alice, &coordv1.BumpIncarnation{Incarnation: incarnation + 1})
		err = r.Err
	}
	require.Greater(t, incarnation, uint64(1), "a restore has a leap of its own")
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
