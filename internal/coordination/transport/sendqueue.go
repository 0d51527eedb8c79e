package transport

import (
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/platform/pause"
)

// sendQueue holds the messages of one stream, bounded by count and bytes.
type sendQueue struct {
	maxCount, maxBytes int
	ready              chan struct{} // has an element if the queue may hold messages

	mu    sync.Mutex // guards all below
	queue []*raftpb.Message
	bytes int  // of the queue
	lost  bool // a message was dropped since the last take
}

func newSendQueue(maxCount, maxBytes int) *sendQueue {
	return &sendQueue{maxCount: maxCount, maxBytes: maxBytes, ready: make(chan struct{}, 1)}
}

// put appends m, or drops it if the queue is full. An empty queue takes a message of any size.
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
		pause.Wake(o.ready)
	}
	return !full
}

// take empties the queue, which reuses spare next, and reports whether it dropped a message since the last
// take.
func (o *sendQueue) take(spare []*raftpb.Message) (queue []*raftpb.Message, lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	queue, lost = o.queue, o.lost
	o.queue, o.bytes, o.lost = spare[:0], 0, false
	return queue, lost
}
