package history

import (
	"fmt"
	"slices"
	"sync"
)

// EventLog merges the events of all watches over a span of keys. The first watch records an event,
// all other watches are compared with it. The zero EventLog is ready and safe for concurrent use.
type EventLog struct {
	mu         sync.Mutex // guards what follows
	events     []Event
	mod        map[string]int64 // revision of each key
	violations []Violation
	compared   int
}

// Stream is one watch from the beginning of the history, across serving peers. It is for one
// goroutine.
type Stream struct {
	Name string

	ledger *EventLog
	at     int   // events of the ledger already seen
	next   int64 // revision
	broken bool  // a violation was recorded
}

// Follow begins a stream.
func (l *EventLog) Follow(name string) *Stream { return &Stream{Name: name, ledger: l, next: 1} }

// Next is the next revision of the stream.
func (s *Stream) Next() int64 { return s.next }

// Take checks the next events of the stream and their completeness before revision next. Seen of
// the events is their arrival time.
func (s *Stream) Take(events []Event, next int64) {
	l := s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		switch {
		case e.Revision < s.next:
			s.violated("revision %d (%s) comes after the stream had passed it, at %d", e.Revision, e.Key, s.next)
		case e.Revision >= next:
			s.violated("revision %d (%s) lies beyond the mark %d", e.Revision, e.Key, next)
		case s.at < len(l.events) && !l.events[s.at].same(e):
			s.violated("it has %s, others had %s", e.brief(), l.events[s.at].brief())
		case s.at == len(l.events) && s.at > 0 && !l.events[s.at-1].before(e):
			s.violated("it has %s after %s", e.brief(), l.events[s.at-1].brief())
		}
		if s.at == len(l.events) && l.mod[e.Key] != e.Replaces {
			s.violated("%s replaces revision %d, which was not the last, %d", e.brief(), e.Replaces, l.mod[e.Key])
		}
		if s.broken {
			return
		}
		if s.at == len(l.events) {
			l.append(e)
		} else {
			l.events[s.at].Seen = min(l.events[s.at].Seen, e.Seen)
			l.compared++
		}
		s.at++
	}
	if next < s.next {
		s.violated("it goes back from %d to %d", s.next, next)
	}
	if s.at < len(l.events) && l.events[s.at].Revision < next {
		s.violated("it has passed to %d without %s", next, l.events[s.at].brief())
	}
	s.next = max(s.next, next)
}

func (l *EventLog) append(e Event) {
	if l.mod == nil {
		l.mod = make(map[string]int64)
	}
	l.events = append(l.events, e)
	if l.mod[e.Key] = e.Revision; e.Deleted {
		delete(l.mod, e.Key)
	}
}

// violated records the first violation of a stream; later ones are consequences.
func (s *Stream) violated(format string, args ...any) {
	if !s.broken {
		s.broken = true
		s.ledger.violations = append(s.ledger.violations, Violation{Rule: "W", Detail: "watch " + s.Name + ": " + fmt.Sprintf(format, args...)})
	}
}

// Events returns the history so far.
func (l *EventLog) Events() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// Result returns the number of compared events, and all violations.
func (l *EventLog) Result() Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Result{Rule: "W", Checked: l.compared, Violations: slices.Clone(l.violations)}
}

// Keys returns the state of all keys at a revision.
func (l *EventLog) Keys(at int64) map[string]Event {
	keys := make(map[string]Event)
	for _, e := range l.Events() {
		if e.Revision > at {
			break
		}
		if keys[e.Key] = e; e.Deleted {
			delete(keys, e.Key)
		}
	}
	return keys
}

func (e Event) same(o Event) bool {
	e.Seen, o.Seen = 0, 0
	return e == o
}

func (e Event) before(o Event) bool {
	return e.Revision < o.Revision || e.Revision == o.Revision && e.Key < o.Key
}

func (e Event) brief() string {
	return fmt.Sprintf("%s at revision %d (%q, version %d, made at %d, deleted %t)", e.Key, e.Revision, e.Value, e.Version, e.Create, e.Deleted)
}

// Belief is the belief of a client in its lock.
type Belief interface {
	// Check returns nil while the client believes, and the reason afterwards.
	Check() error
}

// Beliefs compares the beliefs of clients over time, by the shared clock of one machine. The zero
// Beliefs is ready and safe for concurrent use.
type Beliefs struct {
	mu         sync.Mutex // guards what follows
	locks      map[string][]believer
	violations []Violation
	checked    int
}

type believer struct {
	Belief
	op      Op
	permits int
}

// Enter records that a client holds a lock from now on. Call it directly after the grant.
func (b *Beliefs) Enter(o Op, permits int, belief Belief) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.locks == nil {
		b.locks = make(map[string][]believer)
	}
	b.checked++
	beside := 1
	var still []believer
	for _, other := range b.locks[o.Object] {
		if other.Check() != nil {
			continue
		}
		still = append(still, other)
		if beside++; other.op.Mode != o.Mode || o.Mode == Exclusive || o.Mode == Permit && beside > permits {
			b.violations = append(b.violations, Violation{Rule: "L3", Detail: fmt.Sprintf("both believe to hold %s:\n  %v\n  %v", o.Object, other.op, o)})
		}
	}
	b.locks[o.Object] = append(still, believer{belief, o, permits})
}

// Lost records that a write or a release was refused because the lock was lost. A client that
// still believes is a violation: call it at once.
func (b *Beliefs) Lost(o Op, belief Belief) {
	if belief.Check() != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.violations = append(b.violations, Violation{Rule: "L4", Detail: fmt.Sprintf("its client could count on the lock:\n  %v", o)})
}

// Result returns the number of compared beliefs, and all violations.
func (b *Beliefs) Result() Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Result{Rule: "L3", Checked: b.checked, Violations: slices.Clone(b.violations)}
}
