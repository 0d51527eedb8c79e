package httpapi

import (
	"slices"
	"sync"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/pkg/instance"
)

// maxShared bounds the instances in the lines that viewers share, except in the newest line.
const maxShared = 4096

// sharedLines encodes a batch of services once for all viewers who get it at about the same time. It knows a batch by its
// instances, which nobody changes, so viewers at different positions never get the line of each other.
type sharedLines struct {
	mu      sync.Mutex
	readers int
	kept    []*sharedLine // oldest first; empty without readers
	total   int           // instances in kept
}

type sharedLine struct {
	reset  bool
	events []instance.Event
	data   func() []byte // encodes once
}

// join counts a reader until it calls leave. The last one forgets the lines.
func (s *sharedLines) join() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.readers--; s.readers == 0 {
			s.kept, s.total = nil, 0
		}
	}
}

// of returns the data of a batch, or nil for a batch without events.
func (s *sharedLines) of(b instance.Batch) []byte {
	if len(b.Events) == 0 {
		return serviceLine(b)
	}
	return s.find(b).data()
}

func (s *sharedLines) find(b instance.Batch) *sharedLine {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Backward(s.kept) {
		if l.reset == b.Reset && slices.Equal(l.events, b.Events) {
			return l
		}
	}
	l := &sharedLine{b.Reset, b.Events, sync.OnceValue(func() []byte { return serviceLine(b) })}
	s.kept = append(s.kept, l)
	s.total += len(l.events)
	for len(s.kept) > 1 && s.total > maxShared {
		s.total -= len(s.kept[0].events)
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	return l
}

// serviceLine returns the data of a batch, or nil for a batch without events.
func serviceLine(b instance.Batch) []byte {
	switch {
	case b.Reset:
		list := make([]serviceMember, len(b.Events))
		for n, ev := range b.Events {
			list[n] = memberOf(ev.Instance)
		}
		return line(serviceEvent{Kind: "reset", Instances: list})
	case len(b.Events) > 0:
		list := make([]serviceChange, len(b.Events))
		for n, ev := range b.Events {
			list[n] = serviceChange{dialect.ChangeName(ev.Type), memberOf(ev.Instance), ev.Revision}
		}
		return line(serviceEvent{Kind: "change", Changes: list})
	}
	return nil
}
