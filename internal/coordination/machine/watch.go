package machine

import (
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Events returns the next events of a watch, in whole revisions. One call inspects a bounded number of events, returns
// some with about 1 MiB of values at most, unless one revision has more, and may return none with More. From a future revision it returns none, and Next is that revision. On
// another member, or after a restore, the same Watch continues without loss or fails.
//
// Errors: Invalid; NotFound, wrapping *Compacted, for missing events.
func (s *Keyspace) Events(w coord.Watch) (coord.Batch, error) {
	const op = "coord.Events"
	const look = 8192     // MAGIC: a millisecond of events outside the span
	const bytes = 1 << 20 // after which a batch ends: a reader holds one in memory
	if w.From <= 0 {
		return coord.Batch{}, fault.Wrap(op, fault.Invalidf("from", w.From, "must be above 0"))
	}
	if w.From <= s.compacted {
		return coord.Batch{}, fault.As(op, fault.NotFound, &coord.Compacted{Revision: s.compacted, Current: s.revision})
	}
	if w.From > s.revision {
		return coord.Batch{Next: w.From}, nil
	}
	limit := w.Limit
	if limit <= 0 {
		limit = 256
	}
	batch, size := coord.Batch{Next: s.revision + 1}, int64(0)
	start := s.past.search(w.From)
	for i := start; i < s.past.n; i++ {
		e := s.past.at(i)
		if full := len(batch.Events) >= limit || size >= bytes || i-start >= look; full && e.Revision != s.past.at(max(i-1, start)).Revision {
			batch.Next, batch.More = e.Revision, true
			break
		}
		if w.Span.Contains(e.Key) {
			shown := show(&w, e)
			batch.Events, size = append(batch.Events, shown), size+kvSize(shown.KV)+kvSize(shown.Prev)
		}
	}
	return batch, nil
}

func show(w *coord.Watch, e *coord.Event) coord.Event {
	shown := *e
	if !w.Prev {
		shown.Prev = nil
	}
	return shown
}
