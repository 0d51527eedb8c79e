package index

import (
	"slices"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/records"
)

// MaxBuffer bounds the buffer of a subscription.
const MaxBuffer = 1 << 16

// ChangeKind says what happened to a service. Added, Updated and Withdrawn are also the
// outcomes of the Put that made the change.
type ChangeKind = Outcome

// Change is one change of what an index knows. Changes are numbered from 1 without gaps,
// and the changes of one service come in the order of its versions.
type Change struct {
	Seq  uint64
	Kind ChangeKind
	Old  *records.Record // live before; nil when none was
	New  *records.Record // the version that counts now, which may be a tombstone; nil for Expired and Evicted
}

// Subscription is a bounded stream of changes from the moment of Subscribe. A subscriber
// that falls more than its buffer behind loses the changes that do not fit, and nobody
// waits for it. The gap shows in Change.Seq and in Lost.
type Subscription struct {
	index   *Index
	changes chan Change
	lost    atomic.Uint64
	closed  bool // guarded by index.mu
}

// Subscribe begins a stream with room for buffer changes, 1 to MaxBuffer; other numbers
// are taken as the nearer end. The caller must Close it.
func (x *Index) Subscribe(buffer int) *Subscription {
	s := &Subscription{index: x, changes: make(chan Change, max(1, min(buffer, MaxBuffer)))}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.feed.subscriptions = append(x.feed.subscriptions, s)
	return s
}

// Changes is the stream. It ends after Close.
func (s *Subscription) Changes() <-chan Change { return s.changes }

// Lost gives the number of changes lost since it was last called. It counts a loss before
// the next change that is not lost can be received.
func (s *Subscription) Lost() uint64 { return s.lost.Swap(0) }

// Close ends the stream; what is buffered can still be received. Closing again does nothing.
func (s *Subscription) Close() {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	f := &s.index.feed
	f.subscriptions = slices.DeleteFunc(f.subscriptions, func(o *Subscription) bool { return o == s })
	close(s.changes)
}

// Seq is the number of the last change made, 0 before the first.
func (x *Index) Seq() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.feed.seq
}

// feed numbers changes and hands them to subscribers. Index.mu guards it.
type feed struct {
	seq           uint64
	lost          uint64 // of all subscriptions
	subscriptions []*Subscription
}

func (f *feed) publish(kind ChangeKind, old, new *records.Record) {
	f.seq++
	c := Change{Seq: f.seq, Kind: kind, Old: old, New: new}
	for _, s := range f.subscriptions {
		select {
		case s.changes <- c:
		default:
			s.lost.Add(1)
			f.lost++
		}
	}
}
