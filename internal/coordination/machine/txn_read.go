package machine

import (
	"cmp"
	"slices"
	"strings"

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
	arrange(o, found)
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

// arrange sorts keys, which come by key, into the order of a read.
func arrange(o *coord.Read, keys []*coord.KeyValue) {
	by := func(a, b *coord.KeyValue) int { return strings.Compare(a.Key, b.Key) }
	switch o.Order {
	case coord.ByVersion:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case coord.ByCreateRevision:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case coord.ByModRevision:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case coord.ByValue:
		by = func(a, b *coord.KeyValue) int { return strings.Compare(string(a.Value), string(b.Value)) }
	}
	if o.Order == coord.ByKey && !o.Descending {
		return
	}
	slices.SortStableFunc(keys, func(a, b *coord.KeyValue) int {
		if o.Descending {
			return by(b, a)
		}
		return by(a, b)
	})
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
