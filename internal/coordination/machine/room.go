package machine

import (
	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/pkg/coord"
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
		if err := m.limits.unleased(m.Usage(writer), unleased); err != nil {
			return err
		}
	}
	return room(m, m.Usage(writer), keys, bytes, d)
}

// quota checks an owner's bound on its part of a pool, by name.
func quota(pool, what string, has, more int64, most uint64) error {
	if more > 0 && uint64(has+more) > most {
		return fault.Exhausted("", pool, true, "%s: at most %d", what, most)
	}
	return nil
}

// roomOf checks an owner's quota for more bytes under its leases.
func (l *limits) roomOf(u *usage, more int64) error {
	return quota("bytes", "too much bound to the leases of one owner", u.Bytes, more, l.PerOwner.Bytes)
}

// unleased checks an owner's quota for more keys without a lease.
func (l *limits) unleased(has, more Usage) error {
	const remedy = " of one owner (delete some, or bind them to a lease)"
	if err := quota("keys", "too many keys without a lease"+remedy, int64(has.UnleasedKeys), int64(more.UnleasedKeys), uint64(l.PerOwner.UnleasedKeys)); err != nil {
		return err
	}
	return quota("bytes", "too many bytes in keys without a lease"+remedy, has.UnleasedBytes, more.UnleasedBytes, l.PerOwner.UnleasedBytes)
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
		return fault.Exhausted("", pool, false, "the group has room for %d %s, and %d are in use", open, pool, used)
	}
	return fault.Exhausted("", pool, true, "this owner has %d %s of the group, %d are free, and a part of them is for others", own, pool, free)
}

// room checks the room for more keys and bytes of an owner.
func room(m *Machine, owner Usage, keys int, bytes int64, d depth) error {
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

// Space is how full the keyspace is for keys of applications, from 0; above 1 locks and the directory use more than what
// is reserved for them.
type Space struct {
	Used    float64 // of the keys or of the bytes, whichever is fuller
	Most    string  // the owner with the most bytes in keys without a lease; empty: nobody
	Largest Usage   // of that owner
}

// SpaceOf returns how full the keyspace is. It takes time in proportion to the owners.
func SpaceOf(m *Machine) Space {
	keys, bytes := m.limits.open(m.limits.Keys, applications), m.limits.open(m.limits.Bytes, applications)
	s := Space{Used: max(float64(m.tree.Len())/float64(max(keys, 1)), float64(m.bytes)/float64(max(bytes, 1)))}
	for name, u := range m.owners {
		if has := u.UnleasedBytes; has > s.Largest.UnleasedBytes || has > 0 && has == s.Largest.UnleasedBytes && name < s.Most {
			s.Most, s.Largest = name, u.Usage
		}
	}
	return s
}
