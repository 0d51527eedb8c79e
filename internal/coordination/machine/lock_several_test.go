package machine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// lockAll claims several locks, and waits for them.
func lockAll(lease coord.LeaseID, names ...string) *apiv1.LockRequest {
	return &apiv1.LockRequest{TimeoutMs: -1, Name: names[0], LeaseId: int64(lease), Others: names[1:]}
}

func tryAll(lease coord.LeaseID, names ...string) *apiv1.TryLockRequest {
	return &apiv1.TryLockRequest{Name: names[0], LeaseId: int64(lease), Others: names[1:]}
}

// claims applies a request for several locks and returns its answer.
func (l *log) claims(t testing.TB, lease coord.LeaseID, names ...string) ops.LockResult {
	t.Helper()
	r, _ := l.must(t, lockAll(lease, names...))
	return r.Lock
}

// Several locks come together or not at all, at one revision.
func TestSeveralLocksAtOnce(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	first := l.claims(t, id[0], "a", "b", "c")
	require.True(t, first.Granted)
	at := coord.Token(l.Revision())
	require.Equal(t, []coord.Token{at, at, at}, first.Tokens)
	require.Equal(t, at, first.Token)

	before, revision := contents(l.Machine), l.Revision()
	again := l.claims(t, id[0], "c", "a", "b")
	require.Equal(t, first.Tokens, again.Tokens, "a repetition changes nothing")
	missed, _ := l.must(t, tryAll(id[1], "d", "b"))
	require.False(t, missed.Lock.Granted)
	require.Zero(t, missed.Lock.Token)
	require.Equal(t, before, contents(l.Machine))
	require.Equal(t, revision, l.Revision())

	waits := l.claims(t, id[1], "d", "b")
	require.False(t, waits.Granted, "d is free, b is not")
	l.refused(t, fault.Conflict, "others", lockAll(id[1], "d", "a"))
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(id[0])})
	require.True(t, l.claims(t, id[1], "d", "b").Granted)
	l.must(t, tryAll(id[1], "d", "a"))
	holding, _ := holders(l.Machine, "a")
	require.Equal(t, id[1:2], holding, "what needs no wait is added")
}

// A request that stays may be repeated for one name too: it keeps its place and counts once.
func TestRepeatedRequestsThatStay(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	ask := func(lease coord.LeaseID, wait int64) *apiv1.LockRequest {
		return &apiv1.LockRequest{Name: "a", LeaseId: int64(lease), TimeoutMs: wait, Stays: true}
	}
	missed, _ := l.must(t, ask(id[0], -1))
	require.True(t, missed.Lock.Granted)
	missed, _ = l.must(t, ask(id[1], 0))
	require.Zero(t, missed.Lock.Token, "without a wait it takes no place")
	first, _ := l.must(t, ask(id[1], 1000))
	again, _ := l.must(t, ask(id[1], 0))
	require.Equal(t, first.Lock, again.Lock)
	require.Equal(t, uint32(1), again.Lock.Count)
}

// The end of a wait gives back all claims, also those that hold. Claims that hold by then stay.
func TestSeveralWaitsEndTogether(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	held, _ := l.must(t, lock("b", id[0]))
	waits := l.claims(t, id[1], "a", "b", "c")
	cancel := &coordv1.Cancel{Name: "a", Lease: int64(id[1]), Others: []string{"b", "c"}}
	name := func(r ops.LockResult) {
		cancel.Token, cancel.Tokens = int64(r.Token), []int64{int64(r.Tokens[1]), int64(r.Tokens[2])}
	}
	name(waits)
	l.refused(t, fault.Invalid, "others", &coordv1.Cancel{Name: "a", Lease: int64(id[1]), Token: int64(waits.Token), Others: []string{"b"}})
	done, _ := l.must(t, cancel)
	require.False(t, done.Lock.Granted)
	require.Equal(t, 3, done.Changed)
	require.Equal(t, []string{"b"}, l.LockNames(""))

	waits = l.claims(t, id[1], "a", "b", "c")
	name(waits)
	l.must(t, unlock("b", id[0], held.Lock.Token))
	before := contents(l.Machine)
	done, _ = l.must(t, cancel)
	require.True(t, done.Lock.Granted, "it lost the race and is told so")
	require.Equal(t, before, contents(l.Machine))
}

// A refused request for several locks changes nothing.
func TestSeveralLocksAreRefusedWhole(t *testing.T) {
	l := newLog()
	limits := coord.DefaultLimits()
	limits.LeaseKeys, limits.PerOwner.Claims = 3, 5
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	id := l.leases(t, 2)
	l.must(t, &apiv1.TryLockRequest{Name: "s", LeaseId: int64(id[1]), Mode: apiv1.ShareMode_SHARE_MODE_SHARED})
	before := contents(l.Machine)
	for _, c := range []struct {
		kind  fault.Kind
		field string
		names []string
	}{
		{fault.Invalid, "others", []string{"a", ""}},
		{fault.Invalid, "others", []string{"a", "a"}},
		{fault.Invalid, "others", []string{"a", "b", "b"}},
		{fault.Conflict, "others", []string{"a", "directory"}},
		{fault.TooLarge, "others", []string{"a", fmt.Sprintf("%1008d", 0)}},
		{fault.LimitReached, "lease", []string{"a", "b", "c", "d"}},
		{fault.Invalid, "others", slices.Repeat([]string{"a"}, coord.MaxNames+1)},
	} {
		l.refused(t, c.kind, c.field, lockAll(id[0], c.names...))
	}
	l.refused(t, fault.Conflict, "mode", lockAll(id[1], "a", "s"))
	require.Equal(t, before, contents(l.Machine))
}

// Whoever asks for any locks together, in any order, gets them all in the end: nobody waits in a circle. At no time
// have two leases one lock.
func TestNobodyWaitsInACircle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLog()
		var ids []coord.LeaseID
		for range 5 {
			r, _ := l.do(alice, &apiv1.LeaseGrantRequest{TtlMs: 10_000})
			ids = append(ids, r.Lease)
		}
		wants := make(map[coord.LeaseID][]string)
		holds := func(id coord.LeaseID) bool {
			for _, name := range wants[id] {
				if holding, _ := holders(l.Machine, name); !slices.Contains(holding, id) {
					return false
				}
			}
			return true
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			id := rapid.SampledFrom(ids).Draw(t, "lease")
			if wants[id] == nil {
				names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 4, rapid.ID).Draw(t, "names")
				wants[id] = names
				r, _ := l.do(alice, lockAll(id, names...))
				require.NoError(t, r.Err)
				require.Equal(t, holds(id), r.Lock.Granted)
			} else if holds(id) {
				for _, name := range wants[id] {
					info, _ := l.Lock(name)
					r, _ := l.do(alice, unlock(name, id, info.Holding[0].Token()))
					require.NoError(t, r.Err)
				}
				delete(wants, id)
			}
			for _, name := range l.LockNames("") {
				holding, _ := holders(l.Machine, name)
				require.Len(t, holding, 1)
			}
		}
		for len(wants) > 0 {
			at := slices.IndexFunc(ids, func(id coord.LeaseID) bool { return wants[id] != nil && holds(id) })
			require.GreaterOrEqual(t, at, 0, "all wait: %v", wants)
			id := ids[at]
			for _, name := range wants[id] {
				info, _ := l.Lock(name)
				r, _ := l.do(alice, unlock(name, id, info.Holding[0].Token()))
				require.NoError(t, r.Err)
			}
			delete(wants, id)
		}
	})
}
