package discovery

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/query"
)

// feedSize bounds the changes kept for watchers: one that is further behind starts anew.
const feedSize = 8192

// feed keeps the newest changes of the index in one ring, with a cursor for each reader
// and no buffer for any. Positions are the index's change sequence; they are gapless
// within an epoch, and an epoch ends when changes were lost.
type feed struct {
	index *index.Index
	cache *cache // learns of each change after it is in the ring

	mu    sync.Mutex // guards the fields below
	epoch uint64
	ring  []index.Change // ring[seq % feedSize], filled for first..last
	first uint64         // oldest sequence in the ring
	last  uint64         // newest sequence in the ring; first-1 when it is empty
	done  uint64         // newest sequence that the cache has learned of
	grown chan struct{}  // closed when last or done moves, then replaced

	sub *index.Subscription
}

// newFeed subscribes to the index; run must be called to drain it. The epoch comes from
// the caller's randomness, so that a cursor of an earlier process is recognised as such.
func newFeed(x *index.Index, epoch uint64, c *cache) *feed {
	f := &feed{
		index: x, cache: c, epoch: epoch,
		ring: make([]index.Change, feedSize), grown: make(chan struct{}),
		sub: x.Subscribe(feedSize),
	}
	f.last = x.Seq()
	f.first, f.done = f.last+1, f.last
	return f
}

// run moves changes from the index into the ring until ctx ends.
func (f *feed) run(ctx context.Context) {
	defer f.sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case ch := <-f.sub.Changes():
			if f.sub.Lost() > 0 {
				f.reset()
			}
			if f.add(ch) {
				f.cache.invalidate(ch)
				f.setDone(ch.Seq)
			}
		}
	}
}

// reset gives up the changes so far: the index made them faster than they were read. No
// cursor can be served across the gap, and any answer may be wrong.
func (f *feed) reset() {
	seq := f.index.Seq()
	f.mu.Lock()
	f.epoch++
	f.first, f.last = seq+1, seq
	f.mu.Unlock()
	f.cache.clear()
	f.setDone(seq)
}

// add takes a change into the ring, unless it was skipped.
func (f *feed) add(ch index.Change) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ch.Seq <= f.last {
		return false
	}
	f.last = ch.Seq
	f.ring[ch.Seq%feedSize] = ch
	if f.last-f.first >= feedSize {
		f.first = f.last - feedSize + 1
	}
	f.wake()
	return true
}

func (f *feed) setDone(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = seq
	f.wake()
}

// wake rouses whoever waits; f.mu is held.
func (f *feed) wake() {
	close(f.grown)
	f.grown = make(chan struct{})
}

// waitFor waits until the changes up to seq have taken effect, or ctx ends.
func (f *feed) waitFor(ctx context.Context, seq uint64) {
	for {
		f.mu.Lock()
		reached, wait := f.done >= seq, f.grown
		f.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		}
	}
}

// after gives the change that follows seq in an epoch. Without one, wait is closed when
// there may be; lost says that the position can no longer be served.
func (f *feed) after(epoch, seq uint64) (ch index.Change, wait <-chan struct{}, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case epoch != f.epoch || seq+1 < f.first:
		return index.Change{}, nil, true
	case seq >= f.last:
		return index.Change{}, f.grown, false
	}
	return f.ring[(seq+1)%feedSize], nil, false
}

// currentEpoch gives the epoch that new cursors belong to.
func (f *feed) currentEpoch() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch
}

// altered reports whether a change after seq touches what the plan matches, as far as the
// ring goes back; further back it says yes.
func (f *feed) altered(p *query.Plan, seq uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seq+1 < f.first {
		return true
	}
	for ; seq < f.last; seq++ {
		if affects(p, f.ring[(seq+1)%feedSize]) {
			return true
		}
	}
	return false
}

// affects reports whether a change concerns what the plan matches.
func affects(p *query.Plan, ch index.Change) bool {
	return (ch.Old != nil && p.Match(ch.Old)) || (ch.New != nil && p.Match(ch.New))
}
