package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// Bounds of the presences of a client.
const (
	maxHandles     = 10_000           // as many as a peer takes unless told otherwise
	maxReturning   = 16               // registered again at a time
	beatPatience   = 10 * time.Second // longest time to wait for an answer
	beatsTogether  = 8                // presences that would be due within an eighth of their interval go along
	partingWorkers = 16               // deregistered at a time when the client closes
)

// beater keeps the presences of a client: one goroutine sends the heartbeats of all, for as long as there
// are any, and has those registered again that the peer does not know any more.
//
// Nothing depends on a heartbeat being in time but how the instance looks to others, so that one
// request at a time will do: what is late is sent with the next.
type beater struct {
	wire  renewing
	clock Clock
	vary  func(time.Duration) time.Duration

	wake  chan struct{} // capacity 1: the plan has changed
	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu        sync.Mutex // guards what follows, and the tenancy of every presence
	kept      map[*InstanceHandle]struct{}
	made      uint64 // presences ever
	returning int    // being registered again
	running   bool
}

// renewing is where heartbeats go. It is for one goroutine.
type renewing interface {
	// exchange renews some leases: one answer to each, in order.
	exchange(ctx context.Context, leases []string) ([]*agentv1.Beat, error)
	// rest gives up what an exchange keeps for the next.
	rest()
}

// registrationState is how a presence stands with the peer. Times are those of the client's clock.
type registrationState struct {
	number    uint64 // of the order in which they came
	lease     string
	interval  time.Duration // between heartbeats
	next      time.Duration // when the next is due, or the next attempt to register again
	lost      bool          // the peer does not know the lease any more
	returning bool          // is being registered again
	misses    int           // attempts that failed since the last one that did not
}

func newBeater(wire renewing, clock Clock, vary func(time.Duration) time.Duration) *beater {
	b := &beater{wire: wire, clock: clock, vary: vary, wake: make(chan struct{}, 1), kept: make(map[*InstanceHandle]struct{})}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// add takes charge of a presence that was registered by a request sent at a time.
func (b *beater) add(p *InstanceHandle, done instance.Registered, sent time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ctx.Err() != nil:
		return errClosed()
	case len(b.kept) >= maxHandles:
		return fault.New("client.beater", fault.LimitReached, "%d instances are kept already", maxHandles)
	}
	b.made++
	p.registrationState = registrationState{number: b.made}
	p.settle(done, sent)
	b.kept[p] = struct{}{}
	if !b.running {
		b.running = true
		b.tasks.Go(b.run)
	}
	b.notify()
	return nil
}

// renewed notes that a presence was registered anew.
func (b *beater) renewed(p *InstanceHandle, done instance.Registered, sent time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.settle(done, sent)
	b.notify()
}

// settle begins a tenancy anew.
func (t *registrationState) settle(done instance.Registered, sent time.Duration) {
	t.lease, t.interval, t.lost, t.misses = done.Lease, done.Interval, false, 0
	t.next = sent + t.interval
}

// remove forgets a presence and ends it.
func (b *beater) remove(p *InstanceHandle, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.kept, p)
	p.end(cause)
	b.notify()
}

// close deregisters all presences, as far as ctx allows, and waits until nothing runs.
func (b *beater) close(ctx context.Context) {
	b.mu.Lock()
	all := make(chan *InstanceHandle, len(b.kept))
	for p := range b.kept {
		all <- p
	}
	close(all)
	b.mu.Unlock()
	var parting sync.WaitGroup
	for range min(len(all), partingWorkers) {
		parting.Go(func() {
			for p := range all {
				_ = p.Close(ctx) // it runs out by itself
			}
		})
	}
	parting.Wait()
	b.mu.Lock()
	b.stop()
	b.mu.Unlock()
	b.tasks.Wait()
}

func (b *beater) notify() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *beater) run() {
	timer := time.NewTimer(watchful)
	defer timer.Stop()
	for {
		beats, back, sleep, done := b.plan()
		if done {
			return
		}
		for _, p := range back {
			b.tasks.Go(func() { b.bringBack(p) })
		}
		for batch := range slices.Chunk(beats, instance.MaxBeats) {
			b.beat(batch)
		}
		if len(beats) > 0 {
			continue // time has passed
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-b.wake:
		case <-b.ctx.Done():
		}
	}
}

// plan gives the presences whose heartbeat is due and those to register again now.
func (b *beater) plan() (beats, back []*InstanceHandle, sleep time.Duration, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.kept) == 0 || b.ctx.Err() != nil {
		b.running = false
		b.wire.rest()
		return nil, nil, 0, true
	}
	now, urgent := b.clock(), false
	wake := now + watchful
	for p := range b.kept {
		switch {
		case p.returning:
		case p.lost:
			if p.next <= now && b.returning < maxReturning {
				p.returning = true
				b.returning++
				back = append(back, p)
			} else if p.next > now {
				wake = min(wake, p.next)
			}
		case p.next <= now+p.interval/beatsTogether:
			beats = append(beats, p)
			urgent = urgent || p.next <= now
			wake = min(wake, max(p.next, now))
		default:
			wake = min(wake, p.next)
		}
	}
	if !urgent {
		beats = nil
	}
	slices.SortFunc(beats, func(x, y *InstanceHandle) int { return cmp.Compare(x.number, y.number) })
	return beats, back, max(wake-now, time.Millisecond), false
}

// beat sends the heartbeats of some presences and waits for the answer.
func (b *beater) beat(batch []*InstanceHandle) {
	b.mu.Lock()
	leases, patience := make([]string, len(batch)), beatPatience
	for i, p := range batch {
		leases[i], patience = p.lease, min(patience, max(p.interval, time.Second))
	}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	sent := b.clock()
	beats, err := b.wire.exchange(ctx, leases)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	for i, p := range batch {
		switch {
		case p.lease != leases[i]: // it was registered anew meanwhile
		case err != nil:
			p.misses++
			p.next = now + b.vary(min(p.retry(), p.interval))
		case beats[i].GetTtlMs() <= 0:
			p.lost, p.misses, p.next = true, 0, now
		default:
			p.misses, p.next = 0, sent+p.interval
		}
	}
}

// bringBack registers a presence again that the peer does not know any more. It goes on when the presence is
// closed meanwhile: who closes it waits, so that what is deregistered stays so.
func (b *beater) bringBack(p *InstanceHandle) {
	ctx, cancel := context.WithTimeout(b.ctx, beatPatience)
	defer cancel()
	done, sent, err := p.registerAgain(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	p.returning = false
	b.returning--
	switch {
	case p.ctx.Err() != nil || b.ctx.Err() != nil:
	case err == nil:
		p.settle(done, sent)
	case permanent(err):
		delete(b.kept, p)
		p.end(fault.Wrap("client.Presence", err))
	default:
		p.misses++
		p.next = b.clock() + max(b.vary(p.retry()), retryAfter(err))
	}
	b.notify()
}

// retryAfter is how long the peer asks to be left alone; 0 when it does not.
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

// retry is how long to wait after a failure.
func (t *registrationState) retry() time.Duration {
	return min(firstPause<<min(t.misses, 10), lastPause)
}

// permanent reports whether the peer would refuse the same registration each time.
func permanent(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.Unprocessable, fault.TooLarge, fault.Unsupported, fault.Exists, fault.Forbidden, fault.Unauthentic:
		return true
	}
	return false
}
