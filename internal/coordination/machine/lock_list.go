package machine

import (
	"math"
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// claimOverhead is what an answer adds to the key and the metadata of a claim, about. MAGIC: JSON has the long names.
const claimOverhead = 300

// LockInfo is the present state of a lock.
type LockInfo struct {
	Name    string
	Holding []*coord.KeyValue // keys of holding claims, by token
	Waiting []*coord.KeyValue // keys of waiting claims, in order of their turn, which is by token too
	LeftOut int               // claims behind these that do not fit the answer
	// Applications behind the claims, by lease; those without a name are missing.
	Applications map[coord.LeaseID]string
}

// Lock returns a lock with all its claims, or false without claims.
func (m *Machine) Lock(name string) (LockInfo, bool) {
	room := math.MaxInt
	return lockPage(m, name, 0, &room)
}

// LockQuery asks for one lock by Name, or with Name "" for a page of the locks under Prefix, after After.
type LockQuery struct {
	Name   string
	Prefix string
	After  string // the name of the last lock of the page before
	Limit  int    // on locks; 0 or less is none
	Bytes  int    // end a page after the claim that reaches them; 0 or less is no bound
	// AfterToken is the token of the last claim of the page before, of the lock Name.
	AfterToken coord.Token
}

// ListLocks returns the locks of a query within its bounds: the one that it names, if it has claims, or a page by name.
func ListLocks(m *Machine, q LockQuery) (found []LockInfo) {
	room := math.MaxInt
	if q.Bytes > 0 {
		room = q.Bytes
	}
	names := []string{q.Name}
	if q.Name == "" {
		names = m.LockNames(q.Prefix)
		i, same := slices.BinarySearch(names, q.After)
		if same {
			i++
		}
		names, q.AfterToken = names[i:], 0
	}
	for _, name := range names {
		if room <= 0 || q.Limit > 0 && len(found) == q.Limit {
			break
		}
		if info, ok := lockPage(m, name, q.AfterToken, &room); ok {
			found = append(found, info)
		}
	}
	return found
}

// lockPage returns a lock with the claims after a token, as many as there is room for; at least one.
func lockPage(m *Machine, name string, after coord.Token, room *int) (LockInfo, bool) {
	q := m.locks[name]
	if q == nil {
		return LockInfo{}, false
	}
	first, same := q.find(after)
	if same {
		first++
	}
	end := first
	for ; end < len(q.claims) && (end == first || *room > 0); end++ {
		*room -= int(kvSize(q.claims[end])) + claimOverhead
	}
	all, held := slices.Clone(q.claims[first:end]), min(max(q.held-first, 0), end-first)
	info := LockInfo{
		Name: name, Holding: all[:held:held], Waiting: all[held:], LeftOut: len(q.claims) - end, Applications: make(map[coord.LeaseID]string),
	}
	for _, kv := range all {
		if l, ok := m.leases.Get(kv.Lease); ok && l.Application != "" {
			info.Applications[kv.Lease] = l.Application
		}
	}
	return info, true
}
