package index

import (
	"iter"

	"github.com/blackhole/blackhole/pkg/records"
)

// Versions gives the version that counts of every service for which that is a live record
// or a tombstone, as of the beginning of the iteration: what a peer must tell another so
// that the other neither misses a record nor believes one that was withdrawn. Lapsed
// records that are only remembered are not among them. The order depends on the history of
// the index alone.
func (x *Index) Versions() iter.Seq[*records.Record] {
	return func(yield func(*records.Record) bool) {
		snaps, ended := x.versions()
		for _, snap := range snaps {
			if !snap.each(yield) {
				return
			}
		}
		for _, r := range ended {
			if !yield(r) {
				return
			}
		}
	}
}

// versions gives snapshots of all that is live, and the tombstones.
func (x *Index) versions() (snaps []*snapshot, ended []*records.Record) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, providers := range x.rankings[remembered].bySize {
		for _, p := range providers {
			for _, id := range p.held[remembered].entries {
				if r := x.entries.at(id).record; r.Withdrawn() {
					ended = append(ended, r)
				}
			}
		}
	}
	return x.shards.snapshots(), ended
}
