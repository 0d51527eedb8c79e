package coord

import (
	"fmt"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Compacted says that what was asked for lies before the history that is kept. List the keys
// at Current and watch from the revision after it.
type Compacted struct {
	// Revision is the latest whose events are gone.
	Revision Revision
	// Current is the present revision.
	Current Revision
}

// Error implements error.
func (c *Compacted) Error() string {
	return fmt.Sprintf("compacted up to revision %d, the present one is %d", c.Revision, c.Current)
}

// Watch asks for events. It is all there is to a watcher: whoever is slow is behind, and
// costs the state nothing.
type Watch struct {
	Span Span
	// From is the first revision to report, above 0.
	From Revision
	// Prev asks for the versions before the events as well.
	Prev bool
	// Limit on events: the batch ends after the revision that reaches it; 0 or less is 256.
	Limit int
}

// Batch answers a Watch with whole revisions.
type Batch struct {
	// Events in the order of their revisions, within one by key.
	Events []Event
	// Next is what to ask from next: every matching event before it is in this batch or
	// was in an earlier one. So Next-1 is a revision to report as progress.
	Next Revision
	// More says that the history goes on: ask again now. Otherwise ask when the revision
	// reaches Next.
	More bool
}

// Events gives the next events of a watch. One call looks at a bounded number of events, so it
// may return none and More. From a revision yet to come it returns nothing, and Next is that
// revision. On another member, or after a restore, the same Watch goes on without loss or is
// told that it cannot.
//
// Errors: Invalid; NotFound, wrapping *Compacted, when events are missing.
func (s *Keyspace) Events(w Watch) (Batch, error) {
	const op = "coord.Events"
	const look = 8192 // MAGIC: a millisecond, for events that do not match
	if w.From <= 0 {
		return Batch{}, fault.Wrap(op, fault.Invalidf("from", w.From, "must be above 0"))
	}
	if w.From <= s.compacted {
		return Batch{}, fault.As(op, fault.NotFound, &Compacted{Revision: s.compacted, Current: s.revision})
	}
	if w.From > s.revision {
		return Batch{Next: w.From}, nil
	}
	limit := w.Limit
	if limit <= 0 {
		limit = 256
	}
	batch := Batch{Next: s.revision + 1}
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

func show(w *Watch, e *Event) Event {
	shown := *e
	if !w.Prev {
		shown.Prev = nil
	}
	return shown
}
