package machine

import (
	"container/list"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
)

// Usage is an owner's share of the quantities in its Quota.
type Usage struct {
	Leases, Claims, Clients int
	Keys                    int   // bound to its leases, claims included
	Bytes                   int64 // of these keys

	UnleasedKeys  int // keys without a lease that it put last
	UnleasedBytes int64
}

// note counts a key without a lease, with n 1 or -1.
func (u *Usage) note(kv *coord.KeyValue, n int) {
	u.UnleasedKeys += n
	u.UnleasedBytes += int64(n) * kvSize(kv)
}

// usage is the Usage of one owner. Its leases, clients and keys without a lease keep it alive; its leases
// share it.
type usage struct {
	Usage
	account   *Usage     // of all callers without a name whose quotas are one; nil: the owner is none of them
	published *published // nil: nothing yet
	idle      list.List  // its clients: *client, the one with the oldest last command first
}

// count changes the usage of an owner, and of its account.
func (a *usage) count(by func(u *Usage)) {
	if by(&a.Usage); a.account != nil {
		by(a.account)
	}
}

// total is the usage for which the group has bounds.
func (a *usage) total() *Usage {
	if a.account != nil {
		return a.account
	}
	return &a.Usage
}

// bind counts a version under a lease, with n 1 or -1.
func (u *Usage) bind(kv *coord.KeyValue, n int) {
	u.Keys += n
	u.Bytes += int64(n) * kvSize(kv)
	if kv.LockClaim != nil {
		u.Claims += n
	}
}

func (a *usage) add(kv *coord.KeyValue) {
	a.count(func(u *Usage) { u.bind(kv, 1) })
	if isEntry(kv) {
		p := a.publish()
		p.Add(kv.Key, kv.Value)
		p.keys.Insert(kv.Key)
	}
}

func (a *usage) remove(kv *coord.KeyValue) {
	a.count(func(u *Usage) { u.bind(kv, -1) })
	if isEntry(kv) {
		a.published.Remove(kv.Key, kv.Value)
		a.published.keys.Delete(kv.Key)
	}
}

// Usage returns an owner's usage.
func (m *Machine) Usage(owner string) Usage {
	return m.owners.find(owner).Usage
}

// owners are the owners with a lease, a client or a key without a lease, by name, and the accounts of those without a
// name. The order of the maps never matters.
type owners struct {
	by       map[string]*usage
	accounts map[string]*Usage
}

func newOwners() owners { return owners{map[string]*usage{}, map[string]*Usage{}} }

// find returns an owner's usage, which is an empty one apart from the others if it has nothing.
func (o *owners) find(name string) *usage {
	if a := o.by[name]; a != nil {
		return a
	}
	a := &usage{}
	if account, ok := principals.Account(name); ok {
		if a.account = o.accounts[account]; a.account == nil {
			a.account = &Usage{}
		}
	}
	return a
}

// of returns an owner's usage, made on demand.
func (o *owners) of(name string) *usage {
	if a := o.by[name]; a != nil {
		return a
	}
	a := o.find(name)
	o.by[name] = a
	if account, ok := principals.Account(name); ok {
		o.accounts[account] = a.account
	}
	return a
}

// dropEmpty forgets an owner without leases, clients and keys, and its account.
func (o *owners) dropEmpty(name string) {
	if a := o.by[name]; a != nil && a.Usage == (Usage{}) {
		delete(o.by, name)
		if account, ok := principals.Account(name); ok && *a.account == (Usage{}) {
			delete(o.accounts, account)
		}
	}
}

// bind counts a version for its owner: the one of its lease, or the writer of a key without a lease.
func bind(m *Machine, kv *coord.KeyValue) {
	if kv.Lease != 0 {
		m.leases.bind(kv)
	} else if kv.Writer != "" {
		m.owners.of(kv.Writer).count(func(u *Usage) { u.note(kv, 1) })
	}
}

func unbind(m *Machine, kv *coord.KeyValue) {
	if kv.Lease != 0 {
		m.leases.unbind(kv)
	} else if kv.Writer != "" {
		m.owners.of(kv.Writer).count(func(u *Usage) { u.note(kv, -1) })
		m.owners.dropEmpty(kv.Writer)
	}
}
