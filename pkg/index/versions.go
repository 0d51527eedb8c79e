package index

import (
	"iter"

	"github.com/blackhole/blackhole/pkg/records"
)

// Versions gives the version that counts of every service for which that is a live record
// or a tombstone, as of the beginning of the iteration: what a peer must tell another so
// that the other neither misses a record nor believes one that was withdrawn. Lapsed
// records that are only remembered are not among them. The order is that of All.
func (x *Index) Versions() iter.Seq[*records.Record] {
	return func(yield func(*records.Record) bool) {
		for _, r := range x.versions() {
			if !yield(r) {
				return
			}
		}
	}
}

func (x *Index) versions() []*records.Record {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make([]*records.Record, 0, len(x.due.heap))
	for e := range x.due.all() {
		if e.state == live || e.record.Withdrawn() {
			all = append(all, e.record)
		}
	}
	return all
}
