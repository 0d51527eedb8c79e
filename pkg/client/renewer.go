package client

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// watchful bounds the sleep of a renewer: Go's timers stop while the machine sleeps, and are
// late by this much afterwards.
const watchful = time.Second

// maxRequestTime bounds a request of a renewer.
const maxRequestTime = 30 * time.Second

// renewer keeps the members of a client alive: sessions by lease renewals, registered
// instances by heartbeats. While members exist, one goroutine plans requests. Members due
// within a quarter of their period share a request.
type renewer[M renewable] struct {
	send  sender[M]
	limit int // members; 0 means no limit
	batch int // members in one request
	tries int // requests in flight for one member
	clock func() time.Duration
	vary  func(time.Duration) time.Duration

	wake  chan struct{} // capacity 1: the plan has changed
	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu      sync.Mutex // guards the fields below, and the renewals of all members
	members map[M]struct{}
	added   uint64 // members ever
	running bool
}

// sender sends one request for a batch. It returns the time to live of each member; zero means
// unknown to the peer.
type sender[M any] func(ctx context.Context, batch []M) ([]time.Duration, error)

// renewable is a member of a renewer.
type renewable interface {
	comparable
	state() *renewal
	// unknown handles an answer that the peer does not know the member. The renewer's mutex
	// is held.
	unknown()
}

// renewal is the schedule of a member, guarded by its renewer. Times are readings of the
// client's clock.
type renewal struct {
	ctx context.Context // ends with the member
	end context.CancelCauseFunc

	number   uint64        // position in the order of arrival
	epoch    uint64        // answers to requests of an earlier epoch are ignored
	period   time.Duration // between renewals
	deadline time.Duration // end of the lease without a renewal; 0 means none
	next     time.Duration // next request
	tries    int           // requests in flight
	misses   int           // failures since the last success
	missedBy error         // the last failure, nil after a success
	paused   bool          // no requests
}

func newRenewal() renewal {
	var r renewal
	r.ctx, r.end = context.WithCancelCause(context.Background())
	return r
}

func (s *renewal) state() *renewal { return s }

// margin is subtracted from a time to live, for clocks that run at different speeds.
func margin(ttl time.Duration) time.Duration { return max(50*time.Millisecond, ttl/20) }

// start sets the schedule after a registration or grant by a request at a time.
func (s *renewal) start(sent, period time.Duration) {
	s.epoch++
	s.period, s.next, s.tries, s.misses, s.missedBy, s.paused = period, sent+period, 0, 0, nil, false
}

// renewed notes a success. A lease lives from the sending of the request, not from the
// answer: the group counts from a time in between.
func (s *renewal) renewed(sent, ttl time.Duration) {
	s.misses, s.missedBy = 0, nil
	s.next = max(s.next, sent+s.period)
	if s.deadline > 0 {
		s.deadline = max(s.deadline, sent+ttl-margin(ttl))
	}
}

// retryDelay is the delay after a number of failures.
func retryDelay(failures int) time.Duration { return firstPause << min(failures, 10) }

// configure completes a renewer.
func (r *renewer[M]) configure(c *Client) {
	r.clock, r.vary, r.wake, r.members = c.clock, c.vary, make(chan struct{}, 1), make(map[M]struct{})
	r.ctx, r.stop = context.WithCancel(context.Background())
}

// add takes over a member.
func (r *renewer[M]) add(m M) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ctx.Err() != nil:
		return errClosed()
	case r.limit > 0 && len(r.members) >= r.limit:
		return fault.New("client.renewer", fault.LimitReached, "the client already keeps %d instances, the maximum", r.limit)
	}
	r.added++
	m.state().number = r.added
	r.members[m] = struct{}{}
	if !r.running {
		r.running = true
		r.tasks.Go(r.run)
	}
	r.notify()
	return nil
}

// remove removes a member and ends it.
func (r *renewer[M]) remove(m M, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(m, cause)
}

// drop is remove with the mutex held.
func (r *renewer[M]) drop(m M, cause error) {
	delete(r.members, m)
	m.state().end(cause)
	r.notify()
}

// spawn runs the rest of a call that has returned already. f must end with its member.
func (r *renewer[M]) spawn(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() == nil {
		r.tasks.Go(f)
	}
}

// close ends all members and waits for all goroutines. A second close returns false.
func (r *renewer[M]) close(cause error) bool {
	r.mu.Lock()
	first := r.ctx.Err() == nil
	r.stop()
	for m := range r.members {
		r.drop(m, cause)
	}
	r.mu.Unlock()
	r.tasks.Wait()
	return first
}

// all returns all members.
func (r *renewer[M]) all() []M {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.members))
}

func (r *renewer[M]) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *renewer[M]) run() {
	timer := time.NewTimer(watchful)
	defer timer.Stop()
	for {
		list, sleep, done := r.plan()
		if done {
			return
		}
		for batch := range slices.Chunk(list, r.batch) {
			r.tasks.Go(func() { r.try(batch) })
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-r.wake:
		}
	}
}

// due is a member with a request to send.
type due[M any] struct {
	member M
	epoch  uint64
}

// plan ends members after their deadline, and returns the members for the next requests.
func (r *renewer[M]) plan() (list []due[M], sleep time.Duration, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, urgent := r.clock(), false
	wake, earliest := now+watchful, now+watchful
	for m := range r.members {
		s := m.state()
		if s.deadline > 0 {
			if s.deadline <= now {
				r.drop(m, late(s.missedBy))
				continue
			}
			wake = min(wake, s.deadline)
		}
		switch {
		case s.paused || s.tries >= r.tries:
		case s.next <= now+s.period/4:
			list = append(list, due[M]{m, s.epoch})
			urgent, earliest = urgent || s.next <= now, min(earliest, s.next)
		default:
			wake = min(wake, s.next)
		}
	}
	if len(r.members) == 0 {
		r.running = false
		return nil, 0, true
	}
	if !urgent {
		return nil, max(min(wake, earliest)-now, time.Millisecond), false
	}
	slices.SortFunc(list, func(a, b due[M]) int { return cmp.Compare(a.member.state().number, b.member.state().number) })
	for _, d := range list {
		s := d.member.state()
		s.tries++
		s.next = now + s.period
		wake = min(wake, s.next)
	}
	return list, max(wake-now, time.Millisecond), false
}

// try sends one request for a batch.
func (r *renewer[M]) try(batch []due[M]) {
	members, timeout := make([]M, len(batch)), maxRequestTime
	for i, d := range batch {
		members[i] = d.member
	}
	r.mu.Lock()
	for _, m := range members {
		timeout = min(timeout, time.Duration(r.tries)*m.state().period)
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	sent := r.clock()
	ttls, err := r.send(ctx, members)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	for i, m := range members {
		s := m.state()
		if s.epoch != batch[i].epoch {
			continue // registered again in the meantime
		}
		s.tries--
		switch {
		case err != nil:
			s.misses, s.missedBy = s.misses+1, err
			s.next = min(s.next, now+r.vary(min(retryDelay(s.misses), s.period/4)))
		case ttls[i] <= 0:
			m.unknown()
		default:
			s.renewed(sent, ttls[i])
		}
	}
	r.notify()
}
