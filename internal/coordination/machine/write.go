package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// step is a change of one key; a nil put deletes the key.
type step struct {
	key   string
	put   *coord.Put
	field int // position of the change
}

func (o *writeOp) run(m *Machine, c *call) error {
	if len(o.Then) == 0 {
		return fault.Invalidf("changes", nil, "is missing")
	}
	if most := uint64(m.limits.Changes); uint64(len(o.Then)) > most || uint64(len(o.If)) > most {
		return limitReached("changes", "too many in one write", most)
	}
	for i, g := range o.If {
		if err := o.holds(m, g); err != nil {
			return fault.In(fmt.Sprintf("guards[%d]", i), err)
		}
	}
	steps, err := o.plan(m, c.owner)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if s.put == nil {
			m.remove(s.key)
		} else {
			m.put(&coord.KeyValue{Key: s.key, Value: s.put.Value, Lease: s.put.Lease})
		}
	}
	c.result.Changed = len(steps)
	return nil
}

// holds checks a guard.
func (o *writeOp) holds(m *Machine, g coord.Guard) error {
	if lock, token, ok := g.Held(); ok {
		if q := m.locks[lock]; q == nil || !q.holds(token) {
			return fault.Refused(fault.Conflict, "token", "%d does not hold the lock", token)
		}
		return nil
	}
	key, expected, _ := g.Unchanged()
	if err := m.limits.key("key", key); err != nil {
		return err
	}
	var mod coord.Revision
	if kv, ok := m.tree.Get(key); ok {
		mod = kv.ModRevision
	}
	if mod != expected {
		return fault.Refused(fault.Conflict, "mod_revision", "is %d, not %d", mod, expected)
	}
	return nil
}

// plan returns the steps of the changes and checks each.
func (o *writeOp) plan(m *Machine, owner string) ([]step, error) {
	steps := make([]step, 0, len(o.Then))
	for i, change := range o.Then {
		var err error
		switch {
		case change.Put != nil && change.Delete == nil:
			err = o.puttable(m, change.Put, owner)
			steps = append(steps, step{change.Put.Key, change.Put, i})
		case change.Delete != nil && change.Put == nil:
			steps, err = o.deletable(m, steps, *change.Delete, i)
		default:
			err = fault.Invalidf("change", nil, "must be one put or one deletion")
		}
		if err != nil {
			return nil, fault.In(fmt.Sprintf("changes[%d]", i), err)
		}
	}
	return steps, feasible(m, steps)
}

// puttable checks a put by itself.
func (o *writeOp) puttable(m *Machine, p *coord.Put, owner string) error {
	if err := m.limits.key("key", p.Key); err != nil {
		return err
	}
	if err := m.limits.value("value", p.Value); err != nil {
		return err
	}
	if reserved(p.Key) && (owner != "" || !strings.HasPrefix(p.Key, coord.MembersPrefix)) { // members' commands have no owner
		return fault.Refused(fault.Conflict, "key", "is reserved: use the commands of the directory or of the group")
	}
	if p.Lease != 0 {
		if _, err := m.leases.usable(p.Lease, owner); err != nil {
			return err
		}
	}
	if kv, ok := m.tree.Get(p.Key); ok && kv.LockClaim != nil {
		return fault.Refused(fault.Conflict, "key", "is a lock's: use the lock's commands")
	}
	return nil
}

// deletable adds the deletion of each key in a span.
func (o *writeOp) deletable(m *Machine, steps []step, span coord.Span, field int) ([]step, error) {
	var err error
	if span.Empty() {
		return steps, nil
	}
	m.tree.Ascend(span.From, func(key string, kv *coord.KeyValue) bool {
		switch {
		case span.To != "" && key >= span.To:
			return false
		case kv.LockClaim != nil:
			err = fault.Refused(fault.Conflict, "delete", "the span has a lock's key: use the lock's commands")
		case reserved(key):
			err = fault.Refused(fault.Conflict, "delete", "the span has a key of the directory: use its commands")
		case len(steps) >= int(m.limits.Changes):
			err = limitReached("delete", "too many keys in one write", uint64(m.limits.Changes))
		default:
			steps = append(steps, step{key: key, field: field})
		}
		return err == nil
	})
	return steps, err
}

// feasible checks the steps together: one per key, and room for all.
func feasible(m *Machine, steps []step) error {
	if len(steps) > 1 {
		slices.SortStableFunc(steps, func(a, b step) int { return strings.Compare(a.key, b.key) })
	}
	var keys int
	var bytes int64
	owned := make(map[*usage]int64)      // bytes bound to the leases of an owner
	bound := make(map[coord.LeaseID]int) // both stay empty, and on the stack, without leases
	for i, s := range steps {
		if i > 0 && steps[i-1].key == s.key {
			return fault.Invalidf(fmt.Sprintf("changes[%d]", s.field), nil, "touches a key that an earlier change touches")
		}
		prev, had := m.tree.Get(s.key)
		bytes -= kvSize(prev)
		if had && prev.Lease != 0 {
			owned[m.leases.ownerOf(prev.Lease)] -= kvSize(prev)
		}
		if s.put == nil {
			keys--
			continue
		}
		size := rawSize(len(s.key), len(s.put.Value))
		bytes += size
		if !had {
			keys++
		}
		if s.put.Lease == 0 {
			continue
		}
		owned[m.leases.ownerOf(s.put.Lease)] += size
		if !had || prev.Lease != s.put.Lease {
			bound[s.put.Lease]++
			if err := m.leases.bindable(s.put.Lease, bound[s.put.Lease], m.limits.LeaseKeys); err != nil {
				return err
			}
		}
	}
	for u, more := range owned {
		if err := roomFor(&m.limits.PerOwner, u.Bytes, more); err != nil { // the order does not matter: the error is the same
			return err
		}
	}
	return m.room(&m.limits, keys, bytes)
}
