package index

import (
	"slices"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/records"
)

// MaxBuffer bounds the buffer of a subscription.
const MaxBuffer = 1 << 16

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

// Subscription is a bounded stream of changes since Subscribe. A subscriber with a full buffer
// loses changes; the index never waits. Change.Seq and Lost show the gap.
type Subscription struct {
	index   *Index
	changes chan Change
	lost    atomic.Uint64
	closed  bool // guarded by index.mu
}

// Subscribe starts a stream with a buffer for 1 to MaxBuffer changes; other sizes are limited to
// that range. The caller must Close it.
func (x *Index) Subscribe(buffer int) *Subscription {
	s := &Subscription{index: x, changes: make(chan Change, max(1, min(buffer, MaxBuffer)))}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.feed.subscriptions = append(x.feed.subscriptions, s)
	return s
}

// Changes returns the stream, which ends after Close.
func (s *Subscription) Changes() <-chan Change { return s.changes }

// Lost returns the number of changes lost since the previous call. It counts a loss before the
// subscriber can receive the next change.
func (s *Subscription) Lost() uint64 { return s.lost.Swap(0) }

// Close ends the stream. Buffered changes stay readable. Further calls have no effect.
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

// Seq returns the number of the last change, or 0.
func (x *Index) Seq() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.feed.seq
}

// feed numbers changes and sends them to subscribers. Index.mu guards it.
type feed struct {
	seq           uint64
	lost          uint64 // summed over all subscriptions
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
