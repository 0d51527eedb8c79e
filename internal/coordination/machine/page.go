package machine

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// pager fills a page with keys that come in its order.
type pager struct {
	coord.Page
	q    *coord.Query
	size int64
}

// add reports whether there may be room for another key.
func (p *pager) add(kv *coord.KeyValue) bool {
	if p.q.Limit > 0 && len(p.Keys) == p.q.Limit || p.q.Bytes > 0 && p.size >= int64(p.q.Bytes) {
		p.Next = kv.Key
		return false
	}
	if p.q.KeysOnly {
		kv = withoutValue(kv)
	}
	p.Keys, p.size = append(p.Keys, kv), p.size+kvSize(kv)
	return true
}

// sorted returns the keys of a page, and one more if there is one, in another order than that of the tree. It visits the
// whole span, but keeps only a few times as many keys as the page has.
func (s *Keyspace) sorted(q *coord.Query, at coord.Revision) (found []*coord.KeyValue, err error) {
	if q.Order > coord.ByValue {
		return nil, fault.Invalidf("order", q.Order, "is not known")
	}
	compare := compareBy(q)
	first, err := s.start(q, at)
	if err != nil {
		return nil, err
	}
	most := q.Limit + 1
	s.ascend(q.Span, at, func(kv *coord.KeyValue) bool {
		if first != nil && compare(kv, first) < 0 {
			return true
		}
		if found = append(found, kv); q.Limit > 0 && len(found) >= 2*most {
			slices.SortFunc(found, compare)
			found = found[:most]
		}
		return true
	})
	slices.SortFunc(found, compare)
	return found, nil
}

// start returns the key with which a page begins; nil is the first one. Its properties decide the place in the order, so
// it must exist.
func (s *Keyspace) start(q *coord.Query, at coord.Revision) (first *coord.KeyValue, err error) {
	if q.From == "" {
		return nil, nil
	}
	if q.Order == coord.ByKey {
		return &coord.KeyValue{Key: q.From}, nil
	}
	s.ascend(coord.Exactly(q.From), at, func(kv *coord.KeyValue) bool {
		first = kv
		return false
	})
	if first == nil {
		return nil, fault.Invalidf("from", q.From, "does not exist at revision %d: read on at the revision of the page before", at)
	}
	return first, nil
}

// compareBy returns the order of a query. It is total: no two keys are equal.
func compareBy(q *coord.Query) func(a, b *coord.KeyValue) int {
	by := func(a, b *coord.KeyValue) int { return strings.Compare(a.Key, b.Key) }
	switch q.Order {
	case coord.ByVersion:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case coord.ByCreateRevision:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case coord.ByModRevision:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case coord.ByValue:
		by = func(a, b *coord.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	}
	return func(a, b *coord.KeyValue) int {
		if q.Descending {
			return cmp.Or(by(b, a), strings.Compare(a.Key, b.Key))
		}
		return cmp.Or(by(a, b), strings.Compare(a.Key, b.Key))
	}
}
