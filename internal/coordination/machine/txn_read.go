package machine

import (
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// eventsPerKey is the number of events that an earlier revision undoes for the cost of one key. MAGIC: an
// event outside the span costs a comparison, a key a visit and its answer.
const eventsPerKey = 64

// read selects keys for the answer.
func (t *txn) read(r *apiv1.TxnRange, result *apiv1.TxnStepResult) error {
	var found []*coord.KeyValue
	visit := func(kv *coord.KeyValue) bool {
		result.Count++
		if matches(r, kv) {
			found = append(found, kv)
		}
		return true
	}
	if err := t.visit(r, visit); err != nil {
		return err
	}
	if r.GetCountOnly() {
		return nil
	}
	if q := (Query{Order: r.GetOrder(), Descending: r.GetDescending()}); q.Scans() { // else they come in order
		slices.SortFunc(found, compareBy(&q))
	}
	if limit := uint64(r.GetLimit()); limit > 0 && uint64(len(found)) > limit {
		found, result.More = found[:limit], true
	}
	for _, kv := range found {
		if r.GetKeysOnly() {
			kv = withoutValue(kv)
		}
		if err := t.show(result, kv); err != nil {
			return err
		}
	}
	return nil
}

// matches reports whether a version is within the bounds of revisions.
func matches(r *apiv1.TxnRange, kv *coord.KeyValue) bool {
	within := func(at coord.Revision, low, high int64) bool {
		return int64(at) >= low && (high == 0 || int64(at) <= high)
	}
	return within(kv.ModRevision, r.GetMinModRevision(), r.GetMaxModRevision()) &&
		within(kv.CreateRevision, r.GetMinCreateRevision(), r.GetMaxCreateRevision())
}

// visit passes the keys of a read to f, by key.
func (t *txn) visit(r *apiv1.TxnRange, f func(*coord.KeyValue) bool) (err error) {
	at := coord.Revision(r.GetRevision())
	if at == 0 {
		return t.ascend(t.now(), spanOf(r), f)
	}
	if err := t.m.readable("revision", spanOf(r), at); err != nil {
		return err
	}
	if err := t.spend(1 + (t.m.past.n-t.m.past.search(at+1))/eventsPerKey); err != nil {
		return err
	}
	t.m.ascend(spanOf(r), at, func(kv *coord.KeyValue) bool {
		if err = t.spend(1); err != nil {
			return false
		}
		return f(kv)
	})
	return err
}

func withoutValue(kv *coord.KeyValue) *coord.KeyValue {
	return &coord.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease, Writer: kv.LeaseOwner()}
}
