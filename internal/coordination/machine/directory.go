package machine

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// published is the state of an owner's entries. Everything except the generation and its lease
// derives from the entries.
type published struct {
	directory.Publication
	lease coord.LeaseID // of the generation; 0 without a generation
	keys  btree.Set[string]
}

// Publication returns the publication of a lease's owner if the owner publishes under this lease;
// otherwise nil.
func (m *Machine) Publication(id coord.LeaseID) *directory.Publication {
	l, ok := m.leases.Get(id)
	if !ok || l.owner.published == nil || l.owner.published.lease != id {
		return nil
	}
	p := l.owner.published.Publication
	return &p
}

// entry reports whether a version is one of an instance in the directory.
func isEntry(kv *coord.KeyValue) bool {
	return kv.LockClaim == nil && strings.HasPrefix(kv.Key, directory.Prefix)
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

// batch is a request to publish instances, with the keys as strings.
type batch struct {
	*apiv1.PublishInstancesRequest
	lease   coord.LeaseID
	puts    []string
	deletes []string
	span    coord.Span // to replace, with GetReplace
}

func newBatch(r *apiv1.PublishInstancesRequest) *batch {
	b := &batch{
		PublishInstancesRequest: r, lease: coord.LeaseID(r.GetLeaseId()), span: coord.SpanOf(r.GetKey(), r.GetRangeEnd()),
		puts: make([]string, len(r.GetPuts())), deletes: make([]string, len(r.GetDeletes())),
	}
	for i, e := range r.GetPuts() {
		b.puts[i] = string(e.GetKey())
	}
	for i, key := range r.GetDeletes() {
		b.deletes[i] = string(key)
	}
	return b
}

// publish changes the entries of an owner, a peer, at one revision. A put of an equal value under the same lease makes no event.
//
// An owner publishes under one lease and in generations. The first batch of a generation binds it to the lease. Until the
// end of that lease the group rejects batches of older generations: a late command of an earlier process, or from before a
// resync, changes nothing. Entries of older generations stay until a put, a delete, a replaced span or the end of their lease.
func (c *call) publish(m *Machine, r *apiv1.PublishInstancesRequest) error {
	if n := len(r.GetPuts()) + len(r.GetDeletes()); n > directory.MaxBatch {
		return limitReached("puts", "too many entries in one batch", directory.MaxBatch)
	}
	b := newBatch(r)
	if err := b.check(&m.limits); err != nil {
		return err
	}
	l, err := m.leases.usable(b.lease, c.owner)
	if err != nil {
		return err
	}
	if l.Owner != c.owner { // entries have one owner, also among callers without a name
		return fault.Refused(fault.Forbidden, "lease", "belongs to another owner")
	}
	p := l.owner.publish()
	switch {
	case r.GetGeneration() < p.Generation:
		return fault.Refused(fault.Conflict, "generation", "%d is over, the present one is %d", r.GetGeneration(), p.Generation)
	case r.GetGeneration() == p.Generation && b.lease != p.lease:
		return fault.Refused(fault.Conflict, "lease", "the generation is bound to another")
	}
	changes, foreign := b.reconcile(m, l)
	if err := feasible(m, changes, c.owner, peers); err != nil {
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
	p.Generation, p.lease = r.GetGeneration(), b.lease
	c.answer.Response = &coordv1.Result_PublishInstances{PublishInstances: &apiv1.PublishInstancesResponse{
		Header: c.header, Changed: uint32(len(changes)), Foreign: foreign, Since: b.stamp(m),
	}}
	return nil
}

// check looks at a batch by itself.
func (b *batch) check(l *limits) error {
	switch {
	case b.GetGeneration() == 0:
		return fault.Invalidf("generation", nil, "must be above 0")
	case len(b.puts)+len(b.deletes) == 0 && !b.GetReplace():
		return fault.Invalidf("puts", nil, "is missing")
	}
	size := 0
	seen := make(map[string]struct{}, len(b.puts)+len(b.deletes))
	for i, e := range b.GetPuts() {
		if err := checkEntry(b.puts[i], e, l); err != nil {
			return fault.In(fmt.Sprintf("puts[%d]", i), err)
		}
		if b.GetReplace() && !b.span.Contains(b.puts[i]) {
			return fault.Invalidf(fmt.Sprintf("puts[%d].key", i), nil, "is not in the span to replace")
		}
		seen[b.puts[i]] = struct{}{}
		size += len(b.puts[i]) + len(e.GetValue())
	}
	for i, key := range b.deletes {
		if err := l.key(fmt.Sprintf("deletes[%d]", i), len(key)); err != nil {
			return err
		}
		seen[key] = struct{}{}
		size += len(key)
	}
	switch {
	case len(seen) < len(b.puts)+len(b.deletes):
		return fault.Invalidf("puts", nil, "contain a duplicate or deleted key")
	case size > directory.MaxBatchBytes:
		return tooLarge("puts", size, directory.MaxBatchBytes)
	}
	return nil
}

// reconcile returns the changes from the owner's present entries to those of the batch, and the keys
// of skipped puts.
func (b *batch) reconcile(m *Machine, l *lease) (changes []change, foreign [][]byte) {
	changes = make([]change, 0, len(b.puts)+len(b.deletes))
	named := make(map[string]struct{}, len(b.puts))
	mine := &l.owner.published.keys
	for i, e := range b.GetPuts() {
		key := b.puts[i]
		named[key] = struct{}{}
		switch kv, ok := m.tree.Get(key); {
		case !mine.Contains(key) && m.removals.supersede(m.clampSince(coord.Revision(e.GetSince())), key, e, kv, l.Owner):
			foreign = append(foreign, []byte(key))
		case !ok || kv.Lease != b.lease || !bytes.Equal(kv.Value, e.GetValue()) || kv.Principal != e.GetPrincipal():
			changes = append(changes, change{key, &coord.KeyValue{Key: key, Value: e.GetValue(), Lease: b.lease, Principal: e.GetPrincipal()}})
		}
	}
	slices.SortFunc(foreign, bytes.Compare)
	for _, key := range b.deletes {
		named[key] = struct{}{}
		if mine.Contains(key) {
			changes = append(changes, change{key: key})
		}
	}
	if !b.GetReplace() {
		return changes, foreign
	}
	mine.Ascend(b.span.From, func(key string) bool {
		if !b.span.Contains(key) {
			return false
		}
		if _, ok := named[key]; !ok {
			changes = append(changes, change{key: key})
		}
		return true
	})
	return changes, foreign
}
