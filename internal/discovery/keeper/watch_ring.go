package keeper

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/internal/discovery/index"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// ringSize bounds the changes kept for watchers: who is further behind begins anew.
const ringSize = 4096

// changeRing keeps the newest changes of the index, with a cursor for each stream and a buffer
// for none. Places are the index's sequence; they are without gaps within an epoch, which
// ends with the process, and when changes came faster than they were taken.
type changeRing struct {
	index *index.Index
	sub   *index.Subscription

	mu      sync.Mutex // guards what follows
	epoch   uint64
	changes []index.Change // changes[seq % ringSize], filled for first to last
	first   uint64
	last    uint64        // first-1 when the ring is empty
	grown   chan struct{} // closed when last moves, then replaced
}

// newRing subscribes to the index; run must be called to drain it. The epoch must not be
// that of an earlier process.
func newRing(x *index.Index, epoch uint64) *changeRing {
	r := &changeRing{index: x, sub: x.Subscribe(ringSize), epoch: epoch, changes: make([]index.Change, ringSize), grown: make(chan struct{})}
	r.last = x.Seq()
	r.first = r.last + 1
	return r
}

// run takes changes in until ctx ends.
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

// add takes in one change. With a gap before it no cursor can be served any more.
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

// after gives up to most changes that follow a place. Without any, wait is closed when
// there may be; lost says that the place can no longer be served.
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

// place gives the place of a sequence, or the present where that can no longer be served.
func (r *changeRing) place(seq uint64) *pb.Cookie {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq+1 < r.first || seq > r.last {
		seq = r.last
	}
	return &pb.Cookie{Epoch: r.epoch, Seq: seq}
}
