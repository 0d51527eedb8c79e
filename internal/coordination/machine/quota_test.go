package machine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// One owner's usage does not limit another, and returned shares are available again.
func TestQuotas(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]quotaCase{
		"leases": {
			func(q *coord.Quota) { q.Leases = 3 }, []proto.Message{&apiv1.LeaseGrantRequest{TtlMs: 1}},
			&apiv1.LeaseGrantRequest{TtlMs: 1}, "per_owner.leases", &apiv1.LeaseRevokeRequest{Id: 2},
		},
		"leases, expired": {
			func(q *coord.Quota) { q.Leases = 2 }, nil,
			&apiv1.LeaseGrantRequest{TtlMs: 1}, "per_owner.leases", &coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{{Id: 1, Granted: 1}}},
		},
		"claims that hold": {
			func(q *coord.Quota) { q.Claims = 2 }, []proto.Message{lock("a", 1), lock("a", 1), lock("b", 1)},
			lock("c", 1), "per_owner.claims", unlock("b", 1, 2+2),
		},
		"claims that wait": {
			func(q *coord.Quota) { q.Claims = 2 }, []proto.Message{lock("a", 1), lock("a", 2)},
			lock("c", 1), "per_owner.claims", &coordv1.Cancel{Name: "a", Lease: 2, Token: 3},
		},
		"claims, of an ended lease": {
			func(q *coord.Quota) { q.Claims = 1 }, []proto.Message{lock("a", 2)},
			lock("c", 1), "per_owner.claims", &apiv1.LeaseRevokeRequest{Id: 2},
		},
		"clients": {
			func(q *coord.Quota) { q.Clients = 1 }, []proto.Message{&apiv1.OpenClientRequest{}},
			&apiv1.OpenClientRequest{}, "per_owner.clients", &coordv1.ClientsExpire{Term: 1, IdleSince: 1 << 20},
		},
		"bytes": {
			func(q *coord.Quota) { q.Bytes = 600 }, []proto.Message{write(put("a", "", 1)), write(put("free", long, 0))},
			write(put("b", long, 2)), "per_owner.bytes", write(put("a", "", 0)),
		},
		"bytes, one write": {
			func(q *coord.Quota) { q.Bytes = 700 }, []proto.Message{write(put("a", long, 1)), write(put("a", "", 1), put("b", long, 1), del(coord.Exactly("c")))},
			write(put("c", "", 2)), "per_owner.bytes", write(del(coord.Exactly("b"))),
		},
		"bytes, locks": {
			func(q *coord.Quota) { q.Bytes = 600 }, []proto.Message{write(put("a", long, 1))},
			lock("c", 2), "per_owner.bytes", write(put("a", "", 1)),
		},
		"bytes, a claim again": {
			func(q *coord.Quota) { q.Bytes = 600 }, []proto.Message{write(put("a", "", 1)), lock("c", 2)},
			&apiv1.TryLockRequest{Name: "c", LeaseId: 2, Metadata: []byte(long)}, "per_owner.bytes", write(del(coord.Exactly("a"))),
		},
	} {
		t.Run(name, c.run)
	}
}

// TestUnleasedQuotas: the same for keys without a lease.
func TestUnleasedQuotas(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]quotaCase{
		"keys without a lease": {
			func(q *coord.Quota) { q.UnleasedKeys = 2 }, []proto.Message{write(put("a", "", 0), put("b", "", 1), put("c", "", 0)), write(put("a", long, 0))},
			write(put("d", "", 0)), "per_owner.unleased_keys", write(del(coord.Exactly("a"))),
		},
		"keys without a lease, bound": {
			func(q *coord.Quota) { q.UnleasedKeys = 1 }, []proto.Message{write(put("a", "", 0))},
			write(put("b", "", 0)), "per_owner.unleased_keys", write(put("a", "", 1)),
		},
		"keys without a lease, one write": {
			func(q *coord.Quota) { q.UnleasedKeys = 2 }, []proto.Message{write(put("a", "", 0), put("b", "", 0)), write(del(coord.Exactly("a")), put("c", "", 0))},
			write(put("d", "", 0)), "per_owner.unleased_keys", write(del(coord.Exactly("b"))),
		},
		"keys without a lease, released": {
			func(q *coord.Quota) { q.UnleasedKeys = 1 }, []proto.Message{write(put("a", "", 1)), write(put("a", "", 0))},
			write(put("b", "", 0)), "per_owner.unleased_keys", write(del(coord.Exactly("a"))),
		},
		"bytes without a lease": {
			func(q *coord.Quota) { q.UnleasedBytes = 700 }, []proto.Message{write(put("a", long, 0), put("b", long, 1))},
			write(put("c", long, 0)), "per_owner.unleased_bytes", write(put("a", "", 0)),
		},
		"requirements": {
			func(q *coord.Quota) { q.UnleasedKeys = 1 },
			[]proto.Message{&apiv1.SetRequirementRequest{Name: "r", Min: 1}, &apiv1.SetRequirementRequest{Name: "r", Min: 2}},
			write(put("b", "", 0)), "per_owner.unleased_keys", &apiv1.DeleteRequirementRequest{Name: "r"},
		},
	} {
		t.Run(name, c.run)
	}
}

// quotaCase fills one quota of alice. The next command stops, bob has his own quota, and what frees makes room.
type quotaCase struct {
	set   func(*coord.Quota)
	fits  []proto.Message // by alice, with leases 1 and 2
	stops proto.Message
	field string
	frees proto.Message
}

func (c quotaCase) run(t *testing.T) {
	l := newLog()
	l.leases(t, 2)
	limits := l.Limits()
	c.set(&limits.PerOwner)
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	for _, op := range c.fits {
		l.must(t, op)
	}
	kind := fault.LimitReached
	if strings.Contains(c.field, "bytes") || strings.Contains(c.field, "keys") {
		kind = fault.NoSpace
	}
	l.refused(t, kind, c.field, c.stops)
	id := l.lease(t, bob)
	if o, ok := c.stops.(*apiv1.LockRequest); ok {
		r, _ := l.do(bob, lock(o.Name+"'", id))
		require.NoError(t, r.Err, "bob has his own")
	}
	if o, ok := c.stops.(*apiv1.TxnRequest); ok && o.Then[0].GetPut().Lease == 0 {
		r, _ := l.do(bob, o)
		require.NoError(t, r.Err, "bob has his own")
		r, _ = l.do(bob, write(del(coord.Exactly(string(o.Then[0].GetPut().Key)))))
		require.NoError(t, r.Err)
	}
	l.must(t, c.frees)
	l.must(t, c.stops)
}

// A key without a lease counts for the owner that put it last, also after a snapshot.
func TestUnleasedKeysCountForTheirWriter(t *testing.T) {
	l := newLog()
	size := int64(len("a")+len("1")) + 160
	l.must(t, write(put("a", "1", 0), put("b", "1", 0)))
	require.Equal(t, machine.Usage{UnleasedKeys: 2, UnleasedBytes: 2 * size}, l.Usage(alice))
	r, _ := l.do(bob, write(put("a", "2", 0)))
	require.NoError(t, r.Err)
	for _, m := range []*machine.Machine{l.Machine, restored(t, l.Machine)} {
		require.Equal(t, machine.Usage{UnleasedKeys: 1, UnleasedBytes: size}, m.Usage(alice))
		require.Equal(t, machine.Usage{UnleasedKeys: 1, UnleasedBytes: size}, m.Usage(bob))
	}
	l.must(t, write(del(coord.Span{})))
	require.Zero(t, l.Usage(alice))
	require.Zero(t, l.Usage(bob), "whoever deletes a key frees its writer")
	r, _ = l.do("", write(put("members/x", "1", 0)))
	require.NoError(t, r.Err)
	require.Zero(t, l.Usage(""), "the group's own keys count for nobody")
}

// A flood of ordinary keys from many owners stops before the room that is kept for locks, the directory and the group itself.
func TestReservedRoom(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*coord.Limits)
		field string
	}{
		"keys":  {func(l *coord.Limits) { l.Keys = 40 }, "keys"},
		"bytes": {func(l *coord.Limits) { l.Bytes = 40 * 165 }, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			l.leases(t, 1)
			limits := l.Limits()
			c.set(&limits)
			l.must(t, &coordv1.Configure{Limits: limits.Message()})
			most, _ := limits.Ordinary()
			if name == "bytes" {
				most = 40 * 3 / 4
			}
			for i := range int(most) {
				r, _ := l.do(fmt.Sprint("flooder-", i), write(put(fmt.Sprintf("%05d", i), "", 0)))
				require.NoError(t, r.Err, i)
			}
			require.InDelta(t, 1, machine.SpaceOf(l.Machine).Used, 0.01)
			l.refused(t, fault.NoSpace, c.field, write(put("y", "", 0)))
			l.refused(t, fault.NoSpace, c.field, write(put("y", "", 1)))
			l.refused(t, fault.NoSpace, c.field, &apiv1.SetRequirementRequest{Name: "y", Min: 1})
			l.must(t, write(put("00000", "", 0)))
			l.must(t, lock("y", 1))
			l.must(t, batch(1, 1, entry("n", "s", "a", 1)))
			r, _ := l.do("", write(put("members/x", "", 0)))
			require.NoError(t, r.Err)
			l.must(t, write(del(coord.Exactly("00000")), del(coord.Exactly("00001")), del(coord.Exactly("00002")), del(coord.Exactly("00003")), del(coord.Exactly("00004"))))
			l.must(t, write(put("y", "", 0)))
		})
	}
}

// The fullest owner is named, whatever the order of the map.
func TestSpace(t *testing.T) {
	l := newLog()
	require.Zero(t, machine.SpaceOf(l.Machine))
	for _, owner := range []string{bob, alice} {
		r, _ := l.do(owner, write(put(owner, "", 0)))
		require.NoError(t, r.Err)
	}
	limits := l.Limits()
	limits.Keys = 4
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	s := machine.SpaceOf(l.Machine)
	require.InDelta(t, 2.0/3, s.Used, 1e-9, "of the three keys that are not reserved")
	require.Equal(t, alice, s.Most, "the longer name has more bytes")
	require.Equal(t, 1, s.Largest.UnleasedKeys)
}

// A lowered quota takes nothing away. A raised one counts at once.
func TestQuotaIsConfigured(t *testing.T) {
	l := newLog()
	l.leases(t, 3)
	limits := l.Limits()
	limits.PerOwner.Leases = 1
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	require.Equal(t, 3, l.LeaseCount())
	l.refused(t, fault.LimitReached, "per_owner.leases", &apiv1.LeaseGrantRequest{TtlMs: 1})
	limits.PerOwner.Leases = 4
	l.must(t, &coordv1.Configure{Limits: limits.Message()})
	l.must(t, &apiv1.LeaseGrantRequest{TtlMs: 1})
	l.refused(t, fault.LimitReached, "per_owner.leases", &apiv1.LeaseGrantRequest{TtlMs: 1})
}

// requireUsage recounts every owner's usage.
func requireUsage(t *rapid.T, dumb *model, m *machine.Machine) {
	want := map[string]machine.Usage{}
	count := func(owner string, f func(*machine.Usage)) {
		u := want[owner]
		f(&u)
		want[owner] = u
	}
	for _, l := range dumb.leases {
		count(l.Owner, func(u *machine.Usage) { u.Leases++ })
	}
	for _, s := range dumb.clients {
		count(s.owner, func(u *machine.Usage) { u.Clients++ })
	}
	page, err := m.Range(machine.Query{})
	require.NoError(t, err)
	for _, kv := range page.Keys {
		if v := dumb.keys()[kv.Key]; v.lease != 0 {
			count(dumb.leases[v.lease].Owner, func(u *machine.Usage) {
				u.Bytes += int64(len(kv.Key)+len(kv.Value)) + 160
				if v.lock != "" {
					u.Claims++
				}
			})
		} else if w := v.writer; w != "" {
			count(w, func(u *machine.Usage) {
				u.UnleasedKeys++
				u.UnleasedBytes += int64(len(kv.Key)+len(kv.Value)) + 160
			})
		}
	}
	for _, owner := range []string{alice, bob} {
		require.Equal(t, want[owner], m.Usage(owner))
	}
}

// restored returns the machine of a snapshot.
func restored(t *testing.T, m *machine.Machine) *machine.Machine {
	again, err := machine.Restore(m.Snapshot())
	require.NoError(t, err)
	require.Equal(t, m.StateHash(), again.StateHash())
	return again
}
