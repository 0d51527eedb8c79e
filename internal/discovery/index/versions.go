package index

import (
	"iter"

	"github.com/blackhole/blackhole/pkg/records"
)

// Versions iterates over the live records and tombstones at the start of the iteration. A peer
// sends them to another peer, so that the other misses no record and drops withdrawn ones.
// Expired records in memory are left out. The history of the index alone determines the order.
func (x *Index) Versions() iter.Seq[*records.Record] {
	return func(yield func(*records.Record) bool) {
		snaps, ended := versions(x)
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

// versions returns snapshots of all live records, and the tombstones.
func versions(x *Index) (snaps []*snapshot, ended []*records.Record) {
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
