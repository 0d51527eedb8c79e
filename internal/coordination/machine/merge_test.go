package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// dissolved returns the end of a group that still has the revision and whatever else the test gave it.
func dissolved(t *testing.T, l *log) coord.Dissolution {
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
	require.Equal(t, coord.UserData{Leases: 2}, machine.StandingOf(l.Machine).UserData)
	r, _ = l.do("@app", &apiv1.LeaseRevokeRequest{Id: int64(callers[0])})
	require.NoError(t, r.Err)
	l.must(t, lock("db", id[0]))
	l.must(t, write(put("bound", "1", id[0]), put("free", "1", 0)))
	require.Equal(t, coord.UserData{Locks: 1, Leases: 1, Keys: 2}, machine.StandingOf(l.Machine).UserData)
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
		index, term := restored.Index()
		r, e := restored.Apply(index+1, term, coordtest.Command("", op))
		require.ErrorIs(t, r.Err, fault.Unavailable, "%T", op)
		require.Contains(t, fault.Message(r.Err), groupID(7).String())
		require.Empty(t, e.Events)
		require.Equal(t, over, machine.StandingOf(restored).Over, "%T", op)
	}
}

// Every token of the survivor is above the last revision of the group that it took over.
func TestRaiseRevision(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)
	l.must(t, &coordv1.RaiseRevision{To: 1000, Absorbed: [][]byte{[]byte(groupID(1))}})
	r, _ := l.must(t, lock("db", id[0]))
	require.Equal(t, coord.Token(1001), r.Lock.Token)
	l.leases(t, 1)
	l.must(t, &coordv1.RaiseRevision{To: 7, Absorbed: [][]byte{[]byte(groupID(1))}})
	require.Equal(t, coord.Revision(1001), l.Revision(), "a revision never falls")
	require.Equal(t, coord.Revision(1000), l.Compacted(), "a repeated raise compacts nothing")
	l.must(t, &coordv1.RaiseRevision{To: 7, Absorbed: [][]byte{[]byte(groupID(1)), []byte(groupID(2))}})
	require.Equal(t, coord.Revision(1002), l.Compacted(), "no watch of the other group goes on in this history")
	require.Equal(t, []coord.GroupID{groupID(1), groupID(2)}, machine.StandingOf(l.Machine).Absorbed)
	l.refused(t, fault.Conflict, "successor", &coordv1.Dissolve{Successor: []byte(groupID(2)), Force: true})
	restored, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, machine.StandingOf(l.Machine).Absorbed, machine.StandingOf(restored).Absorbed)
	l.refused(t, fault.LimitReached, "to", &coordv1.RaiseRevision{To: int64(1<<63 - 1)})
	l.refused(t, fault.Invalid, "to", &coordv1.RaiseRevision{To: -1})
	l.refused(t, fault.Invalid, "absorbed", &coordv1.RaiseRevision{Absorbed: [][]byte{[]byte("short")}})
	l.refused(t, fault.Conflict, "resume", &coordv1.RaiseRevision{Resume: 3})
}

// A claim that waits has its token already, so it must not hold after the leap. A holder stays.
func TestRaiseRevisionEndsWaiting(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	first, _ := l.must(t, lock("db", id[0]))
	l.must(t, lock("db", id[1]))
	l.must(t, &coordv1.RaiseRevision{To: 2})
	require.Equal(t, 2, l.Claims("db"), "no leap, no harm")
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

func TestAbsorbedGroupsAreBounded(t *testing.T) {
	l := newLog()
	for i := range byte(coord.MaxAbsorbed + 9) {
		l.must(t, &coordv1.RaiseRevision{Absorbed: [][]byte{[]byte(groupID(i))}})
	}
	require.Len(t, machine.StandingOf(l.Machine).Absorbed, coord.MaxAbsorbed)
	require.Equal(t, groupID(9), machine.StandingOf(l.Machine).Absorbed[0])
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
	resume := &coordv1.RaiseRevision{To: 50, Absorbed: [][]byte{[]byte(groupID(1))}, Resume: first.Index}
	l.must(t, resume)
	require.False(t, machine.StandingOf(l.Machine).Over.Over())
	require.Equal(t, coord.Revision(50), l.Revision())
	l.leases(t, 1)
	l.must(t, &coordv1.Dissolve{Successor: []byte(groupID(2)), Force: true})
	l.refused(t, fault.Unavailable, "group", resume)
	require.Equal(t, groupID(2), dissolved(t, l).Successor)
}
