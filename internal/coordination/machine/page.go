package machine

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Query selects keys.
type Query struct {
	Span coord.Span
	// At is the revision to read; 0 is the present.
	At coord.Revision
	// Limit on keys returned; 0 or less is none.
	Limit int
	// Bytes end a page after the key that reaches them; 0 or less is no bound.
	Bytes int
	// From is the Next of the page before, and begins the next page at the same revision; "" is the start.
	From       string
	Order      apiv1.TxnRange_Order // keys with the same property are sorted by key, ascending
	Descending bool
	KeysOnly   bool // without values
	CountOnly  bool // without keys; ignores Limit, Bytes and From
}

// Scans reports whether an answer takes a visit of the whole span, even for a short page.
func (q *Query) Scans() bool { return q.CountOnly || q.Descending || q.Order != apiv1.TxnRange_KEY }

// Page answers a Query.
type Page struct {
	Revision coord.Revision    // that was read: name it in At to read on in the same state
	Keys     []*coord.KeyValue // in the order of the query
	Next     string            // the first key of the rest; "" at the end
	Count    int               // of all keys in the span, of a query with CountOnly
}

// pager fills a page with keys that come in its order.
type pager struct {
	Page
	q    *Query
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

// sorted returns the keys of a page, plus one more if present, sorted by the requested order instead of by key. It visits the
// whole span, but keeps only a few times as many keys as the page has.
func (s *Keyspace) sorted(q *Query, at coord.Revision) (found []*coord.KeyValue, err error) {
	if q.Order < 0 || q.Order > apiv1.TxnRange_VALUE {
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
func (s *Keyspace) start(q *Query, at coord.Revision) (first *coord.KeyValue, err error) {
	if q.From == "" {
		return nil, nil
	}
	if q.Order == apiv1.TxnRange_KEY {
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
func compareBy(q *Query) func(a, b *coord.KeyValue) int {
	by := func(a, b *coord.KeyValue) int { return strings.Compare(a.Key, b.Key) }
	switch q.Order {
	case apiv1.TxnRange_VERSION:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case apiv1.TxnRange_CREATE_REVISION:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case apiv1.TxnRange_MOD_REVISION:
		by = func(a, b *coord.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case apiv1.TxnRange_VALUE:
		by = func(a, b *coord.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	}
	return func(a, b *coord.KeyValue) int {
		if q.Descending {
			return cmp.Or(by(b, a), strings.Compare(a.Key, b.Key))
		}
		return cmp.Or(by(a, b), strings.Compare(a.Key, b.Key))
	}
}
