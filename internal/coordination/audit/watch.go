package audit

import (
	"bytes"
	"cmp"
	"sort"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// Truth is the history to check streams against: the effects of a log, once each. The zero Truth is
// ready.
type Truth struct {
	events   []coord.Event
	revision coord.Revision
}

// Entry adds the effects of an entry.
func (t *Truth) Entry(e Entry) {
	t.events = append(t.events, e.Effects.Events...)
	t.revision = max(t.revision, e.Result.Revision)
}

// between gives the events of a span with from <= revision < to.
func (t *Truth) between(span coord.Span, from, to coord.Revision) (found []coord.Event) {
	first := sort.Search(len(t.events), func(i int) bool { return t.events[i].Revision >= from })
	for _, e := range t.events[first:] {
		if e.Revision >= to {
			break
		}
		if span.Contains(e.Key) {
			found = append(found, e)
		}
	}
	return found
}

// Stream checks W1 to W6 for one watcher, whichever members serve it.
type Stream struct {
	truth *Truth
	watch coord.Watch
}

// NewStream begins to follow a watch.
func NewStream(truth *Truth, watch coord.Watch) *Stream { return &Stream{truth: truth, watch: watch} }

// Watch returns the watcher's next request, for any member.
func (s *Stream) Watch() coord.Watch { return s.watch }

// Batch checks the answer to Watch.
func (s *Stream) Batch(b coord.Batch) error {
	from := s.watch.From
	for i, e := range b.Events {
		if e.Revision < from {
			return breach("W2", "revision %d is reported after %d", e.Revision, from-1)
		}
		if i == 0 {
			continue
		}
		switch order(b.Events[i-1], e) {
		case 0:
			return breach("W2", "the event of %q at %d is reported twice", e.Key, e.Revision)
		case 1:
			return breach("W1", "the event of %q at %d is reported too late", e.Key, e.Revision)
		}
	}
	if b.Next < from {
		return breach("W5", "the watch goes back from %d to %d", from, b.Next)
	}
	if now := max(s.truth.revision, coord.FirstRevision); b.Next > from && b.Next > now+1 {
		return breach("W6", "progress to %d, the group is at %d", b.Next-1, now)
	}
	if err := s.complete(b); err != nil {
		return err
	}
	s.watch.From = b.Next
	return nil
}

// complete compares a batch with the truth.
func (s *Stream) complete(b coord.Batch) error {
	want := s.truth.between(s.watch.Span, s.watch.From, b.Next)
	for i, e := range want {
		if !s.watch.Prev {
			e.Prev = nil
		}
		if i < len(b.Events) && equal(b.Events[i], e) {
			continue
		}
		if i > 0 && want[i-1].Revision == e.Revision {
			return breach("W4", "revision %d is reported in part", e.Revision)
		}
		return breach("W3", "the event of %q at %d is missing or not as it was", e.Key, e.Revision)
	}
	if n := len(b.Events); n > len(want) {
		return breach("W6", "the event of %q at %d lies beyond the progress to %d", b.Events[n-1].Key, b.Events[n-1].Revision, b.Next-1)
	}
	return nil
}

func equal(a, b coord.Event) bool {
	return a.Revision == b.Revision && a.Key == b.Key && same(a.KV, b.KV) && same(a.Prev, b.Prev)
}

// same compares versions. What a claim says is in the value.
func same(a, b *coord.KeyValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && a.CreateRevision == b.CreateRevision &&
		a.ModRevision == b.ModRevision && a.Version == b.Version && a.Lease == b.Lease && a.Token() == b.Token()
}

func order(a, b coord.Event) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key))
}
