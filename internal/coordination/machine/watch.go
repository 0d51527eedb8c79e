package machine

import (
	"fmt"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of one batch. MAGIC: a peer holds one batch for each of its watchers.
const (
	batchEvents   = 256
	batchBytes    = 1 << 20  // after which a batch ends with its revision
	revisionBytes = 32 << 20 // of one revision, which is never split over batches
	batchLook     = 8192     // events inspected: a millisecond of events outside the span
)

// Events returns the next events of a watch. One call inspects a bounded number of events, returns a
// bounded number of bytes, and may return no events with More. From a future revision it returns none, and Next is that revision. On
// another member, or after a restore, the same Watch continues without loss or fails.
//
// Errors: Invalid; NotFound, wrapping *Compacted, for missing events; TooLarge for a revision whose events
// are too large for one batch.
func (s *Keyspace) Events(w coord.Watch) (coord.Batch, error) {
	const op = "coord.Events"
	if w.From <= 0 {
		return coord.Batch{}, fault.Wrap(op, fault.Invalidf("from", w.From, "must be above 0"))
	}
	if w.From <= s.compacted {
		return coord.Batch{}, fault.Wrap(op, s.lost(s.compacted))
	}
	if earliest := s.kept(w.Span); w.From < earliest {
		return coord.Batch{}, fault.Wrap(op, s.lost(earliest-1))
	}
	if w.From > s.revision {
		return coord.Batch{Next: w.From}, nil
	}
	if w.Limit <= 0 {
		w.Limit = batchEvents
	}
	batch, told := coord.Batch{Next: s.revision + 1}, s.horizon(w.Span)
	start := s.past.search(w.From)
	var size int64
	for i := start; i < s.past.n; {
		revision, had := s.past.at(i).Revision, len(batch.Events)
		full := had >= w.Limit || size >= batchBytes || i-start >= batchLook
		var added int64
		if !full {
			batch.Events, added, i = s.past.collect(&w, told, i, batch.Events)
		}
		if added > revisionBytes && had == 0 {
			return coord.Batch{}, fault.Wrap(op, tooManyBytes(&w, revision, added))
		}
		if size += added; full || added > revisionBytes {
			batch.Events, batch.Next, batch.More = batch.Events[:had], revision, true
			break
		}
	}
	return batch, nil
}

// collect appends the events of a watch in the revision that begins at position i. What keys were before the revision told
// is hidden. It returns the bytes of the events, and where the next revision begins.
func (h *history) collect(
	w *coord.Watch, told coord.Revision, i int, events []coord.Event,
) (_ []coord.Event, bytes int64, next int) {
	for revision := h.at(i).Revision; i < h.n && h.at(i).Revision == revision; i++ {
		if e := h.at(i); w.Span.Contains(e.Key) {
			shown := show(w, told, e)
			events, bytes = append(events, shown), bytes+eventSize(&shown)
		}
	}
	return events, bytes, i
}

// tooManyBytes tells a watcher how to pass a revision that it cannot get.
func tooManyBytes(w *coord.Watch, at coord.Revision, bytes int64) error {
	field, instead := "from", fmt.Sprintf("read the keys at revision %d and watch from %d", at, at+1)
	if w.Prev {
		field, instead = "prev_kv", fmt.Sprintf("watch from %d without earlier values, or from %d", at, at+1)
	}
	return fault.Refused(fault.TooLarge, field, "the events of revision %d have %d bytes, at most %d: %s", at, bytes, revisionBytes, instead)
}

func show(w *coord.Watch, told coord.Revision, e *coord.Event) coord.Event {
	shown := *e
	if !w.Prev || e.Revision <= told {
		shown.Prev = nil
	}
	return shown
}
