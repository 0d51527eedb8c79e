package transport

import (
	"sync"

	"go.etcd.io/raft/v3/raftpb"
)

// sendQueue is what waits for one lane, bounded by count and by bytes.
type sendQueue struct {
	maxCount, maxBytes int
	ready              chan struct{} // has an element when there may be something to take

	mu    sync.Mutex // guards what follows
	queue []*raftpb.Message
	bytes int  // of the queue
	lost  bool // something was dropped since the last take
}

func newSendQueue(maxCount, maxBytes int) *sendQueue {
	return &sendQueue{maxCount: maxCount, maxBytes: maxBytes, ready: make(chan struct{}, 1)}
}

// put appends m, or drops it when the box is full. A message larger than the whole box still fits
// into an empty one.
func (o *sendQueue) put(m *raftpb.Message) bool {
	weight := weigh(m)
	o.mu.Lock()
	full := len(o.queue) >= o.maxCount || len(o.queue) > 0 && o.bytes+weight > o.maxBytes
	if full {
		o.lost = true
	} else {
		o.queue = append(o.queue, m)
		o.bytes += weight
	}
	o.mu.Unlock()
	if !full {
		select {
		case o.ready <- struct{}{}:
		default:
		}
	}
	return !full
}

// take empties the box, gives it spare, which is the box's from then on, to fill next, and tells whether something was dropped
// since the last time.
func (o *sendQueue) take(spare []*raftpb.Message) (queue []*raftpb.Message, lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue, lost = o.queue, o.lost
	o.queue, o.bytes, o.lost = spare[:0], 0, false
	return queue, lost
}
