package machine

import (
	"maps"
	"math"
	"slices"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// lease is a Lease with its keys, derived from the keyspace.
type lease struct {
	coord.Lease
	keys  map[string]struct{}
	owner *usage
}

// leases are the leases by id.
type leases struct {
	btree.Map[coord.LeaseID, *lease]
	applications int // those of applications; the others belong to peers
}

// add adds a lease of an owner.
func (t *leases) add(l coord.Lease, o *owners) {
	a := o.of(l.Owner)
	a.count(func(u *Usage) { u.Leases++ })
	if principals.IsApplication(l.Owner) {
		t.applications++
	}
	t.Set(l.ID, &lease{Lease: l, keys: make(map[string]struct{}), owner: a})
}

// usable returns an owner's lease.
func (t *leases) usable(id coord.LeaseID, owner string) (*lease, error) {
	l, ok := t.Get(id)
	if !ok {
		return nil, fault.Refused(fault.NotFound, "lease", "has ended, or never existed")
	}
	if !principals.MayUse(l.Owner, owner) {
		return nil, fault.Refused(fault.Forbidden, "lease", "belongs to another owner")
	}
	return l, nil
}

// choose returns the id that a grant asks for, or the leader's random choice. After a collision it takes the
// next free id: the limit on leases bounds the search.
func (t *leases) choose(asked coord.LeaseID, random uint64) (coord.LeaseID, error) {
	if asked != 0 {
		if _, taken := t.Get(asked); taken {
			return 0, fault.Refused(fault.Exists, "id", "is in use")
		}
		return asked, nil
	}
	for id := coord.LeaseID(random & math.MaxInt64); ; id = (id + 1) & math.MaxInt64 {
		if _, taken := t.Get(id); !taken && id != 0 {
			return id, nil
		}
	}
}

// room returns the leases of applications, or of peers, and how many they may have: what the others neither have nor can claim of
// the reserve.
func (t *leases) room(ofApplications bool, l *limits) (used, open uint64) {
	used, others := uint64(t.applications), uint64(t.Len()-t.applications)
	if !ofApplications {
		used, others = others, used
	}
	total := uint64(l.Leases)
	return used, total - min(total, max(others, l.Kept(total)))
}

// bind counts a version for its lease and owner.
func (t *leases) bind(kv *coord.KeyValue) {
	if kv.Lease == 0 {
		return
	}
	if l, ok := t.Get(kv.Lease); ok { // false only in a damaged snapshot
		l.keys[kv.Key] = struct{}{}
		l.owner.add(kv)
	}
}

func (t *leases) unbind(kv *coord.KeyValue) {
	if kv.Lease == 0 {
		return
	}
	if l, ok := t.Get(kv.Lease); ok {
		delete(l.keys, kv.Key)
		l.owner.remove(kv)
	}
}

// ownerOf returns the usage that a lease's keys count for; nil without a lease.
func (t *leases) ownerOf(id coord.LeaseID) *usage {
	if l, ok := t.Get(id); ok {
		return l.owner
	}
	return nil
}

// bindable checks a lease's room for more keys.
func (t *leases) bindable(id coord.LeaseID, more int, most uint32) error {
	if l, _ := t.Get(id); len(l.keys)+more > int(most) {
		return limitReached("lease", "too many keys on one lease", uint64(most))
	}
	return nil
}

// Lease gives a lease.
func (m *Machine) Lease(id coord.LeaseID) (coord.Lease, bool) {
	l, ok := m.leases.Get(id)
	if !ok {
		return coord.Lease{}, false
	}
	return l.Lease, true
}

// LeaseCount gives the number of leases.
func (m *Machine) LeaseCount() int { return m.leases.Len() }

// Leases returns all leases by id. A new leader starts its clocks from them.
func (m *Machine) Leases() []coord.Lease {
	all := make([]coord.Lease, 0, m.leases.Len())
	m.leases.Scan(func(_ coord.LeaseID, l *lease) bool {
		all = append(all, l.Lease)
		return true
	})
	return all
}

// LeaseKeys returns the keys bound to a lease, in ascending order.
func (m *Machine) LeaseKeys(id coord.LeaseID) []string {
	l, ok := m.leases.Get(id)
	if !ok {
		return nil
	}
	return slices.Sorted(maps.Keys(l.keys))
}

// LeaseSize gives the number of keys bound to a lease.
func (m *Machine) LeaseSize(id coord.LeaseID) int {
	l, ok := m.leases.Get(id)
	if !ok {
		return 0
	}
	return len(l.keys)
}

// HasWaiters reports whether a claim waits for a lock held under the lease.
func (m *Machine) HasWaiters(id coord.LeaseID) bool {
	l, ok := m.leases.Get(id)
	if !ok {
		return false
	}
	for key := range l.keys {
		kv, _ := m.tree.Get(key)
		if kv.LockClaim == nil {
			continue
		}
		if q := m.locks[kv.LockClaim.Lock]; q.held < len(q.claims) && q.holds(kv.Token()) {
			return true
		}
	}
	return false
}

func (l *limits) application(name string) error {
	if len(name) > int(l.OwnerBytes) {
		return tooLarge("application", len(name), int64(l.OwnerBytes))
	}
	return nil
}

func (l *limits) ownerName(owner string) error {
	if len(owner) > int(l.OwnerBytes) {
		return tooLarge("owner", len(owner), int64(l.OwnerBytes))
	}
	return nil
}

// ttlOf returns the time to live in milliseconds. Requests use seconds or milliseconds.
func ttlOf(r *apiv1.LeaseGrantRequest) int64 {
	if r.GetTtlMs() > 0 {
		return r.GetTtlMs()
	}
	return min(max(r.GetTtl(), 0), math.MaxInt64/1000) * 1000
}

func (c *call) grant(m *Machine, r *apiv1.LeaseGrantRequest) error {
	ttl := ttlOf(r)
	if r.GetId() < 0 {
		return fault.Invalidf("id", r.GetId(), "must not be negative")
	}
	if ttl <= 0 {
		return fault.Invalidf("ttl_ms", ttl, "must be above 0")
	}
	has := m.owners.find(c.owner)
	leases := func(u *Usage) int64 { return int64(u.Leases) }
	most := uint64(m.limits.PerOwner.Leases)
	if err := has.quota("leases", "too many leases of one owner", leases, 1, most); err != nil {
		return err
	}
	used, open := m.leases.room(principals.IsApplication(c.owner), &m.limits)
	if err := take("leases", uint64(has.total().Leases), 1, used, open); err != nil {
		return err
	}
	if err := m.limits.application(r.GetApplication()); err != nil {
		return err
	}
	id, err := m.leases.choose(coord.LeaseID(r.GetId()), c.random)
	if err != nil {
		return err
	}
	granted := coord.Lease{
		ID: id, TTL: min(max(ttl, m.limits.MinTTL), m.limits.MaxTTL), Owner: c.owner, Application: r.GetApplication(), Granted: c.index,
	}
	m.leases.add(granted, &m.owners)
	m.effects.Granted = append(m.effects.Granted, granted)
	c.answer.Response = &coordv1.Result_LeaseGrant{LeaseGrant: &apiv1.LeaseGrantResponse{
		Header: c.header, Id: int64(granted.ID), Ttl: granted.TTL / 1000, TtlMs: granted.TTL,
	}}
	return nil
}

func (c *call) revoke(m *Machine, r *apiv1.LeaseRevokeRequest) error {
	l, err := m.leases.usable(coord.LeaseID(r.GetId()), c.owner)
	if err != nil {
		return err
	}
	m.end([]*lease{l}, &coordv1.Done{})
	c.answer.Response = &coordv1.Result_LeaseRevoke{LeaseRevoke: &apiv1.LeaseRevokeResponse{Header: c.header}}
	return nil
}

// expire ends leases whose time passed on the clock of the leader of a term, and skips unknown leases. At the limit on changed
// keys the last leases stay.
func (c *call) expire(m *Machine, r *coordv1.Expire, done *coordv1.Done) error {
	const most = 512
	if r.GetTerm() != c.term {
		return fault.Refused(fault.Conflict, "term", "measured in term %d, this is %d", r.GetTerm(), c.term)
	}
	var ending []*lease
	keys := 0
	for _, ref := range r.GetLeases()[:min(len(r.GetLeases()), most)] {
		l, ok := m.leases.Get(coord.LeaseID(ref.GetId()))
		if !ok || l.Granted != ref.GetGranted() || slices.Contains(ending, l) {
			continue
		}
		// The first lease always ends: a lease ends with all its keys.
		if keys += len(l.keys); len(ending) > 0 && keys > int(m.limits.Changes) {
			break
		}
		ending = append(ending, l)
	}
	m.end(ending, done)
	return nil
}

// end ends leases at one revision. First all claims leave their queues, then the queues advance, so
// that no ending lease is granted a lock.
func (m *Machine) end(ending []*lease, done *coordv1.Done) {
	var left []string // locks whose queues lost a claim
	for _, l := range ending {
		for _, key := range slices.Sorted(maps.Keys(l.keys)) {
			kv, _ := m.tree.Get(key)
			m.remove(key)
			if kv.LockClaim != nil {
				m.locks[kv.LockClaim.Lock].remove(kv.Token())
				left = append(left, kv.LockClaim.Lock)
			}
			done.Changed++
		}
		m.leases.Delete(l.ID)
		if principals.IsApplication(l.Owner) {
			m.leases.applications--
		}
		l.withdraw()
		l.owner.count(func(u *Usage) { u.Leases-- })
		m.owners.dropEmpty(l.Owner)
		m.effects.Ended = append(m.effects.Ended, l.ID)
		done.Ended = append(done.Ended, int64(l.ID))
	}
	slices.Sort(left)
	for _, lock := range slices.Compact(left) {
		m.settle(lock)
	}
}
