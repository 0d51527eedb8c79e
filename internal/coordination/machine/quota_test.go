package machine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// One owner's usage does not limit another, and returned shares are available again.
func TestQuotas(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		set   func(*coord.Quota)
		fits  []coord.Op // by alice, with leases 1 and 2
		stops coord.Op
		field string
		frees coord.Op
	}{
		"leases": {
			func(q *coord.Quota) { q.Leases = 3 }, []coord.Op{&coord.LeaseGrant{TTL: 1}},
			&coord.LeaseGrant{TTL: 1}, "per_owner.leases", &coord.LeaseRevoke{ID: 2},
		},
		"leases, expired": {
			func(q *coord.Quota) { q.Leases = 2 }, nil,
			&coord.LeaseGrant{TTL: 1}, "per_owner.leases", &coord.Expire{Term: 1, Leases: []coord.LeaseRef{{ID: 1, Granted: 1}}},
		},
		"claims that hold": {
			func(q *coord.Quota) { q.Claims = 2 }, []coord.Op{lock("a", 1), lock("a", 1), lock("b", 1)},
			lock("c", 1), "per_owner.claims", unlock("b", 1, 2+2),
		},
		"claims that wait": {
			func(q *coord.Quota) { q.Claims = 2 }, []coord.Op{lock("a", 1), lock("a", 2)},
			lock("c", 1), "per_owner.claims", &coord.Cancel{Name: "a", Lease: 2, Token: 3},
		},
		"claims, of an ended lease": {
			func(q *coord.Quota) { q.Claims = 1 }, []coord.Op{lock("a", 2)},
			lock("c", 1), "per_owner.claims", &coord.LeaseRevoke{ID: 2},
		},
		"clients": {
			func(q *coord.Quota) { q.Clients = 1 }, []coord.Op{&coord.ClientOpen{}},
			&coord.ClientOpen{}, "per_owner.clients", &coord.ClientsExpire{Term: 1, IdleSince: 1 << 20},
		},
		"bytes": {
			func(q *coord.Quota) { q.Bytes = 600 }, []coord.Op{write(put("a", "", 1)), write(put("free", long, 0))},
			write(put("b", long, 2)), "per_owner.bytes", write(put("a", "", 0)),
		},
		"bytes, one write": {
			func(q *coord.Quota) { q.Bytes = 700 }, []coord.Op{write(put("a", long, 1)), write(put("a", "", 1), put("b", long, 1), del(coord.Exactly("c")))},
			write(put("c", "", 2)), "per_owner.bytes", write(del(coord.Exactly("b"))),
		},
		"bytes, locks": {
			func(q *coord.Quota) { q.Bytes = 600 }, []coord.Op{write(put("a", long, 1))},
			lock("c", 2), "per_owner.bytes", write(put("a", "", 1)),
		},
		"bytes, a claim again": {
			func(q *coord.Quota) { q.Bytes = 600 }, []coord.Op{write(put("a", "", 1)), lock("c", 2)},
			&coord.Lock{Name: "c", Lease: 2, Metadata: []byte(long)}, "per_owner.bytes", write(del(coord.Exactly("a"))),
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			l.leases(t, 2)
			limits := l.Limits()
			c.set(&limits.PerOwner)
			l.must(t, &coord.Configure{Limits: limits})
			for _, op := range c.fits {
				l.must(t, op)
			}
			l.refused(t, fault.LimitReached, c.field, c.stops)
			id := l.lease(t, bob)
			if o, ok := c.stops.(*coord.Lock); ok {
				r, _ := l.do(bob, lock(o.Name+"'", id))
				require.NoError(t, r.Err, "bob has his own")
			}
			l.must(t, c.frees)
			l.must(t, c.stops)
		})
	}
}

// A lowered quota takes nothing away. A raised one counts at once.
func TestQuotaIsConfigured(t *testing.T) {
	l := newLog()
	l.leases(t, 3)
	limits := l.Limits()
	limits.PerOwner.Leases = 1
	l.must(t, &coord.Configure{Limits: limits})
	require.Equal(t, 3, l.LeaseCount())
	l.refused(t, fault.LimitReached, "per_owner.leases", &coord.LeaseGrant{TTL: 1})
	limits.PerOwner.Leases = 4
	l.must(t, &coord.Configure{Limits: limits})
	l.must(t, &coord.LeaseGrant{TTL: 1})
	l.refused(t, fault.LimitReached, "per_owner.leases", &coord.LeaseGrant{TTL: 1})
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
	page, err := m.Range(coord.Query{})
	require.NoError(t, err)
	for _, kv := range page.Keys {
		if v := dumb.keys()[kv.Key]; v.lease != 0 {
			count(dumb.leases[v.lease].Owner, func(u *machine.Usage) {
				u.Bytes += int64(len(kv.Key)+len(kv.Value)) + 160
				if v.lock != "" {
					u.Claims++
				}
			})
		}
	}
	for _, owner := range []string{alice, bob} {
		require.Equal(t, want[owner], m.Usage(owner))
	}
}
