package ask

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/internal/discovery/index"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// ringSize bounds the changes in a changeRing. A watcher further behind starts anew.
const ringSize = 4096

// changeRing holds the latest changes of the index for all watchers. A position is a sequence
// number of the index. Within an epoch the positions have no gaps; a new epoch begins with each
// process, and after the loss of changes that came too fast.
type changeRing struct {
	index *index.Index
	sub   *index.Subscription

	mu      sync.Mutex // guards the fields below
	epoch   uint64
	changes []index.Change // changes[seq % ringSize], filled from first to last
	first   uint64
	last    uint64        // first-1 for an empty ring
	grown   chan struct{} // closed after each change, then replaced
}

// newRing subscribes to the index; run must be called to drain the subscription. Epoch must differ
// from those of earlier processes.
func newRing(x *index.Index, epoch uint64) *changeRing {
	r := &changeRing{index: x, sub: x.Subscribe(ringSize), epoch: epoch, changes: make([]index.Change, ringSize), grown: make(chan struct{})}
	r.last = x.Seq()
	r.first = r.last + 1
	return r
}

// run takes changes from the index until ctx ends.
func (r *changeRing) run(ctx context.Context) {
	defer r.sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case ch := <-r.sub.Changes():
			r.add(ch, r.sub.Lost() > 0)
		}
	}
}

// add adds one change. A gap before it invalidates all positions.
func (r *changeRing) add(ch index.Change, gap bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gap {
		r.epoch++
		r.last = max(r.index.Seq(), ch.Seq)
		r.first = r.last + 1
	} else if ch.Seq > r.last {
		r.last = ch.Seq
		r.changes[ch.Seq%ringSize] = ch
		r.first = max(r.first, r.last-min(r.last, ringSize)+1)
	}
	close(r.grown)
	r.grown = make(chan struct{})
}

// after returns up to most changes after a position. If there are none, wait closes with the next
// change. Lost reports a position that is no longer available.
func (r *changeRing) after(at *pb.Cookie, most int) (some []index.Change, wait <-chan struct{}, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq := at.GetSeq()
	if at.GetEpoch() != r.epoch || seq+1 < r.first || seq > r.last {
		return nil, nil, true
	}
	for ; seq < r.last && len(some) < most; seq++ {
		some = append(some, r.changes[(seq+1)%ringSize])
	}
	return some, r.grown, false
}

// place returns the position of a sequence number, or the current position if it is no longer
// available.
func (r *changeRing) place(seq uint64) *pb.Cookie {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq+1 < r.first || seq > r.last {
		seq = r.last
	}
	return &pb.Cookie{Epoch: r.epoch, Seq: seq}
}
