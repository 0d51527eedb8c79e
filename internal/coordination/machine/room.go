package machine

import (
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/pkg/fault"
)

// feasible checks that there is room for all changes of an owner. Keys without a lease count for it, unless it is a peer that publishes,
// or the group itself.
func feasible(m *Machine, changes []change, writer string, d depth) error {
	var keys int
	var bytes int64
	var unleased Usage                   // of the writer, more than now
	owned := make(map[*usage]int64)      // bytes bound to the leases of an owner
	bound := make(map[coord.LeaseID]int) // both stay empty, and on the stack, without leases
	for _, s := range changes {
		prev, had := m.tree.Get(s.key)
		bytes += kvSize(s.kv) - kvSize(prev)
		if had && prev.Lease != 0 {
			owned[m.leases.ownerOf(prev.Lease)] -= kvSize(prev)
		} else if had && prev.Writer == writer {
			unleased.note(prev, -1)
		}
		if s.kv == nil {
			keys--
			continue
		}
		if !had {
			keys++
		}
		if s.kv.Lease == 0 {
			unleased.note(s.kv, 1)
			continue
		}
		owned[m.leases.ownerOf(s.kv.Lease)] += kvSize(s.kv)
		if !had || prev.Lease != s.kv.Lease {
			bound[s.kv.Lease]++
			if err := m.leases.bindable(s.kv.Lease, bound[s.kv.Lease], m.limits.LeaseKeys); err != nil {
				return err
			}
		}
	}
	for u, more := range owned {
		if err := m.limits.roomOf(u, more); err != nil { // the order does not matter: the error is the same
			return err
		}
	}
	if d == applications {
		if err := m.limits.unleased(m.owners.find(writer), unleased); err != nil {
			return err
		}
	}
	return room(m, m.owners.find(writer).total(), keys, bytes, d)
}

// quota checks an owner's bound on its part of a pool, by name. Callers without a name share theirs with those of the
// same account, so that each leaves some to others.
func (a *usage) quota(pool, what string, has func(*Usage) int64, more int64, most uint64) error {
	all := uint64(max(has(a.total()), 0))
	switch {
	case more <= 0:
		return nil
	case all+uint64(more) > most:
		return fault.Exhausted("", pool, true, "%s: at most %d", what, most)
	case a.account != nil && !share.Fits(uint64(max(has(&a.Usage), 0)), uint64(more), most-all):
		const others = "%s: at most %d, of which each caller without a name leaves some to others"
		return fault.Exhausted("", pool, true, others, what, most)
	}
	return nil
}

// roomOf checks an owner's quota for more bytes under its leases.
func (l *limits) roomOf(u *usage, more int64) error {
	bytes := func(u *Usage) int64 { return u.Bytes }
	return u.quota("bytes", "too much bound to the leases of one owner", bytes, more, l.PerOwner.Bytes)
}

// unleased checks an owner's quota for more keys without a lease.
func (l *limits) unleased(of *usage, more Usage) error {
	const remedy = " of one owner (delete some, or bind them to a lease)"
	keys := func(u *Usage) int64 { return int64(u.UnleasedKeys) }
	err := of.quota("keys", "too many keys without a lease"+remedy, keys, int64(more.UnleasedKeys), uint64(l.PerOwner.UnleasedKeys))
	if err != nil {
		return err
	}
	bytes := func(u *Usage) int64 { return u.UnleasedBytes }
	most := l.PerOwner.UnleasedBytes
	return of.quota("bytes", "too many bytes in keys without a lease"+remedy, bytes, more.UnleasedBytes, most)
}

// depth says how far into the keyspace a command may go. Nobody takes what the peers themselves need for the directory.
type depth int

const (
	applications depth = iota // up to the reserve
	claims                    // of locks, into half of it
	peers                     // everything
)

// open returns the part of a total that is open down to a depth.
func (l *limits) open(total uint64, d depth) uint64 {
	kept := l.Kept(total)
	return total - [...]uint64{applications: kept, claims: kept / 2, peers: 0}[d]
}

// take checks that an owner that has own may have more of a pool, of which the part that is open to the command has used. See share.Fits.
func take(pool string, own, more, used, open uint64) error {
	free := open - min(open, used)
	switch {
	case share.Fits(own, more, free):
		return nil
	case own == 0 || more > free:
		return fault.Exhausted("", pool, false, "there is room for %d in the pool of %s, and %d are in use", open, pool, used)
	}
	return fault.Exhausted("", pool, true, "this owner has %d in the pool of %s, %d are free, and a part of them is for others", own, pool, free)
}

// room checks the room for more keys and bytes of an owner.
func room(m *Machine, owner *Usage, keys int, bytes int64, d depth) error {
	if keys > 0 {
		if err := take("keys", uint64(owner.Keys+owner.UnleasedKeys), uint64(keys), uint64(m.tree.Len()), m.limits.open(m.limits.Keys, d)); err != nil {
			return err
		}
	}
	if bytes > 0 {
		return take("bytes", uint64(owner.Bytes+owner.UnleasedBytes), uint64(bytes), uint64(m.bytes), m.limits.open(m.limits.Bytes, d))
	}
	return nil
}

// Pool is a pool of the group, as far as it is open to applications.
type Pool struct {
	Name string
	Used float64 // share of what is open, from 0; above 1 the reserve is in use
	Most string  // the owner that has most of it; empty without one
	Has  uint64  // its amount; 0 without an owner
}

// PoolsOf returns the pools of the group, each with the owner that has most of it. It takes time in proportion to the owners.
func PoolsOf(m *Machine) []Pool {
	l, set := &m.limits, m.requirements()
	leases, forLeases := m.leases.room(true, l)
	return []Pool{
		poolOf(m, "keys", uint64(m.tree.Len()), l.open(l.Keys, applications), func(_ string, u *Usage) int { return u.Keys + u.UnleasedKeys }),
		poolOf(m, "bytes", uint64(m.bytes), l.open(l.Bytes, applications), func(_ string, u *Usage) int { return int(u.Bytes + u.UnleasedBytes) }),
		poolOf(m, "leases", leases, forLeases, func(_ string, u *Usage) int { return u.Leases }),
		poolOf(m, "clients", uint64(m.clients.applications), l.open(uint64(l.Clients), applications), func(_ string, u *Usage) int { return u.Clients }),
		poolOf(m, "requirements", set.all, requirements.Max, func(owner string, _ *Usage) int { return int(set.of[owner]) }),
	}
}

// poolOf finds the owner that has most of a pool; of equal ones the first by name.
func poolOf(m *Machine, pool string, used, open uint64, of func(string, *Usage) int) Pool {
	p := Pool{Name: pool, Used: float64(used) / float64(max(open, 1))}
	for owner, u := range m.owners.by {
		if n := uint64(of(owner, &u.Usage)); n > p.Has || n == p.Has && n > 0 && owner < p.Most {
			p.Most, p.Has = owner, n
		}
	}
	return p
}
