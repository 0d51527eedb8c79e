package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// The "Lease State Machine" of the specification, by name.
func TestLeaseStateTransitions(t *testing.T) {
	ends := map[string]func(l *log, id coord.LeaseID) proto.Message{
		"Active, TTL elapsed: Expired": func(l *log, id coord.LeaseID) proto.Message {
			return &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{l.ref(id)}}
		},
		"Active, Revoke request or disconnect: Revoked": func(_ *log, id coord.LeaseID) proto.Message { return &apiv1.LeaseRevokeRequest{Id: int64(id)} },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			id := l.leases(t, 2)
			l.must(t, write(put("a", "1", id[0]), put("b", "2", id[1])))
			l.must(t, lock("db", id[0]))
			r, _ := l.must(t, lock("db", id[1]))
			l.must(t, lock("other", id[1]))
			waiting, _ := l.must(t, lock("other", id[0]))
			require.Equal(t, 1, waiting.Lock.Position)
			revision := l.Revision()

			_, e := l.must(t, end(l, id[0]))
			require.Equal(t, []coord.LeaseID{id[0]}, e.Ended)
			require.Len(t, e.Events, 3)
			require.Equal(t, revision+1, l.Revision(), "all its keys go at one revision")
			var keys []string
			for _, event := range e.Events {
				require.True(t, event.Deletes())
				keys = append(keys, event.Key)
			}
			require.Equal(t, []string{"a", coord.LockKey("db", id[0]), coord.LockKey("other", id[0])}, keys)
			require.Equal(t, []machine.Grant{{"db", id[1], r.Lock.Token}}, e.Grants)
			_, ok := l.Lease(id[0])
			require.False(t, ok)
			_, waits := holders(l.Machine, "other")
			require.Empty(t, waits)
			l.refused(t, fault.NotFound, "lease", lock("db", id[0]))
		})
	}
}

func TestLeaseGrant(t *testing.T) {
	l := newLog()
	r, e := l.must(t, &apiv1.LeaseGrantRequest{Id: 2, TtlMs: 30_000})
	require.Equal(t, coord.LeaseID(2), r.Lease)
	require.Equal(t, []coord.Lease{{ID: 2, TTL: 30_000, Owner: alice, Granted: 1}}, e.Granted)
	require.Equal(t, coord.FirstRevision, l.Revision(), "leases are not keys")
	chosen := []coord.LeaseID{l.lease(t, alice), l.lease(t, bob)}
	require.Equal(t, []coord.LeaseID{1, 3}, chosen, "2 is taken")
	l.refused(t, fault.Exists, "id", &apiv1.LeaseGrantRequest{Id: 2, TtlMs: 30_000})
	l.refused(t, fault.Invalid, "id", &apiv1.LeaseGrantRequest{Id: -1, TtlMs: 30_000})
	l.refused(t, fault.Invalid, "ttl_ms", &apiv1.LeaseGrantRequest{})
	require.Equal(t, []coord.LeaseID{1, 2, 3}, ids(l.Leases()))
}

func ids(leases []coord.Lease) (all []coord.LeaseID) {
	for _, l := range leases {
		all = append(all, l.ID)
	}
	return all
}

func TestLeaseTTLIsMovedIntoTheLimits(t *testing.T) {
	l := newLog()
	short, _ := l.must(t, &apiv1.LeaseGrantRequest{TtlMs: 1})
	long, _ := l.must(t, &apiv1.LeaseGrantRequest{TtlMs: 1 << 60})
	require.Equal(t, []int64{l.Limits().MinTTL, l.Limits().MaxTTL}, []int64{short.TTL, long.TTL})
}

func TestLeaseBelongsToItsOwner(t *testing.T) {
	l := newLog()
	id := l.lease(t, alice)
	l.refusedTo(t, bob, &apiv1.LeaseRevokeRequest{Id: int64(id)}, fault.Forbidden, "lease")
	l.refusedTo(t, bob, write(put("a", "", id)), fault.Forbidden, "then[0].lease")
	l.refused(t, fault.NotFound, "lease", &apiv1.LeaseRevokeRequest{Id: int64(id + 1)})
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(id)})
}

func TestExpireIsDroppedInAnotherTerm(t *testing.T) {
	l := newLog()
	id := l.lease(t, alice)
	for _, term := range []uint64{0, 2} {
		l.refused(t, fault.Conflict, "term", &coordv1.Expire{Term: term, Leases: []*coordv1.LeaseRef{l.ref(id)}})
	}
	_, ok := l.Lease(id)
	require.True(t, ok)
}

// The lease was revoked and granted again between the leader's measurement and the commit of Expire.
func TestExpireMeansOneGrant(t *testing.T) {
	l := newLog()
	l.must(t, &apiv1.LeaseGrantRequest{Id: 7, TtlMs: 10_000})
	expire := &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{l.ref(7)}}
	l.must(t, &apiv1.LeaseRevokeRequest{Id: 7})
	l.must(t, &apiv1.LeaseGrantRequest{Id: 7, TtlMs: 10_000})
	r, _ := l.must(t, expire)
	require.Empty(t, r.Ended)
	_, ok := l.Lease(7)
	require.True(t, ok)
}

// A lock is never granted to a lease that ends in the same command.
func TestExpireGrantsToTheLivingOnly(t *testing.T) {
	l := newLog()
	id := l.leases(t, 4)
	var last ops.Result
	for _, i := range id {
		last, _ = l.must(t, lock("db", i))
	}
	refs := []*coordv1.LeaseRef{l.ref(id[2]), l.ref(id[0]), l.ref(id[1]), l.ref(id[0])}
	r, e := l.must(t, &coordv1.Expire{Term: 1, Leases: refs})
	require.Equal(t, []coord.LeaseID{id[2], id[0], id[1]}, r.Ended)
	require.Equal(t, []machine.Grant{{"db", id[3], last.Lock.Token}}, e.Grants)
}

func TestExpireKeepsToTheLimitOnChanges(t *testing.T) {
	l := newLog()
	limits := l.Limits()
	limits.Changes = 3
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	id := l.leases(t, 3)
	for i, lease := range id {
		for _, key := range []string{"a", "b"} {
			l.must(t, write(put(key+string(rune('0'+i)), "", lease)))
		}
	}
	all := &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{l.ref(id[0]), l.ref(id[1]), l.ref(id[2])}}
	for _, want := range id {
		r, _ := l.must(t, all)
		require.Equal(t, []coord.LeaseID{want}, r.Ended)
	}
	require.Zero(t, l.Len())
}

func TestKeysMoveBetweenLeases(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	l.must(t, write(put("a", "1", id[0]), put("b", "1", id[0])))
	require.Equal(t, []string{"a", "b"}, l.LeaseKeys(id[0]))
	l.must(t, write(put("a", "2", id[1])))
	l.must(t, write(put("b", "2", 0)))
	require.Empty(t, l.LeaseKeys(id[0]))
	require.Equal(t, []string{"a"}, l.LeaseKeys(id[1]))
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(id[0])})
	require.Equal(t, 2, l.Len())
	l.must(t, write(del(coord.Exactly("a"))))
	_, e := l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(id[1])})
	require.Empty(t, e.Events)
	require.Nil(t, l.LeaseKeys(id[1]))
}

// The effects on many leases and locks follow the order of keys and names, not of maps.
func TestExpireReportsInOrder(t *testing.T) {
	l := newLog()
	id := l.leases(t, 3)
	for i, lease := range id[:2] {
		for _, key := range []string{"c", "a", "e"} {
			l.must(t, write(put(key+string(rune('0'+i)), "", lease)))
		}
	}
	for i, name := range []string{"z", "m", "b", "q"} {
		l.must(t, lock(name, id[i%2]))
		l.must(t, lock(name, id[2]))
	}
	_, e := l.must(t, &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{l.ref(id[1]), l.ref(id[0])}})
	require.Len(t, e.Events, 10)
	for i := range e.Events[1:] {
		require.Less(t, e.Events[i].Key, e.Events[i+1].Key)
	}
	var granted []string
	for _, g := range e.Grants {
		granted = append(granted, g.Lock)
	}
	require.Equal(t, []string{"b", "m", "q", "z"}, granted)
}

func TestExpireLooksAtABoundedNumberOfLeases(t *testing.T) {
	l := newLog()
	o := &coordv1.Expire{Term: 1}
	for _, id := range l.leases(t, 600) {
		o.Leases = append(o.Leases, l.ref(id))
	}
	r, _ := l.must(t, o)
	require.Len(t, r.Ended, 512)
}
