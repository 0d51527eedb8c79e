package index

import (
	"sync"

	"github.com/blackhole/blackhole/pkg/records"
)

// feedSize bounds the changes that an index keeps for its readers. A reader further behind starts again from the records.
const feedSize = 8192

// ChangeKind is the kind of a change. Added, Updated and Withdrawn are also results of Put.
type ChangeKind = Outcome

// Change is one change of an index. Seq numbers start at 1 without gaps. Changes of one service
// arrive in the order of its versions.
type Change struct {
	Seq  uint64
	Kind ChangeKind
	Old  *records.Record // previous live record, or nil
	New  *records.Record // new version, possibly a tombstone; nil for Expired and Evicted
}

// Seq returns the number of the last change, or 0.
func (x *Index) Seq() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.feed.seq
}

// After returns up to most changes that follow the one with number seq. If there are none, wait closes with the next change. Lost: the
// index no longer keeps all changes since, or it has not reached that number.
func (x *Index) After(seq uint64, most int) (some []Change, wait <-chan struct{}, lost bool) {
	f := &x.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if seq > f.seq || f.seq-seq > feedSize {
		return nil, nil, true
	}
	for ; seq < f.seq && len(some) < most; seq++ {
		some = append(some, f.ring[seq%feedSize])
	}
	if seq == f.seq && f.grown == nil {
		f.grown = make(chan struct{})
	}
	return some, f.grown, false
}

// feed numbers the changes and keeps the latest. Each reader has a position instead of a buffer, so the index never waits.
type feed struct {
	mu    sync.Mutex    // guards the fields below; seq changes only under Index.mu too
	seq   uint64        // of the last change
	ring  []Change      // ring[(Seq-1) % feedSize]
	grown chan struct{} // closed with the next change; nil without a reader that waits
}

func (f *feed) publish(kind ChangeKind, old, new *records.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := Change{Seq: f.seq + 1, Kind: kind, Old: old, New: new}
	if len(f.ring) < feedSize {
		f.ring = append(f.ring, c)
	} else {
		f.ring[f.seq%feedSize] = c
	}
	f.seq++
	if f.grown != nil {
		close(f.grown)
		f.grown = nil
	}
}
