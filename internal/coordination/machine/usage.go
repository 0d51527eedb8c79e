package machine

import "github.com/blackhole/blackhole/pkg/coord"

// Usage is an owner's share of the quantities in its Quota.
type Usage struct {
	Leases, Claims, Clients int
	Bytes                   int64
}

// usage is the Usage of one owner. Its leases and clients share it and keep it alive; its keys
// are bound to its leases.
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

// Usage returns an owner's usage.
func (m *Machine) Usage(owner string) Usage {
	if a := m.owners[owner]; a != nil {
		return a.Usage
	}
	return Usage{}
}

// owners are the owners with a lease or a client, by name. The map's order never matters.
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

// dropEmpty forgets an owner without leases and clients.
func (o owners) dropEmpty(name string) {
	if a := o[name]; a != nil && a.Usage == (Usage{}) {
		delete(o, name)
	}
}

// roomFor checks an owner's quota for more bytes.
func roomFor(q *coord.Quota, has, more int64) error {
	if more > 0 && uint64(has+more) > q.Bytes {
		return limitReached("per_owner.bytes", "too much bound to the leases of one owner", q.Bytes)
	}
	return nil
}
