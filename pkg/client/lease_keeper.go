package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// keeper renews the leases of all sessions of a client and ends the sessions whose leases it
// could not renew in time. One goroutine does the planning, for as long as there are sessions.
//
// A lease lives from when the request was sent that is known to have renewed it, not from when
// the answer came: the group counts from somewhere in between. A margin for clocks that
// run at different speeds is taken off.
type keeper struct {
	renew renewer
	clock Clock
	vary  func(time.Duration) time.Duration

	wake  chan struct{} // capacity 1: the plan has changed
	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu       sync.Mutex // guards what follows, and the tenure of every session
	sessions map[coord.LeaseID]*Session
	running  bool
}

// renewer sends one request to renew leases. Fresh says that an earlier one has no answer yet,
// and that this one should go another way.
type renewer func(ctx context.Context, ids []coord.LeaseID, fresh bool) ([]coord.Renewal, error)

// tenure is how a session's lease stands. Times are those of the client's clock.
type tenure struct {
	deadline time.Duration // the lease may be gone from then on
	next     time.Duration // when to send
	tries    int           // in flight, at most 2
	misses   int           // failed since the last success
	missed   error         // the last failure; nil: none
}

// margin is what a client takes off a time to live.
func margin(ttl time.Duration) time.Duration { return max(50*time.Millisecond, ttl/20) }

// watchful bounds how long the keeper sleeps: Go's timers stand still while the machine
// sleeps, and are late by that much afterwards.
const watchful = time.Second

func newKeeper(renew renewer, clock Clock, vary func(time.Duration) time.Duration) *keeper {
	k := &keeper{renew: renew, clock: clock, vary: vary, wake: make(chan struct{}, 1), sessions: make(map[coord.LeaseID]*Session)}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// add takes charge of a session whose lease was granted by a request sent at a time.
func (k *keeper) add(s *Session, sent time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return errClosed()
	}
	s.tenure = tenure{deadline: sent + s.ttl - margin(s.ttl), next: sent + s.ttl/3}
	k.sessions[s.id] = s
	if !k.running {
		k.running = true
		k.tasks.Go(k.run)
	}
	k.notify()
	return nil
}

// remove forgets a session and ends it.
func (k *keeper) remove(s *Session, cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(s, cause)
}

func (k *keeper) drop(s *Session, cause error) {
	if k.sessions[s.id] == s {
		delete(k.sessions, s.id)
		k.notify()
	}
	s.end(cause)
}

// remaining gives the time that a session's lease is known to live, and ends the session when
// there is none left: whoever asks after the machine slept hears it first.
func (k *keeper) remaining(s *Session) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.ctx.Err() != nil {
		return 0
	}
	left := s.deadline - k.clock()
	if left <= 0 {
		k.drop(s, late(s))
	}
	return max(left, 0)
}

// spawn runs what goes on after a call has returned. It must end with its session.
func (k *keeper) spawn(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() == nil {
		k.tasks.Go(f)
	}
}

// close ends all sessions and waits until nothing runs; false when it was closed before.
func (k *keeper) close() bool {
	k.mu.Lock()
	first := k.ctx.Err() == nil
	k.stop()
	for _, s := range k.sessions {
		k.drop(s, lost(errClosed()))
	}
	k.mu.Unlock()
	k.tasks.Wait()
	return first
}

func (k *keeper) notify() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) run() {
	timer := time.NewTimer(watchful)
	defer timer.Stop()
	for {
		list, sleep, done := k.plan()
		if done {
			return
		}
		for batch := range slices.Chunk(list, coord.MaxKeepAlive) {
			fresh := slices.ContainsFunc(batch, func(d due) bool { return d.again })
			k.tasks.Go(func() { k.try(batch, fresh) })
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-k.wake:
		}
	}
}

// due is a session whose lease is to be renewed now.
type due struct {
	*Session
	again bool // the last request has no answer yet
}

// plan ends the sessions whose time has passed and gives those to renew now. Sessions that
// would be due soon go along, so that they come to share their messages.
func (k *keeper) plan() (list []due, sleep time.Duration, done bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, urgent := k.clock(), false
	wake := now + watchful
	for _, id := range slices.Sorted(maps.Keys(k.sessions)) {
		s := k.sessions[id]
		if s.deadline <= now {
			k.drop(s, late(s))
			continue
		}
		if s.tries < 2 && s.next <= now+s.ttl/12 {
			list = append(list, due{s, s.tries > 0})
			urgent = urgent || s.next <= now
		} else if s.tries < 2 {
			wake = min(wake, s.next)
		}
		wake = min(wake, s.deadline)
	}
	if len(k.sessions) == 0 {
		k.running = false
		return nil, 0, true
	}
	if !urgent {
		for _, d := range list {
			wake = min(wake, d.next)
		}
		list = nil
	}
	for _, d := range list {
		d.tries++
		d.next = now + d.ttl/3
		wake = min(wake, d.next)
	}
	return list, max(wake-now, time.Millisecond), false
}

// try sends one request for the leases of sessions.
func (k *keeper) try(batch []due, fresh bool) {
	ids, patience := make([]coord.LeaseID, len(batch)), batch[0].ttl
	for i, s := range batch {
		ids[i], patience = s.id, min(patience, s.ttl)
	}
	ctx, cancel := context.WithTimeout(k.ctx, patience*2/3)
	defer cancel()
	sent := k.clock()
	renewals, err := k.renew(ctx, ids, fresh)
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock()
	for i, s := range batch {
		s.tries--
		switch {
		case err != nil:
			s.fail(err, now+k.vary(s.retry()))
		case renewals[i].TTL <= 0:
			k.drop(s.Session, lost(fault.New("client.KeepAlive", fault.NotFound, "the group does not know the lease any more")))
		default:
			s.renewed(sent, time.Duration(renewals[i].TTL)*time.Millisecond)
		}
	}
	k.notify()
}

func (t *tenure) fail(err error, next time.Duration) {
	t.misses++
	t.missed = err
	t.next = min(t.next, next)
}

func (t *tenure) renewed(sent, ttl time.Duration) {
	t.deadline = max(t.deadline, sent+ttl-margin(ttl))
	t.next = max(t.next, sent+ttl/3)
	t.misses, t.missed = 0, nil
}

// retry is how long to wait after a failure.
func (s *Session) retry() time.Duration {
	return min(firstPause<<min(s.misses, 10), s.ttl/12)
}

// lost is the end of a session whose lease cannot be relied on any more.
func lost(reason error) error {
	return &fault.Error{Op: ErrLost.Op, Kind: ErrLost.Kind, Field: ErrLost.Field, Err: reason}
}

// late is the loss of a lease that was not renewed in time.
func late(s *Session) error {
	if s.missed == nil {
		return lost(errors.New("not renewed in time"))
	}
	return lost(fault.As("client.KeepAlive", fault.KindOf(s.missed), s.missed))
}
