package coordtest

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// leases are the promises about leases: the "Lease State Machine" of the specification, by name.
func leases() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"lease granted":                       leaseGranted,
		"lease of a chosen id":                leaseChosen,
		"lease time is moved into the limits": leaseMoved,
		"Active, KeepAlive: Active":           leaseKept,
		"Active, TTL elapsed: Expired":        leaseExpired,
		"Active, Revoke request: Revoked":     leaseRevoked,
		"lease of another owner":              leaseForeign,
		"leases of one owner are bounded":     leaseBounded,
		"keepalive of what does not live":     leaseMissing,
		"keepalive of too many":               leaseTooMany,
		"keepalive of very many":              leaseMany,
		"lease as it stands":                  leaseStands,
		"leases are listed":                   leasesListed,
	}
}

func leaseGranted(w *fixture) {
	r := w.must(w.Alice, &ops.LeaseGrant{TTL: 30_000})
	require.Positive(w.t, r.Lease)
	require.Equal(w.t, int64(30_000), r.TTL)
	require.NotEqual(w.t, r.Lease, w.must(w.Bob, &ops.LeaseGrant{TTL: 30_000}).Lease)
	w.mustNot(w.Alice, fault.Invalid, "ttl_ms", &ops.LeaseGrant{})
	w.mustNot(w.Alice, fault.Invalid, "ttl_ms", &ops.LeaseGrant{TTL: -1})
	w.mustNot(w.Alice, fault.Invalid, "id", &ops.LeaseGrant{ID: -1, TTL: 30_000})
}

func leaseChosen(w *fixture) {
	const id = 7587848390234
	require.Equal(w.t, coord.LeaseID(id), w.must(w.Alice, &ops.LeaseGrant{ID: id, TTL: 30_000}).Lease)
	w.mustNot(w.Alice, fault.Exists, "id", &ops.LeaseGrant{ID: id, TTL: 30_000})
	w.mustNot(w.Bob, fault.Exists, "id", &ops.LeaseGrant{ID: id, TTL: 30_000})
	w.must(w.Alice, &ops.LeaseRevoke{ID: id})
	w.must(w.Bob, &ops.LeaseGrant{ID: id, TTL: 30_000})
}

func leaseMoved(w *fixture) {
	limits := coord.DefaultLimits()
	limits.MinTTL, limits.MaxTTL = 20_000, 40_000
	require.NoError(w.t, w.Internal(w.ctx(), &ops.Configure{Limits: limits}))
	require.Equal(w.t, int64(20_000), w.must(w.Alice, &ops.LeaseGrant{TTL: 1}).TTL)
	require.Equal(w.t, int64(40_000), w.must(w.Alice, &ops.LeaseGrant{TTL: 1 << 50}).TTL)
}

// leaseBounded: one owner's use does not limit another.
func leaseBounded(w *fixture) {
	limits := coord.DefaultLimits()
	q := &limits.PerOwner
	q.Leases, q.Claims, q.Bytes, q.UnleasedKeys, q.UnleasedBytes = 2, 2, 1000, 1, 1000
	require.NoError(w.t, w.Internal(w.ctx(), &ops.Configure{Limits: limits}))
	lease, _ := w.holder(w.Alice, "db")
	other := w.lease(w.Alice)
	w.mustNot(w.Alice, fault.PoolExhausted, "pool.leases.share", &ops.LeaseGrant{TTL: 30_000})
	w.lease(w.Bob)
	w.queued(w.Alice, "db", other, 1)
	w.mustNot(w.Alice, fault.PoolExhausted, "pool.claims.share", &ops.Lock{Name: "other", Lease: lease})
	w.holder(w.Bob, "other")
	w.mustNot(w.Alice, fault.PoolExhausted, "pool.bytes.share", write(bound("a", strings.Repeat("x", 700), lease)))
	w.must(w.Alice, write(put("a", strings.Repeat("x", 700))))
	w.mustNot(w.Alice, fault.PoolExhausted, "pool.bytes.share", write(put("a", strings.Repeat("x", 1000))))
	w.mustNot(w.Alice, fault.PoolExhausted, "pool.keys.share", write(put("b", "")))
	w.must(w.Bob, write(put("b", "")))
}

func leaseKept(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	for range 5 { // longer than its time to live
		w.Pass(w.TTL / 2)
		w.keep(w.Alice, lease)
	}
	holding := w.lock("db").Holding
	require.Equal(w.t, token, holding[0].Token)
}

func leaseExpired(w *fixture) {
	w.leaseEnds(func(coord.LeaseID) { w.Pass(w.TTL + w.TTL/2) })
}

func leaseRevoked(w *fixture) {
	w.leaseEnds(func(id coord.LeaseID) {
		r := w.must(w.Alice, &ops.LeaseRevoke{ID: id})
		require.Positive(w.t, r.Revision)
	})
}

// leaseEnds: all bound keys deleted in one revision, locks handed on, watchers told.
func (w *fixture) leaseEnds(end func(coord.LeaseID)) {
	ending, _ := w.holder(w.Alice, "db")
	w.must(w.Alice, write(bound("a", "1", ending), bound("b", "2", ending), put("c", "3")))
	other := w.must(w.Bob, &ops.LeaseGrant{TTL: 10 * w.TTL.Milliseconds()}).Lease
	next := w.queued(w.Bob, "db", other, 1)
	watch := w.watch(coord.Watch{Prev: true})
	end(ending)
	require.Equal(w.t, other, w.settled("db").Lease)
	granted := next.granted()
	require.Equal(w.t, coord.LockKey("db", other), granted.Key)
	events := watch.events(3)
	for i, key := range []string{"a", "b", coord.LockKey("db", ending)} {
		require.Equal(w.t, key, events[i].Key)
		require.True(w.t, events[i].Deletes())
		require.Equal(w.t, ending, events[i].Prev.Lease)
		require.Equal(w.t, events[0].Revision, events[i].Revision)
	}
	require.Equal(w.t, []string{"c"}, w.all("c"))
	w.mustNot(w.Alice, fault.NotFound, "lease", &ops.Lock{Name: "db", Lease: ending})
	w.mustNot(w.Alice, fault.NotFound, "lease", &ops.LeaseRevoke{ID: ending})
	w.mustNot(w.Alice, fault.NotFound, "then[0].lease", write(bound("a", "1", ending)))
	_, _, err := w.Leases(w.ctx(), ops.LeaseQuery{ID: ending})
	w.refused(fault.NotFound, "lease", err)
}

// settled waits until a lock has a holder and an empty queue, and returns the claim.
func (w *fixture) settled(name string) ops.ClaimState {
	w.t.Helper()
	w.waiting(name, 0)
	holding := w.lock(name).Holding
	require.Len(w.t, holding, 1)
	return holding[0]
}

func leaseForeign(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	w.mustNot(w.Bob, fault.Forbidden, "lease", &ops.Lock{Name: "other", Lease: lease})
	w.mustNot(w.Bob, fault.Forbidden, "lease", &ops.LeaseRevoke{ID: lease})
	w.mustNot(w.Bob, fault.Forbidden, "lease", &ops.Unlock{Name: "db", Lease: lease, Token: token})
	w.mustNot(w.Bob, fault.Forbidden, "then[0].lease", write(bound("a", "1", lease)))
	_, _, err := w.Bob.Acquire(w.ctx(), ops.Command{Owner: w.Bob.Name, Op: &ops.Lock{Name: "db", Lease: lease, Wait: true}}, coord.NoLimit)
	w.refused(fault.Forbidden, "lease", err)
	renewals, _, err := w.Bob.KeepAlive(w.ctx(), w.Bob.Name, []coord.LeaseID{lease})
	require.NoError(w.t, err)
	require.Equal(w.t, []ops.Renewal{{ID: lease}}, renewals)
	require.Equal(w.t, w.Alice.Name, w.lock("db").Holding[0].Holder)
}

func leaseMissing(w *fixture) {
	one, two := w.lease(w.Alice), w.lease(w.Alice)
	w.must(w.Alice, &ops.LeaseRevoke{ID: two})
	renewals, header, err := w.Alice.KeepAlive(w.ctx(), w.Alice.Name, []coord.LeaseID{one, two, 1 << 40, one})
	require.NoError(w.t, err)
	w.headed(header)
	ttl := w.TTL.Milliseconds()
	require.Equal(w.t, []ops.Renewal{{ID: one, TTL: ttl}, {ID: two}, {ID: 1 << 40}, {ID: one, TTL: ttl}}, renewals)
}

func leaseTooMany(w *fixture) {
	_, _, err := w.Alice.KeepAlive(w.ctx(), w.Alice.Name, make([]coord.LeaseID, coord.MaxKeepAlive+1))
	w.refused(fault.Invalid, "ids", err)
}

func leaseMany(w *fixture) {
	lease := w.lease(w.Alice)
	ids := make([]coord.LeaseID, coord.MaxKeepAlive)
	for i := range ids {
		ids[i] = 1<<40 + coord.LeaseID(i)
	}
	ids[17] = lease
	renewals, _, err := w.Alice.KeepAlive(w.ctx(), w.Alice.Name, ids)
	require.NoError(w.t, err)
	require.Len(w.t, renewals, len(ids))
	for i, r := range renewals {
		require.Equal(w.t, ids[i], r.ID)
		require.Equal(w.t, i == 17, r.TTL > 0)
	}
	renewals, _, err = w.Alice.KeepAlive(w.ctx(), w.Alice.Name, nil)
	require.NoError(w.t, err)
	require.Empty(w.t, renewals)
}

func leaseStands(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	w.must(w.Alice, write(bound("z", "", lease), bound("a", "", lease)))
	state := w.leaseState(lease)
	require.Equal(w.t, []string{"a", coord.LockKey("db", lease), "z"}, state.Keys)
	require.Equal(w.t, w.Alice.Name, state.Owner)
	ttl := w.TTL.Milliseconds()
	require.Equal(w.t, ttl, state.TTL)
	require.LessOrEqual(w.t, state.Remaining, ttl)
	w.Pass(w.TTL / 2)
	later := w.leaseState(lease).Remaining
	require.LessOrEqual(w.t, later, ttl/2)
	w.keep(w.Alice, lease)
	require.Greater(w.t, w.leaseState(lease).Remaining, later)
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	require.Equal(w.t, []string{"a", "z"}, w.leaseState(lease).Keys)
}

func (w *fixture) leaseState(id coord.LeaseID) ops.LeaseState {
	w.t.Helper()
	states, header, err := w.Leases(w.ctx(), ops.LeaseQuery{ID: id})
	require.NoError(w.t, err)
	w.headed(header)
	require.Len(w.t, states, 1)
	require.Equal(w.t, id, states[0].ID)
	return states[0]
}

func leasesListed(w *fixture) {
	var all []coord.LeaseID
	for range 5 {
		all = append(all, w.lease(w.Alice))
	}
	w.must(w.Alice, write(bound("a", "", all[0])))
	var seen []coord.LeaseID
	for after := uint64(0); ; {
		states, _, err := w.Leases(w.ctx(), ops.LeaseQuery{After: after, Limit: 2})
		require.NoError(w.t, err)
		require.LessOrEqual(w.t, len(states), 2)
		for _, s := range states {
			require.Empty(w.t, s.Keys)
			require.Positive(w.t, s.Remaining)
			require.Equal(w.t, s.ID.Tag(), s.Tag)
			require.Greater(w.t, s.Granted, after)
			seen, after = append(seen, s.ID), s.Granted
		}
		require.LessOrEqual(w.t, len(seen), len(all))
		if len(states) == 0 {
			break
		}
	}
	require.Equal(w.t, all, seen, "in the order of their grants")
	states, _, err := w.Leases(w.ctx(), ops.LeaseQuery{})
	require.NoError(w.t, err)
	require.Len(w.t, states, 5)
}
