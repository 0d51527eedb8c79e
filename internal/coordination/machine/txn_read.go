package machine

import (
	"slices"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// eventsPerKey is the number of events that an earlier revision undoes for the cost of one key. MAGIC: an
// event outside the span costs a comparison, a key a visit and its answer.
const eventsPerKey = 64

// read selects keys for the answer.
func (t *txn) read(o *coord.Read, r *coord.StepResult) error {
	var found []*coord.KeyValue
	visit := func(kv *coord.KeyValue) bool {
		if o.Matches(kv) {
			found = append(found, kv)
		}
		return true
	}
	if err := t.visit(o, visit); err != nil {
		return err
	}
	r.Count = len(found)
	if o.CountOnly {
		return nil
	}
	if o.Scans() { // else they come in order
		slices.SortFunc(found, compareBy(&o.Query))
	}
	if o.Limit > 0 && len(found) > o.Limit {
		found = found[:o.Limit]
	}
	for _, kv := range found {
		if o.KeysOnly {
			kv = withoutValue(kv)
		}
		if err := t.show(r, kv); err != nil {
			return err
		}
	}
	return nil
}

// visit passes the keys of a read to f, by key.
func (t *txn) visit(o *coord.Read, f func(*coord.KeyValue) bool) (err error) {
	if o.At == 0 {
		return t.ascend(t.now(), o.Span, f)
	}
	if err := t.m.readable("revision", o.At); err != nil {
		return err
	}
	if err := t.spend(1 + (t.m.past.n-t.m.past.search(o.At+1))/eventsPerKey); err != nil {
		return err
	}
	t.m.ascend(o.Span, o.At, func(kv *coord.KeyValue) bool {
		if err = t.spend(1); err != nil {
			return false
		}
		return f(kv)
	})
	return err
}

func withoutValue(kv *coord.KeyValue) *coord.KeyValue {
	return &coord.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
}

// readable checks a revision to read.
func (s *Keyspace) readable(field string, at coord.Revision) error {
	switch {
	case at < 0 || at > s.revision:
		return fault.Invalidf(field, at, "the present revision is %d", s.revision)
	case at < s.compacted:
		return fault.In(field, fault.As("", fault.NotFound, &coord.Compacted{Revision: s.compacted, Current: s.revision}))
	}
	return nil
}
