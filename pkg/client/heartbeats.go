package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Bounds of the registered instances of a client.
const (
	maxHandles      = 10_000           // the default limit of a peer
	maxReturning    = 16               // concurrent repeated registrations
	registerTimeout = 10 * time.Second // of a repeated registration
	closeWorkers    = 16               // concurrent deregistrations when the client closes
)

// heartbeats keeps the registered instances of a client alive, and registers an instance
// again if the peer does not know its lease.
type heartbeats struct {
	renewer[*InstanceHandle]
	service   agentv1.DiscoveryServiceClient
	returning chan struct{} // capacity maxReturning: repeated registrations in progress
}

func newHeartbeats(c *Client) *heartbeats {
	b := &heartbeats{service: c.link.Agent.Service, returning: make(chan struct{}, maxReturning)}
	b.limit, b.batch, b.tries, b.send = maxHandles, instances.MaxBeats, 1, b.exchange
	b.configure(c)
	return b
}

// exchange sends one request.
func (b *heartbeats) exchange(ctx context.Context, handles []*InstanceHandle) ([]time.Duration, error) {
	req := &agentv1.HeartbeatRequest{LeaseIds: make([]string, len(handles))}
	b.mu.Lock()
	for i, p := range handles {
		req.LeaseIds[i] = p.lease
	}
	b.mu.Unlock()
	const op = "client.heartbeats"
	resp, err := b.service.Heartbeat(ctx, req)
	if err != nil {
		return nil, calls.Fault(op, err)
	}
	if len(resp.GetBeats()) != len(handles) {
		return nil, fault.New(op, fault.Internal, "the peer answered for other leases")
	}
	ttls := make([]time.Duration, len(handles))
	for i, beat := range resp.GetBeats() {
		ttls[i] = time.Duration(beat.GetTtlMs()) * time.Millisecond
	}
	return ttls, nil
}

// registered sets the lease and the schedule after a registration by a request at a time.
func (b *heartbeats) registered(p *InstanceHandle, done instances.Registered, sent time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.lease = done.Lease
	p.start(sent, done.Interval)
	b.notify()
}

// unknown implements renewable: the peer has lost the instance.
func (p *InstanceHandle) unknown() {
	p.paused = true
	p.services.beats.tasks.Go(func() { p.services.beats.bringBack(p) })
}

// bringBack registers an instance again, until success, a permanent error, or the end of the
// handle. The end does not cancel a registration in progress: Close waits for it, so that the
// deregistration comes last.
func (b *heartbeats) bringBack(p *InstanceHandle) {
	for failures := 0; ; failures++ {
		select {
		case b.returning <- struct{}{}:
		case <-p.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(b.ctx, registerTimeout)
		err := p.registerAgain(ctx)
		cancel()
		<-b.returning
		if permanent(err) {
			b.remove(p, fault.Wrap("client.InstanceHandle", err))
		}
		if err == nil || pause(p.ctx, max(b.vary(min(retryDelay(failures), lastPause)), retryAfter(err))) != nil {
			return
		}
	}
}

// lost reports whether the peer has lost an instance.
func (b *heartbeats) lost(p *InstanceHandle) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return p.paused
}

// missed implements InstanceHandle.Missed.
func (b *heartbeats) missed(p *InstanceHandle) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.missedBy == nil && p.paused {
		return fault.New("client.InstanceHandle", fault.NotFound, "the peer has lost the instance: it is being registered again")
	}
	return p.missedBy
}

// close deregisters all instances until ctx ends, and waits for all goroutines.
func (b *heartbeats) close(ctx context.Context) {
	handles := make(chan *InstanceHandle)
	var workers sync.WaitGroup
	for range closeWorkers {
		workers.Go(func() {
			for p := range handles {
				_ = p.Close(ctx) // on failure the instance expires
			}
		})
	}
	for _, p := range b.all() {
		handles <- p
	}
	close(handles)
	workers.Wait()
	b.renewer.close(errClosed())
}

// retryAfter is the delay that the peer asks for, or 0.
func retryAfter(err error) time.Duration {
	var e *fault.Error
	for errors.As(err, &e) {
		if d, ok := e.Value.(time.Duration); ok && e.Kind == fault.LimitReached {
			return min(d, time.Minute)
		}
		err = e.Err
	}
	return 0
}

// permanent reports whether the peer would refuse the same registration again.
func permanent(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.Unprocessable, fault.TooLarge, fault.Unsupported, fault.Exists, fault.Forbidden, fault.Unauthentic:
		return true
	}
	return false
}
