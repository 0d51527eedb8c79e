package machine

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// published is the state of an owner's entries. Everything except the generation and its lease
// derives from the entries.
type published struct {
	coord.Publication
	lease coord.LeaseID // of the generation; 0 without a generation
	keys  btree.Set[string]
}

// Publication returns the publication of a lease's owner if the owner publishes under this lease;
// otherwise nil.
func (m *Machine) Publication(id coord.LeaseID) *coord.Publication {
	l, ok := m.leases.Get(id)
	if !ok || l.owner.published == nil || l.owner.published.lease != id {
		return nil
	}
	p := l.owner.published.Publication
	return &p
}

// entry reports whether a version is one of an instance in the directory.
func isEntry(kv *coord.KeyValue) bool {
	return kv.LockClaim == nil && strings.HasPrefix(kv.Key, coord.DirectoryPrefix)
}

// withdraw ends the generation of a lease that ends.
func (l *lease) withdraw() {
	if p := l.owner.published; p != nil && p.lease == l.ID {
		p.Generation, p.lease = 0, 0
	}
}

func (a *usage) publish() *published {
	if a.published == nil {
		a.published = new(published)
	}
	return a.published
}

func (o *registerBatchOp) run(m *Machine, c *call) error {
	if err := o.check(&m.limits); err != nil {
		return err
	}
	l, err := m.leases.usable(o.Lease, c.owner)
	if err != nil {
		return err
	}
	if l.Owner != c.owner { // entries have one owner, also among callers without a name
		return fault.Refused(fault.Forbidden, "lease", "belongs to another owner")
	}
	p := l.owner.publish()
	switch {
	case o.Generation < p.Generation:
		return fault.Refused(fault.Conflict, "generation", "%d is over, the present one is %d", o.Generation, p.Generation)
	case o.Generation == p.Generation && o.Lease != p.lease:
		return fault.Refused(fault.Conflict, "lease", "the generation is bound to another")
	}
	changes, foreign := o.reconcile(m, l)
	if err := feasible(m, changes, ""); err != nil {
		return err
	}
	if most := uint64(m.limits.Changes); uint64(len(changes)) > most {
		return limitReached("replace", "too many entries changed by one batch", most)
	}
	for _, s := range changes {
		if s.kv == nil {
			m.remove(s.key)
			m.removals.add(s.key, removal{m.revision + 1, c.owner})
		} else {
			m.put(s.kv)
			m.removals.forget(s.key)
		}
	}
	p.Generation, p.lease = o.Generation, o.Lease
	c.result.Changed, c.result.Foreign, c.result.Since = len(changes), foreign, o.stamp(m)
	return nil
}

// check looks at a batch by itself.
func (o *registerBatchOp) check(l *limits) error {
	switch n := len(o.Puts) + len(o.Deletes); {
	case o.Generation == 0:
		return fault.Invalidf("generation", nil, "must be above 0")
	case n == 0 && o.Replace == nil:
		return fault.Invalidf("puts", nil, "is missing")
	case n > coord.MaxBatch:
		return limitReached("puts", "too many entries in one batch", coord.MaxBatch)
	}
	size := 0
	seen := make(map[string]struct{}, len(o.Puts)+len(o.Deletes))
	for i := range o.Puts {
		e := &o.Puts[i]
		if err := checkEntry(e, l); err != nil {
			return fault.In(fmt.Sprintf("puts[%d]", i), err)
		}
		if o.Replace != nil && !o.Replace.Contains(e.Key) {
			return fault.Invalidf(fmt.Sprintf("puts[%d].key", i), nil, "is not in the span to replace")
		}
		seen[e.Key] = struct{}{}
		size += len(e.Key) + len(e.Value)
	}
	for i, key := range o.Deletes {
		if err := l.key(fmt.Sprintf("deletes[%d]", i), key); err != nil {
			return err
		}
		seen[key] = struct{}{}
		size += len(key)
	}
	switch {
	case len(seen) < len(o.Puts)+len(o.Deletes):
		return fault.Invalidf("puts", nil, "contain a duplicate or deleted key")
	case size > coord.MaxBatchBytes:
		return tooLarge("puts", size, coord.MaxBatchBytes)
	}
	return nil
}

// reconcile returns the changes from the owner's present entries to those of the batch, and the keys
// of skipped puts.
func (o *registerBatchOp) reconcile(m *Machine, l *lease) (changes []change, foreign []string) {
	changes = make([]change, 0, len(o.Puts)+len(o.Deletes))
	named := make(map[string]struct{}, len(o.Puts))
	mine := &l.owner.published.keys
	for i := range o.Puts {
		e := &o.Puts[i]
		named[e.Key] = struct{}{}
		switch kv, ok := m.tree.Get(e.Key); {
		case !mine.Contains(e.Key) && m.removals.supersede(m.clampSince(e.Since), e, kv, l.Owner):
			foreign = append(foreign, e.Key)
		case !ok || kv.Lease != o.Lease || !bytes.Equal(kv.Value, e.Value) || kv.Principal != e.Principal:
			changes = append(changes, change{e.Key, &coord.KeyValue{Key: e.Key, Value: e.Value, Lease: o.Lease, Principal: e.Principal}})
		}
	}
	slices.Sort(foreign)
	for _, key := range o.Deletes {
		named[key] = struct{}{}
		if mine.Contains(key) {
			changes = append(changes, change{key: key})
		}
	}
	if o.Replace == nil {
		return changes, foreign
	}
	mine.Ascend(o.Replace.From, func(key string) bool {
		if !o.Replace.Contains(key) {
			return false
		}
		if _, ok := named[key]; !ok {
			changes = append(changes, change{key: key})
		}
		return true
	})
	return changes, foreign
}
