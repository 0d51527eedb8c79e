package transport

import (
	"context"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"
)

// sendLimiter bounds background work, in total and per peer.
type sendLimiter struct {
	total, perPeer int
	ctx            context.Context
	cancel         context.CancelFunc
	running        sync.WaitGroup

	mu     sync.Mutex // guards all below, and additions to running
	n      int
	ofPeer map[peer.ID]int
}

func newSendLimiter(total, perPeer int) *sendLimiter {
	p := &sendLimiter{total: total, perPeer: perPeer, ofPeer: make(map[peer.ID]int)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// start runs f in the background. It returns false at a limit and after close.
func (p *sendLimiter) start(to peer.ID, f func(context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n >= p.total || p.ofPeer[to] >= p.perPeer || p.ctx.Err() != nil {
		return false
	}
	p.n++
	p.ofPeer[to]++
	p.running.Go(func() {
		defer p.done(to)
		f(p.ctx)
	})
	return true
}

func (p *sendLimiter) done(to peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n--
	if p.ofPeer[to]--; p.ofPeer[to] == 0 {
		delete(p.ofPeer, to)
	}
}

// close cancels the running functions and waits for them.
func (p *sendLimiter) close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.running.Wait()
}
