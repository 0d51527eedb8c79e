package member

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
)

// watchers wakes who waits for an event of a span, and nobody else: a peer has thousands of watches, and most commands concern
// none of them. Those of a key and of a prefix are looked up; other spans are looked through, each distinct one once.
type watchers struct {
	mu       sync.Mutex
	revision coord.Revision // up to which events are told
	waiting  map[place]*watched
	lengths  map[int]int             // how many of the waiting are prefixes of a length
	ranges   map[coord.Span]struct{} // of the waiting
	due      []*watched              // of the loop: to be woken at the end of the turn
}

// place is a span by its form: a key, a prefix, or another range, which alone has an end.
type place struct {
	form form
	from string
	to   string
}

type form uint8

const (
	ofKey form = iota
	ofPrefix
	ofRange
)

func placeOf(s coord.Span) place {
	switch s {
	case coord.Exactly(s.From):
		return place{ofKey, s.From, ""}
	case coord.Under(s.From):
		return place{ofPrefix, s.From, ""}
	}
	return place{ofRange, s.From, s.To}
}

// watched is a span with waiters that know all its events up to watchers.revision.
type watched struct {
	moved chan struct{}  // closed at the end of the turn that has an event
	first coord.Revision // of the event; written before moved is closed
	users int
}

// join waits with others of a span. It returns nil if there are revisions since from, which the waiter must look at first.
func (w *watchers) join(at place, from coord.Revision) *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.revision >= from {
		return nil
	}
	of := w.waiting[at]
	if of == nil {
		of = &watched{moved: make(chan struct{})}
		w.add(at, of)
	}
	of.users++
	return of
}

// add adds a span. The caller holds mu.
func (w *watchers) add(at place, of *watched) {
	if w.waiting == nil {
		w.waiting, w.lengths, w.ranges = make(map[place]*watched), make(map[int]int), make(map[coord.Span]struct{})
	}
	w.waiting[at] = of
	switch at.form {
	case ofPrefix:
		w.lengths[len(at.from)]++
	case ofRange:
		w.ranges[coord.Span{From: at.from, To: at.to}] = struct{}{}
	}
}

// remove is the inverse of add.
func (w *watchers) remove(at place) {
	delete(w.waiting, at)
	switch n := len(at.from); at.form {
	case ofPrefix:
		if w.lengths[n]--; w.lengths[n] == 0 {
			delete(w.lengths, n)
		}
	case ofRange:
		delete(w.ranges, coord.Span{From: at.from, To: at.to})
	}
}

// leave ends a wait. It returns the revision from which the waiter knows no events of its span.
func (w *watchers) leave(at place, from coord.Revision, of *watched) coord.Revision {
	w.mu.Lock()
	defer w.mu.Unlock()
	if of.users--; of.users == 0 && w.waiting[at] == of {
		w.remove(at)
	}
	if of.first > 0 {
		return max(from, of.first)
	}
	return max(from, w.revision+1)
}

// applied notes the events of a command. The loop calls it, and wake at the end of the turn.
func (w *watchers) applied(e machine.ApplyEffects) {
	if len(e.Events) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision = e.Events[0].Revision
	for n := range e.Events {
		key := e.Events[n].Key
		w.tell(place{ofKey, key, ""}, w.revision)
		for length := range w.lengths {
			if length <= len(key) {
				w.tell(place{ofPrefix, key[:length], ""}, w.revision)
			}
		}
		for span := range w.ranges {
			if span.Contains(key) {
				w.tell(place{ofRange, span.From, span.To}, w.revision)
			}
		}
	}
}

// tell lets the end of the turn wake the waiters of a place, if there are any. The caller holds mu.
func (w *watchers) tell(at place, first coord.Revision) {
	if of := w.waiting[at]; of != nil {
		of.first = first
		w.due = append(w.due, of)
		w.remove(at)
	}
}

// replaced wakes all: a snapshot replaced the state, and revisions of it were never told.
func (w *watchers) replaced(revision coord.Revision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.revision + 1
	for at := range w.waiting {
		w.tell(at, first)
	}
	w.revision = revision
}

// wake wakes those who were told.
func (w *watchers) wake() {
	for _, of := range w.due {
		close(of.moved)
	}
	clear(w.due)
	w.due = w.due[:0]
}

// Await waits for an event of a span, for a caller who has looked at all before from. It returns the revision to look from: of
// the first event, or after an error of the first one that may have one.
//
// Errors: Timeout, Canceled; Unavailable at the member's end.
func (m *Member) Await(ctx context.Context, span coord.Span, from coord.Revision) (coord.Revision, error) {
	const op = "member.Await"
	at := placeOf(span)
	of := m.watchers.join(at, from)
	if of == nil {
		return from, nil
	}
	var err error
	select {
	case <-of.moved:
	case <-ctx.Done():
		err = ctx.Err()
	case <-m.done:
		err = m.ended()
	}
	return m.watchers.leave(at, from, of), fault.Wrap(op, err)
}
