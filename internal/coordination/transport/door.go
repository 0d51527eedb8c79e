package transport

import (
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// door bounds the streams that strangers hold open, in all and of each peer.
type door struct {
	total, perPeer int

	served sync.WaitGroup // one for each stream inside

	mu     sync.Mutex // guards what follows, and additions to served
	inside map[network.Stream]struct{}
	ofPeer map[peer.ID]int
	shut   bool
}

func newDoor(total, perPeer int) *door {
	return &door{
		total: total, perPeer: perPeer,
		inside: make(map[network.Stream]struct{}), ofPeer: make(map[peer.ID]int),
	}
}

// enter counts a stream in, unless there are too many or the door is shut. Each entry is undone by leave.
func (d *door) enter(s network.Stream) bool {
	id := s.Conn().RemotePeer()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut || len(d.inside) >= d.total || d.ofPeer[id] >= d.perPeer {
		return false
	}
	d.inside[s] = struct{}{}
	d.ofPeer[id]++
	d.served.Add(1)
	return true
}

func (d *door) leave(s network.Stream) {
	id := s.Conn().RemotePeer()
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.inside[s]; !ok {
		return
	}
	delete(d.inside, s)
	if d.ofPeer[id]--; d.ofPeer[id] == 0 {
		delete(d.ofPeer, id)
	}
	d.served.Done()
}

// close lets nobody in any more, ends the streams inside, and waits for who serves them.
func (d *door) close() {
	d.mu.Lock()
	d.shut = true
	for s := range d.inside {
		_ = s.Reset()
	}
	d.mu.Unlock()
	d.served.Wait()
}
