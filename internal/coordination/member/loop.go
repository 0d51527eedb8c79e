package member

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
)

// request is a request with an id for the Replica.
type request struct {
	put   func(r *replica.Replica, id uint64)
	reply taker
}

// taker receives the answer, without blocking.
type taker interface{ take(replica.Answer) }

// reply has room for one answer.
type reply chan replica.Answer

func (r reply) take(a replica.Answer) { r <- a }

// loop holds the data of the goroutine that owns the Replica.
type loop struct {
	*Member
	waiting map[uint64]taker
	next    uint64 // last id
	stale   bool   // the status is older than a change

	hold    *time.Timer // for the release of messages that the Replica holds
	holding bool        // hold runs
}

// run is the goroutine.
func (l *loop) run() {
	defer close(l.done)
	defer func() {
		if p := recover(); p != nil {
			l.fail(fault.New("member", fault.Internal, "panic: %v\n%s", p, debug.Stack()))
		}
	}()
	ticker := time.NewTicker(l.tick)
	defer ticker.Stop()
	l.hold = time.NewTimer(0)
	defer l.hold.Stop()
	<-l.hold.C
	for l.poll(ticker.C) {
		l.turns.Add(1)
		if err := l.turn(); err != nil {
			l.fail(err)
			return
		}
		if !l.replica.Ready() && !l.wait(ticker.C) {
			return
		}
	}
}

// poll checks the clock between turns, because work may never end. It returns false at the member's end.
func (l *loop) poll(tick <-chan time.Time) bool {
	select {
	case <-l.stop:
		return false
	default:
	}
	select {
	case <-tick:
		l.passed()
	case <-l.hold.C:
		l.release()
	default:
	}
	return true
}

// release lets the next turn send what the Replica has held.
func (l *loop) release() {
	l.holding = false
	l.replica.Release()
}

// passed reports a tick to the Replica.
func (l *loop) passed() {
	l.state.Lock()
	l.replica.Tick(time.Since(l.began))
	l.state.Unlock()
	l.publish(l.replica.Status())
}

// wait blocks for the next event and takes it; false at the member's end. The turn takes further events.
func (l *loop) wait(tick <-chan time.Time) bool {
	select {
	case <-l.stop:
		return false
	case <-tick:
		l.passed()
	case <-l.hold.C:
		l.release()
	case a := <-l.inbox.requests:
		l.state.Lock()
		l.take()
		l.ask(a)
		l.state.Unlock()
	case <-l.inbox.piggyback.wake:
		l.state.Lock()
		l.take()
		l.state.Unlock()
	case a := <-l.inbox.messages:
		l.state.Lock()
		l.deliver(a)
		l.state.Unlock()
	case <-l.inbox.barriers.wake:
		l.state.Lock()
		l.gather()
		l.state.Unlock()
	case event := <-l.inbox.events:
		if err := event(l.replica); err != nil {
			l.fail(err)
			return false
		}
	}
	return true
}

// turn takes all queued events and works them off together.
func (l *loop) turn() error {
	if err := l.handleEvents(); err != nil {
		return err
	}
	out, sent, worked, err := l.apply()
	if err != nil || !worked {
		return err
	}
	l.finish(out)
	if l.replica.Holds() && !l.holding {
		l.hold.Reset(replica.HoldFor)
		l.holding = true
	}
	if sent || len(out.Answers) > 0 {
		runtime.Gosched() // the senders, and those with an answer, go on before the disk blocks this thread
	}
	late, err := l.replica.Persist()
	if err != nil {
		return err
	}
	l.config.Transport.Send(late)
	return nil
}

// apply is the part of a turn that excludes readers. A panic releases the lock although the state is broken:
// the process is about to end.
func (l *loop) apply() (out replica.Output, sent, worked bool, err error) {
	l.state.Lock()
	defer l.state.Unlock()
	l.drain()
	if !l.replica.Ready() {
		return out, false, false, nil
	}
	now, term := time.Since(l.began), l.header.Term
	early := l.replica.Prepare(now)
	if sent = len(early) > 0; sent {
		l.config.Transport.Send(early)
	}
	out, err = l.replica.Apply(now)
	l.header = l.replica.Header()
	l.stale = l.stale || term != l.header.Term
	return out, sent, true, err
}

func (l *loop) handleEvents() error {
	for {
		select {
		case event := <-l.inbox.events:
			if err := event(l.replica); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// drain takes the queued events, without later ones.
func (l *loop) drain() {
	for range len(l.inbox.messages) {
		l.deliver(<-l.inbox.messages)
	}
	if n := len(l.inbox.requests); n > 0 {
		l.take()
		for range n {
			l.ask(<-l.inbox.requests)
		}
	}
	select {
	case <-l.inbox.piggyback.wake:
		l.take()
	default:
	}
	l.gather()
}

// take takes piggybacked requests before the requests of this turn: an unlock then grants the lock to one of
// them.
func (l *loop) take() {
	for _, a := range l.inbox.piggyback.take() {
		l.ask(a)
	}
}

func (l *loop) ask(a request) {
	l.next++
	l.waiting[l.next] = a.reply
	a.put(l.replica, l.next)
}

// gather starts one ReadIndex for all waiters.
func (l *loop) gather() {
	if together := l.inbox.barriers.next(); together != nil {
		l.ask(request{put: (*replica.Replica).Read, reply: together})
	}
}

func (l *loop) deliver(a arrival) {
	var err error
	if a.machine != nil {
		err = l.replica.Restore(a.message, a.machine)
	} else {
		err = l.replica.Step(a.message)
	}
	if err != nil {
		l.config.Replica.Logger.Warn("a message of a member was refused", "from", fmt.Sprintf("%016x", a.message.GetFrom()), "error", err)
	}
}

// finish delivers the results of a turn. A caller with an answer sees no earlier revision afterwards.
func (l *loop) finish(out replica.Output) {
	l.revision.Store(int64(l.header.Revision))
	for _, a := range out.Answers {
		l.waiting[a.ID].take(a)
		delete(l.waiting, a.ID)
	}
	if out.Restored {
		l.claims.all()
		l.watchers.replaced(l.header.Revision)
	}
	l.watchers.wake()
	s := l.status.Load()
	leader, promoted := l.replica.Leader()
	if l.stale || out.Reconfigured || s.Promoted != promoted || s.Leader.ID != leader {
		l.stale = false
		l.publish(l.replica.Status())
	}
	if out.Reconfigured {
		l.config.Transport.Recheck()
	}
	if out.Checkpoint != nil && l.Checkpoints.put(out.Checkpoint) {
		l.workers.Go(l.Checkpoints.work)
	}
	if out.Image != nil {
		l.workers.Go(func() { l.write(out.Image) })
	}
}

// write writes a snapshot's file beside the loop.
func (l *loop) write(image *replica.Image) {
	err := image.Write()
	l.post(func(r *replica.Replica) error { return r.Written(image, err) })
}

// post queues an event for the loop; it does nothing after the loop's end.
func (m *Member) post(event func(*replica.Replica) error) {
	select {
	case m.inbox.events <- event:
	case <-m.done:
	}
}
