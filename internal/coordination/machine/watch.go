package machine

import (
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Events returns the next events of a watch. One call inspects a bounded number of events and may
// return none with More. From a future revision it returns none, and Next is that revision. On
// another member, or after a restore, the same Watch continues without loss or fails.
//
// Errors: Invalid; NotFound, wrapping *Compacted, for missing events.
func (s *Keyspace) Events(w coord.Watch) (coord.Batch, error) {
	const op = "coord.Events"
	const look = 8192 // MAGIC: a millisecond of events outside the span
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
	batch := coord.Batch{Next: s.revision + 1}
	start := s.past.search(w.From)
	for i := start; i < s.past.n; i++ {
		e := s.past.at(i)
		if full := len(batch.Events) >= limit || i-start >= look; full && e.Revision != s.past.at(max(i-1, start)).Revision {
			batch.Next, batch.More = e.Revision, true
			break
		}
		if w.Span.Contains(e.Key) {
			batch.Events = append(batch.Events, show(&w, e))
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
