package machine

import "github.com/blackhole/blackhole/pkg/coord"

// Usage is what an owner has of what its Quota bounds.
type Usage struct {
	Leases, Claims, Clients int
	Bytes                   int64
}

// usage is the Usage of one owner. Every one of its leases and clients leads to it, so it is
// kept as long as there is one; its keys are bound to its leases.
type usage struct {
	Usage
	published *published // nil: nothing yet
}

func (a *usage) add(kv *coord.KeyValue) {
	a.Bytes += kvSize(kv)
	if isEntry(kv) {
		p := a.publish()
		p.Add(kv.Key, kv.Value)
		p.keys.Insert(kv.Key)
	}
	if kv.LockClaim != nil {
		a.Claims++
	}
}

func (a *usage) remove(kv *coord.KeyValue) {
	a.Bytes -= kvSize(kv)
	if isEntry(kv) {
		a.published.Remove(kv.Key, kv.Value)
		a.published.keys.Delete(kv.Key)
	}
	if kv.LockClaim != nil {
		a.Claims--
	}
}

// Usage tells what an owner has.
func (m *Machine) Usage(owner string) Usage {
	if a := m.owners[owner]; a != nil {
		return a.Usage
	}
	return Usage{}
}

// owner gives the account of one who is about to have something.
func (m *Machine) owner(name string) *usage {
	a := m.owners[name]
	if a == nil {
		a = &usage{}
		m.owners[name] = a
	}
	return a
}

// addLease adds a lease.
func (m *Machine) addLease(l coord.Lease) {
	a := m.owner(l.Owner)
	a.Leases++
	m.leases.Set(l.ID, &lease{Lease: l, keys: make(map[string]struct{}), owner: a})
}

// dropEmptyOwner forgets the account of an owner who has nothing any more.
func (m *Machine) dropEmptyOwner(name string) {
	if a := m.owners[name]; a != nil && a.Usage == (Usage{}) {
		delete(m.owners, name)
	}
}

// room checks that an owner who has so many bytes may have more.
func roomFor(q *coord.Quota, has, more int64) error {
	if more > 0 && uint64(has+more) > q.Bytes {
		return limitReached("per_owner.bytes", "too much bound to the leases of one owner", q.Bytes)
	}
	return nil
}
