package machine

import (
	"github.com/blackhole/blackhole/pkg/coord"
)

// feasible checks that there is room for all changes. Keys without a lease count for the writer. Locks and the
// directory have no writer here, nor have the group's own keys, and may use the part of the keyspace that is reserved.
func feasible(m *Machine, changes []change, writer string) error {
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
	if writer != "" {
		if err := m.limits.unleased(m.Usage(writer), unleased); err != nil {
			return err
		}
	}
	return room(m, keys, bytes, writer != "")
}

// roomOf checks an owner's quota for more bytes under its leases.
func (l *limits) roomOf(u *usage, more int64) error {
	if most := l.PerOwner.Bytes; more > 0 && uint64(u.Bytes+more) > most {
		return noSpace("per_owner.bytes", "too much bound to the leases of one owner", most)
	}
	return nil
}

// unleased checks an owner's quota for more keys without a lease.
func (l *limits) unleased(has, more Usage) error {
	const remedy = "delete some, or bind them to a lease"
	if most := l.PerOwner.UnleasedKeys; more.UnleasedKeys > 0 && has.UnleasedKeys+more.UnleasedKeys > int(most) {
		return noSpace("per_owner.unleased_keys", "too many keys without a lease of one owner ("+remedy+")", uint64(most))
	}
	if most := l.PerOwner.UnleasedBytes; more.UnleasedBytes > 0 && uint64(has.UnleasedBytes+more.UnleasedBytes) > most {
		return noSpace("per_owner.unleased_bytes", "too many bytes in keys without a lease of one owner ("+remedy+")", most)
	}
	return nil
}

// room checks the limits on the keyspace. Ordinary keys cannot take what is reserved.
func room(m *Machine, keys int, bytes int64, ordinary bool) error {
	mostKeys, mostBytes, what := m.limits.Keys, m.limits.Bytes, "the keyspace is full"
	if ordinary {
		mostKeys, mostBytes = m.limits.Ordinary()
		what = "the keyspace has room for locks and the directory only"
	}
	if keys > 0 && uint64(m.tree.Len()+keys) > mostKeys {
		return noSpace("keys", what, mostKeys)
	}
	if bytes > 0 && uint64(m.bytes+bytes) > mostBytes {
		return noSpace("bytes", what, mostBytes)
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
	keys, bytes := m.limits.Ordinary()
	s := Space{Used: max(float64(m.tree.Len())/float64(max(keys, 1)), float64(m.bytes)/float64(max(bytes, 1)))}
	for name, u := range m.owners {
		if has := u.UnleasedBytes; has > s.Largest.UnleasedBytes || has > 0 && has == s.Largest.UnleasedBytes && name < s.Most {
			s.Most, s.Largest = name, u.Usage
		}
	}
	return s
}
