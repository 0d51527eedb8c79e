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

// owners are the owners with a lease or a client, by name. The order of the map never matters.
type owners map[string]*usage

// of returns the usage of an owner, made if there is none.
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

// room checks that an owner who has so many bytes may have more.
func roomFor(q *coord.Quota, has, more int64) error {
	if more > 0 && uint64(has+more) > q.Bytes {
		return limitReached("per_owner.bytes", "too much bound to the leases of one owner", q.Bytes)
	}
	return nil
}
