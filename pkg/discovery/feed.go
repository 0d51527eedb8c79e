package discovery

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/pkg/index"
	"github.com/blackhole/blackhole/pkg/query"
)

// feedSize bounds the changes kept for watchers: one that is further behind starts anew.
const feedSize = 8192

// feed keeps the newest changes of the index in one ring, with a cursor for each reader
// and no buffer for any. Positions are the index's change sequence; they are gapless
// within an epoch, and an epoch ends when changes were lost.
type feed struct {
	index    *index.Index
	onChange func(index.Change) // called for each change, in order, after it is in the ring

	mu    sync.Mutex // guards the fields below
	epoch uint64
	ring  []index.Change // ring[seq % feedSize], filled for first..last
	first uint64         // oldest sequence in the ring
	last  uint64         // newest sequence in the ring; first-1 when it is empty
	grown chan struct{}  // closed when last or epoch moves, then replaced

	sub *index.Subscription
}

// newFeed subscribes to the index; run must be called to drain it. The epoch comes from
// the caller's randomness, so that a cursor of an earlier process is recognised as such.
func newFeed(x *index.Index, epoch uint64, onChange func(index.Change)) *feed {
	f := &feed{
		index: x, onChange: onChange, epoch: epoch,
		ring: make([]index.Change, feedSize), grown: make(chan struct{}),
		sub: x.Subscribe(feedSize),
	}
	f.last = x.Seq()
	f.first = f.last + 1
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
			f.add(ch)
			f.onChange(ch)
		}
	}
}

func (f *feed) add(ch index.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ch.Seq <= f.last {
		return // made before the subscription saw the index's position
	}
	if ch.Seq != f.last+1 { // changes were lost: no cursor before this one can be served
		f.epoch++
		f.first = ch.Seq
	}
	f.last = ch.Seq
	f.ring[ch.Seq%feedSize] = ch
	if f.last-f.first >= feedSize {
		f.first = f.last - feedSize + 1
	}
	close(f.grown)
	f.grown = make(chan struct{})
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

// position gives the current epoch.
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
		if touches(p, f.ring[(seq+1)%feedSize]) {
			return true
		}
	}
	return false
}

// touches reports whether a change concerns what the plan matches.
func touches(p *query.Plan, ch index.Change) bool {
	return (ch.Old != nil && p.Match(ch.Old)) || (ch.New != nil && p.Match(ch.New))
}
