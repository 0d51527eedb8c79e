package discovery

import (
	"context"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/query"
)

// feedSize bounds the stored changes. A watch that falls behind further starts again from the current matches.
const feedSize = 8192

// feed stores the newest changes of the index in one ring. Each reader has a cursor instead of a buffer. Positions
// are the index's change sequences, without gaps within an epoch. A loss of changes ends the epoch.
type feed struct {
	index *index.Index
	cache *cache        // receives each change after the ring
	heard func(peer.ID) // is called for each new record

	mu    sync.Mutex // guards the fields below
	epoch uint64
	ring  []index.Change // ring[seq % feedSize], filled for first..last
	first uint64         // oldest sequence in the ring
	last  uint64         // newest sequence in the ring; first-1 for an empty ring
	done  uint64         // newest sequence that the cache has processed
	grown chan struct{}  // closed and replaced with each change of last or done

	sub *index.Subscription
}

// newFeed subscribes to the index; the caller must run run. A random epoch distinguishes cursors of an earlier
// process.
func newFeed(x *index.Index, epoch uint64, c *cache, heard func(provider peer.ID)) *feed {
	f := &feed{
		index: x, cache: c, heard: heard, epoch: epoch,
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
				if ch.New != nil && !ch.New.Withdrawn() {
					f.heard(ch.New.Name().Provider)
				}
				f.setDone(ch.Seq)
			}
		}
	}
}

// reset drops all changes after the index produced them too fast. Cursors before the gap are lost, and all
// cached answers may be wrong.
func (f *feed) reset() {
	seq := f.index.Seq()
	f.mu.Lock()
	f.epoch++
	f.first, f.last = seq+1, seq
	f.mu.Unlock()
	f.cache.clear()
	f.setDone(seq)
}

// add stores a change, unless reset has skipped it.
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

// wake wakes all waiting readers. The caller holds f.mu.
func (f *feed) wake() {
	close(f.grown)
	f.grown = make(chan struct{})
}

// waitFor waits until the changes up to seq have taken effect, or for the end of ctx.
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

// after returns the change that follows seq in an epoch. If there is none yet, wait closes with the next one.
// lost: the position is no longer available.
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

// currentEpoch is the epoch of new cursors.
func (f *feed) currentEpoch() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch
}

// altered reports whether a change after seq affects the plan. It returns true for positions before the ring.
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

// affects reports whether a change concerns an answer to the plan.
func affects(p *query.Plan, ch index.Change) bool {
	return (ch.Old != nil && query.Concerns(p, ch.Old)) || (ch.New != nil && query.Concerns(p, ch.New))
}
