package machine_test

import (
	"fmt"
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

// The rows of "Lock State Machine: State Transitions" in the low-level design, by name.
func TestLockStateTransitions(t *testing.T) {
	type ids = []coord.LeaseID
	for _, row := range []struct {
		name string
		run  func(t *testing.T, l *log, id ids)
	}{
		{"Available, Lock request: Held, token assigned", func(t *testing.T, l *log, id ids) {
			r, e := l.must(t, lock("db", id[0]))
			require.True(t, r.Lock.Granted)
			require.Equal(t, coord.Token(l.Revision()), r.Lock.Token)
			require.Equal(t, []machine.Grant{{Lock: "db", Lease: id[0], Token: r.Lock.Token}}, e.Grants)
		}},
		{"Available, TryLock request: Held, token assigned", func(t *testing.T, l *log, id ids) {
			r, _ := l.must(t, try("db", id[0]))
			require.True(t, r.Lock.Granted)
			require.Equal(t, coord.Token(l.Revision()), r.Lock.Token)
		}},
		{"Available, Delete request: record removed", func(t *testing.T, l *log, id ids) {
			r, _ := l.must(t, lock("db", id[0]))
			l.must(t, unlock("db", id[0], r.Lock.Token))
			require.Zero(t, l.Len(), "a lock that nobody claims has no record to delete")
			require.Empty(t, l.LockNames(""))
		}},
		{"Held, Release request: Available, waiters notified", func(t *testing.T, l *log, id ids) {
			r, _ := l.must(t, lock("db", id[0]))
			next, _ := l.must(t, lock("db", id[1]))
			_, e := l.must(t, unlock("db", id[0], r.Lock.Token))
			require.Equal(t, []machine.Grant{{Lock: "db", Lease: id[1], Token: next.Lock.Token}}, e.Grants)
			require.Len(t, e.Events, 1)
			require.True(t, e.Events[0].Deletes())
		}},
		{"Held, Lease expired: Available, waiters notified", func(t *testing.T, l *log, id ids) {
			l.must(t, lock("db", id[0]))
			next, _ := l.must(t, lock("db", id[1]))
			_, e := l.must(t, &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{l.ref(id[0])}})
			require.Equal(t, []machine.Grant{{Lock: "db", Lease: id[1], Token: next.Lock.Token}}, e.Grants)
		}},
		{"Held, Renew request: Held, no entry in the log", func(t *testing.T, l *log, id ids) {
			l.must(t, lock("db", id[0]))
			lease, ok := l.Lease(id[0]) // the questions of a keepalive
			require.True(t, ok)
			require.Equal(t, int64(10_000), lease.TTL)
		}},
		{"Held, Lock request (same holder): reentrant, same token", func(t *testing.T, l *log, id ids) {
			r, _ := l.must(t, lock("db", id[0]))
			again, e := l.must(t, lock("db", id[0]))
			require.Equal(t, r.Lock.Token, again.Lock.Token)
			require.True(t, again.Lock.Granted)
			require.Equal(t, uint32(2), again.Lock.Count)
			require.Empty(t, e.Grants, "it held already")
		}},
		{"Held, Lock request (different): added to the queue", func(t *testing.T, l *log, id ids) {
			first, _ := l.must(t, lock("db", id[0]))
			r, e := l.must(t, lock("db", id[1]))
			require.False(t, r.Lock.Granted)
			require.Equal(t, 1, r.Lock.Position)
			require.Equal(t, first.Lock.Key, r.Lock.Predecessor)
			require.Empty(t, e.Grants)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLog()
			row.run(t, l, l.leases(t, 2))
		})
	}
}

// A lock's key shows the tag of its lease, not the id.
func TestLockKeys(t *testing.T) {
	l := newLog()
	r, _ := l.do(alice, &apiv1.LeaseGrantRequest{Id: int64(0x694d7f1a), TtlMs: 10_000})
	require.Equal(t, coord.LeaseID(0x694d7f1a), r.Lease)
	r, _ = l.must(t, &apiv1.TryLockRequest{Name: "locks/db", LeaseId: int64(r.Lease), Metadata: []byte("migration")})
	require.Equal(t, "locks/db/"+coord.LeaseID(0x694d7f1a).Tag(), r.Lock.Key)
	require.NotContains(t, r.Lock.Key, "694d7f1a")
	kv, ok := l.Get(r.Lock.Key)
	require.True(t, ok)
	require.Equal(t, r.Lock.Token, kv.Token())
	var entry coordv1.LockEntry
	require.NoError(t, proto.Unmarshal(kv.Value, &entry))
	require.Equal(t, []any{alice, "migration", uint32(1)}, []any{entry.GetHolder(), string(entry.GetMetadata()), entry.GetCount()})
	canonical, err := proto.MarshalOptions{Deterministic: true}.Marshal(&entry)
	require.NoError(t, err)
	require.Equal(t, canonical, kv.Value)
}

func TestHoldsTellsWhereAClaimIs(t *testing.T) {
	l := newLog()
	first, second := l.lease(t, alice), l.lease(t, alice)
	held, _ := l.must(t, lock("db", first))
	waits, _ := l.must(t, lock("db", second))
	for _, want := range []ops.LockResult{held.Lock, waits.Lock} {
		holds, there := l.Holds("db", want.Token)
		require.True(t, there)
		require.Equal(t, want.Granted, holds)
	}
	l.must(t, unlock("db", first, held.Lock.Token))
	_, there := l.Holds("db", held.Lock.Token)
	require.False(t, there)
	holds, _ := l.Holds("db", waits.Lock.Token)
	require.True(t, holds)
	_, there = l.Holds("no such lock", waits.Lock.Token)
	require.False(t, there)
}

// A claim has one token while waiting and holding, unlike in the low-level design.
func TestLockTokenIsTheSameFromFirstAnswerToLast(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	first, _ := l.must(t, lock("db", id[0]))
	waiting, _ := l.must(t, lock("db", id[1]))
	_, e := l.must(t, unlock("db", id[0], first.Lock.Token))
	require.Equal(t, waiting.Lock.Token, e.Grants[0].Token)
	again, _ := l.must(t, lock("db", id[1]))
	require.Equal(t, waiting.Lock.Token, again.Lock.Token)
	require.Greater(t, waiting.Lock.Token, first.Lock.Token)
}

func TestLockIsFIFO(t *testing.T) {
	l := newLog()
	id := l.leases(t, 5)
	tokens := make([]coord.Token, len(id))
	for i := range id {
		r, _ := l.must(t, lock("db", id[len(id)-1-i])) // lease ids and keys descend: they must not matter
		require.Equal(t, i, r.Lock.Position)
		tokens[i] = r.Lock.Token
	}
	for i := range id[:4] {
		_, e := l.must(t, unlock("db", id[len(id)-1-i], tokens[i]))
		require.Equal(t, tokens[i+1], e.Grants[0].Token)
	}
}

func TestTryLockTakesOrChangesNothing(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	r, _ := l.must(t, try("db", id[0]))
	before, revision := contents(l.Machine), l.Revision()
	missed, e := l.must(t, try("db", id[1]))
	require.False(t, missed.Lock.Granted)
	require.Zero(t, missed.Lock.Token)
	require.Equal(t, r.Lock.Key, missed.Lock.Predecessor)
	require.Empty(t, e.Events)
	require.Equal(t, revision, l.Revision())
	require.Equal(t, before, contents(l.Machine))

	waiting, _ := l.must(t, lock("db", id[1]))
	missed, _ = l.must(t, try("db", id[1]))
	require.Equal(t, waiting.Lock, missed.Lock, "its own claim waits: still not taken")
}

// Unlock by name alone, retried, would take a newer holder's lock.
func TestUnlockNamesLeaseAndToken(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	first, _ := l.must(t, lock("db", id[0]))
	second, _ := l.must(t, lock("db", id[1]))
	l.refused(t, fault.NotFound, "token", unlock("db", id[1], first.Lock.Token))
	l.refused(t, fault.NotFound, "token", unlock("db", id[0], second.Lock.Token))
	l.refused(t, fault.NotFound, "token", unlock("db", id[0], 0))
	l.refused(t, fault.NotFound, "token", unlock("other", id[0], first.Lock.Token))
	l.refused(t, fault.Conflict, "token", unlock("db", id[1], second.Lock.Token)) // it waits
	l.refusedTo(t, bob, unlock("db", id[0], first.Lock.Token), fault.Forbidden, "lease")
	l.must(t, unlock("db", id[0], first.Lock.Token))
	l.refused(t, fault.NotFound, "token", unlock("db", id[0], first.Lock.Token))
	again, _ := l.must(t, lock("db", id[0]))
	l.must(t, unlock("db", id[1], second.Lock.Token))
	l.refused(t, fault.NotFound, "token", unlock("db", id[0], first.Lock.Token))
	holding, _ := holders(l.Machine, "db")
	require.Equal(t, []coord.LeaseID{id[0]}, holding)
	require.NotEqual(t, first.Lock.Token, again.Lock.Token)
}

func TestLockIsReentrantByLease(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	r, _ := l.must(t, &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id[0]), Metadata: []byte("a")})
	l.must(t, &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id[0])})
	third, _ := l.must(t, &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id[0]), Metadata: []byte("b")})
	require.Equal(t, uint32(3), third.Lock.Count)
	kv, _ := l.Get(r.Lock.Key)
	claim, _ := kv.Claim()
	require.Equal(t, "b", string(claim.Metadata))
	require.Equal(t, int64(3), kv.Version)
	l.must(t, lock("db", id[1]))
	for left := uint32(2); left > 0; left-- {
		r, e := l.must(t, unlock("db", id[0], r.Lock.Token))
		require.Equal(t, left, r.Lock.Count)
		require.True(t, r.Lock.Granted)
		require.Empty(t, e.Grants)
	}
	_, e := l.must(t, unlock("db", id[0], r.Lock.Token))
	require.Equal(t, id[1], e.Grants[0].Lease)
	l.refused(t, fault.Conflict, "mode", &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id[1]), Mode: apiv1.ShareMode_SHARE_MODE_SHARED})
}

func TestCancelEndsWaitingOnly(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	first, _ := l.must(t, lock("db", id[0]))
	second, _ := l.must(t, lock("db", id[1]))
	third, _ := l.must(t, lock("db", id[2]))
	cancel := &coordv1.Cancel{Name: "db", Lease: int64(id[1]), Token: int64(second.Lock.Token)}
	l.refusedTo(t, bob, cancel, fault.Forbidden, "lease")
	l.must(t, cancel)
	l.refused(t, fault.NotFound, "token", cancel)
	l.must(t, unlock("db", id[0], first.Lock.Token))

	before := contents(l.Machine)
	late, _ := l.must(t, &coordv1.Cancel{Name: "db", Lease: int64(id[2]), Token: int64(third.Lock.Token)})
	require.True(t, late.Lock.Granted, "it lost the race and is told so")
	require.Equal(t, before, contents(l.Machine))
}

// In algorithms 1 and 2 of the low-level design each waiter watches its predecessor.
func TestLockPredecessors(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	var last ops.LockResult
	for i := range id {
		r, _ := l.must(t, lock("db", id[i]))
		require.Equal(t, last.Key, r.Lock.Predecessor)
		last = r.Lock
	}
	info, ok := l.Lock("db")
	require.True(t, ok)
	require.Len(t, info.Holding, 1)
	require.Len(t, info.Waiting, 2)
	require.Equal(t, last.Key, info.Waiting[1].Key)
}

func TestSharedClaimsHoldTogether(t *testing.T) {
	l := newLog()
	id := l.leases(t, 5)
	read := func(i int) ops.LockResult {
		r, _ := l.must(t, &apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: int64(id[i]), Mode: apiv1.ShareMode_SHARE_MODE_SHARED})
		return r.Lock
	}
	a, b := read(0), read(1)
	require.True(t, a.Granted && b.Granted)
	w, _ := l.must(t, lock("db", id[2]))
	c, d := read(3), read(4)
	require.False(t, c.Granted || d.Granted, "a reader does not pass a waiting writer")
	r, _ := l.must(t, &apiv1.TryLockRequest{Name: "db", LeaseId: int64(l.lease(t, alice)), Mode: apiv1.ShareMode_SHARE_MODE_SHARED})
	require.False(t, r.Lock.Granted, "nor by TryLock")

	l.must(t, unlock("db", id[1], b.Token))
	_, e := l.must(t, unlock("db", id[0], a.Token))
	require.Equal(t, []machine.Grant{{Lock: "db", Lease: id[2], Token: w.Lock.Token}}, e.Grants)
	_, e = l.must(t, unlock("db", id[2], w.Lock.Token))
	require.Equal(t, []machine.Grant{{"db", id[3], c.Token}, {"db", id[4], d.Token}}, e.Grants)
}

func TestCancelLetsThoseBehindJoin(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	l.must(t, &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id[0]), Mode: apiv1.ShareMode_SHARE_MODE_SHARED})
	w, _ := l.must(t, lock("db", id[1]))
	r, _ := l.must(t, &apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: int64(id[2]), Mode: apiv1.ShareMode_SHARE_MODE_SHARED})
	require.Equal(t, 2, r.Lock.Position)
	_, e := l.must(t, &coordv1.Cancel{Name: "db", Lease: int64(id[1]), Token: int64(w.Lock.Token)})
	require.Equal(t, []machine.Grant{{"db", id[2], r.Lock.Token}}, e.Grants)
}

func TestPermitsHoldUpToTheirNumber(t *testing.T) {
	l := newLog()
	id := l.leases(t, 5)
	tokens := make([]coord.Token, 4)
	for i := range tokens {
		r, _ := l.must(t, &apiv1.LockRequest{TimeoutMs: -1, Name: "pool", LeaseId: int64(id[i]), Mode: apiv1.ShareMode_SHARE_MODE_PERMIT, Permits: 2})
		require.Equal(t, i < 2, r.Lock.Granted)
		tokens[i] = r.Lock.Token
	}
	l.refused(t, fault.Conflict, "permits", &apiv1.LockRequest{TimeoutMs: -1, Name: "pool", LeaseId: int64(id[4]), Mode: apiv1.ShareMode_SHARE_MODE_PERMIT, Permits: 3})
	_, e := l.must(t, unlock("pool", id[1], tokens[1]))
	require.Equal(t, []machine.Grant{{"pool", id[2], tokens[2]}}, e.Grants)
	holding, waiting := holders(l.Machine, "pool")
	require.Equal(t, []coord.LeaseID{id[0], id[2]}, holding)
	require.Equal(t, []coord.LeaseID{id[3]}, waiting)
}

func TestLockRefusesBadInput(t *testing.T) {
	l := newLog()
	id := l.lease(t, alice)
	for _, c := range []struct {
		kind  fault.Kind
		field string
		op    *apiv1.TryLockRequest
	}{
		{fault.Invalid, "name", &apiv1.TryLockRequest{LeaseId: int64(id)}},
		{fault.TooLarge, "name", &apiv1.TryLockRequest{Name: fmt.Sprintf("%1008d", 0), LeaseId: int64(id)}},
		{fault.TooLarge, "metadata", &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id), Metadata: make([]byte, 65<<10)}},
		{fault.Invalid, "mode", &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id), Mode: 3}},
		{fault.Invalid, "permits", &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id), Mode: apiv1.ShareMode_SHARE_MODE_PERMIT}},
		{fault.Invalid, "permits", &apiv1.TryLockRequest{Name: "db", LeaseId: int64(id), Permits: 1}},
		{fault.NotFound, "lease", &apiv1.TryLockRequest{Name: "db", LeaseId: 77}},
		{fault.NotFound, "lease", &apiv1.TryLockRequest{Name: "db"}},
	} {
		l.refused(t, c.kind, c.field, c.op)
	}
	_, err := encode(coordtest.Command(alice, try("\xff", id)))
	require.ErrorIs(t, err, fault.Invalid, "no log has it")
	l.refusedTo(t, bob, lock("db", id), fault.Forbidden, "lease")
}

// A lock's key changes by the lock's commands alone.
func TestWritesLeaveLocksAlone(t *testing.T) {
	l := newLog()
	id := l.lease(t, alice)
	r, _ := l.must(t, lock("db", id))
	l.must(t, write(put("db/zzz", "plain", 0)))
	l.refused(t, fault.Conflict, "then[0].key", write(put(r.Lock.Key, "mine", 0)))
	l.refused(t, fault.Conflict, "then[0].delete", write(del(coord.Exactly(r.Lock.Key))))
	gone, _ := l.must(t, write(del(coord.Under("db/"))))
	require.Equal(t, 1, gone.Txn.Steps[0].Count, "the plain key; a deletion of many passes claims over")
	require.Equal(t, []string{"db"}, l.LockNames("d"))
	require.Empty(t, l.LockNames("e"))
	_, held := l.Holds("db", r.Lock.Token)
	require.True(t, held)
}

// TestClaimDisplacesAPlainKey: tags are public, so anybody with a right to the lock's name may put a plain key in the place of a
// claim. It keeps no lease from its lock, in no mode, and its revision is no token.
func TestClaimDisplacesAPlainKey(t *testing.T) {
	for mode, permits := range map[apiv1.ShareMode]uint32{
		apiv1.ShareMode_SHARE_MODE_EXCLUSIVE: 0, apiv1.ShareMode_SHARE_MODE_SHARED: 0, apiv1.ShareMode_SHARE_MODE_PERMIT: 2,
	} {
		for _, leased := range []bool{false, true} {
			l := newLog()
			id, under := l.lease(t, alice), coord.LeaseID(0)
			if leased {
				under = id
			}
			key := coord.LockKey("db", id)
			plain, _ := l.must(t, write(put(key, "in the way", under)))
			l.must(t, write(put("later", "", 0)))
			r, effects := l.must(t, &apiv1.LockRequest{Name: "db", LeaseId: int64(id), Mode: mode, Permits: permits})
			require.True(t, r.Lock.Granted)
			require.Equal(t, coord.Token(r.Revision), r.Lock.Token, "above all revisions of before")
			require.Greater(t, r.Revision, plain.Revision)
			require.Equal(t, "in the way", string(effects.Events[0].Prev.Value), "watchers see what it displaced")
			require.True(t, effects.Events[0].Creates())
			require.Equal(t, []string{key}, l.LeaseKeys(id))
			require.Equal(t, 1, l.Usage(alice).Claims)
			require.Equal(t, 1, l.Usage(alice).UnleasedKeys, "later")
			again, _ := l.must(t, &apiv1.LockRequest{Name: "db", LeaseId: int64(id), Mode: mode, Permits: permits})
			require.Equal(t, r.Lock.Token, again.Lock.Token)
			l.refused(t, fault.Conflict, "then[0].key", write(put(key, "the other way round", 0)))
		}
	}
	l := newLog()
	id := l.leases(t, 2)
	l.must(t, lock("db", id[0]))
	l.must(t, write(put(coord.LockKey("db", id[1]), "stays", 0)))
	r, _ := l.must(t, try("db", id[1]))
	require.False(t, r.Lock.Granted)
	kv, ok := l.Get(coord.LockKey("db", id[1]))
	require.True(t, ok && kv.LockClaim == nil, "who claims nothing displaces nothing")
}
