package machine

import (
	"container/list"

	"github.com/blackhole/blackhole/pkg/coord"
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
	published *published // nil: nothing yet
	idle      list.List  // its clients: *client, the one with the oldest last command first
}

func (a *usage) add(kv *coord.KeyValue) {
	a.Keys++
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
	a.Keys--
	a.Bytes -= kvSize(kv)
	if isEntry(kv) {
		a.published.Remove(kv.Key, kv.Value)
		a.published.keys.Delete(kv.Key)
	}
	if kv.LockClaim != nil {
		a.Claims--
	}
}

// Usage returns an owner's usage.
func (m *Machine) Usage(owner string) Usage {
	if a := m.owners[owner]; a != nil {
		return a.Usage
	}
	return Usage{}
}

// owners are the owners with a lease, a client or a key without a lease, by name. The map's order never matters.
type owners map[string]*usage

// of returns an owner's usage, made on demand.
func (o owners) of(name string) *usage {
	a := o[name]
	if a == nil {
		a = &usage{}
		o[name] = a
	}
	return a
}

// dropEmpty forgets an owner without leases, clients and keys.
func (o owners) dropEmpty(name string) {
	if a := o[name]; a != nil && a.Usage == (Usage{}) {
		delete(o, name)
	}
}

// bind counts a version for its owner: the one of its lease, or the writer of a key without a lease.
func bind(m *Machine, kv *coord.KeyValue) {
	if kv.Lease != 0 {
		m.leases.bind(kv)
	} else if kv.Writer != "" {
		m.owners.of(kv.Writer).note(kv, 1)
	}
}

func unbind(m *Machine, kv *coord.KeyValue) {
	if kv.Lease != 0 {
		m.leases.unbind(kv)
	} else if kv.Writer != "" {
		m.owners.of(kv.Writer).note(kv, -1)
		m.owners.dropEmpty(kv.Writer)
	}
}
