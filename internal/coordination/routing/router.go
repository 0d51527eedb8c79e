package routing

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/pause"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Patience is the time without an answer of a leader after which a call fails: callers learn it within 5 s.
const Patience = 4500 * time.Millisecond

const (
	maxSlots   = 4096                  // concurrent commands, waiting ones included
	cleaningUp = 5 * time.Second       // to give back the claim of a caller that is gone
	askTime    = 2 * time.Second       // for one answer about the group
	resting    = 20 * time.Millisecond // at least, between two calls: a known leader may fail to answer
)

// Target is the contract at one member, which forwards nothing.
type Target interface {
	coord.Service
	coord.Admin
}

// Member is this peer's own member.
type Member interface {
	Target
	Leads() bool
	Belongs() bool // a removed member may wait for its leader forever
	Belief() leader.Member
	Changed() <-chan struct{} // closed at the next change of Belief
}

// Config holds what a Router needs from its peer. The functions must not call the Router.
type Config struct {
	Self  peer.ID
	Life  context.Context   // ends when this peer leaves the group or stops
	Start func(func()) bool // runs work until the end of Life, in a goroutine that the owner waits for; false after it

	Member  func() Member                                                     // nil without one
	Peers   func() []peer.ID                                                  // that may know the leader
	Ask     func(context.Context, peer.ID) (_ leader.Leadership, counts bool) // one of them
	Dial    func(peer.ID) (Remote, error)                                     // connects to another peer's member, perhaps lazily
	Group   func() string                                                     // its id; empty while unknown
	Missing func() string                                                     // explains the lack of a leader to an operator
	Refused func(error) bool                                                  // whether a member refused a command, which then had no effect
	Left    func() (departed bool, floor int64)                               // whether this peer left the group, and the last revision of a group that it left
	Jitter  func() float64                                                    // draws from [0, 1)
}

// Router carries calls to the current leader until they are answered. It is safe for concurrent use.
type Router struct {
	*finder
	remotes *remotes
	slots   *slots
	abroad  atomic.Int64 // calls at another peer
	watches atomic.Int64 // those of them that are established watches
}

// New returns a Router. Run must run until the end of the life, and Close comes after it.
func New(c Config) *Router {
	r := &Router{remotes: &remotes{dial: c.Dial, open: map[peer.ID]Remote{}}}
	r.finder = newFinder(c, r.waiting)
	r.slots = newSlots(maxSlots, r.openClient)
	return r
}

// Close ends the connections to other members.
func (r *Router) Close() error { return r.remotes.close() }

// waiting describes the calls at another peer.
func (r *Router) waiting() leader.Tick {
	watches := r.watches.Load()
	return leader.Tick{Waiting: r.abroad.Load() > watches, Watching: watches > 0}
}

// openClient makes a client id for commands of this peer.
func (r *Router) openClient(ctx context.Context) (coord.ClientID, error) {
	var id coord.ClientID
	err := r.AtLeader(ctx, func(ctx context.Context, t Target) error {
		result, err := t.Execute(ctx, coord.CommandOf(r.config.Self.String(), &apiv1.OpenClientRequest{}))
		id = coord.ClientID(result.GetOpenClient().GetClient())
		return err
	})
	return id, err
}

// withdraw gives back the claim of a lock under an id of this peer, whose caller is gone. The repeated command
// returns the claim's token, and a wait of little time gives the claim back. The end of the lease covers a failure.
func (r *Router) withdraw(cmd *coordv1.Command) {
	lock := cmd.GetLock()
	ctx, cancel := context.WithTimeout(r.config.Life, cleaningUp)
	defer cancel()
	_ = r.AtLeader(ctx, func(ctx context.Context, t Target) error {
		result, err := t.Execute(ctx, waiting(cmd, time.Millisecond))
		if err == nil && result.GetLock().GetAcquired() {
			_, err = t.Execute(ctx, coord.CommandOf(cmd.GetOwner(), &apiv1.UnlockRequest{
				Name: lock.GetName(), LeaseId: lock.GetLeaseId(), FencingToken: result.GetLock().GetFencingToken(),
			}))
		}
		return err
	})
}

// once executes a command at the leader and repeats it until the outcome is known, without a second effect: a
// command without a client id borrows one of this peer. If the caller leaves earlier, undo, unless nil,
// receives the sent command; the borrowed id stays lent until undo returns.
//
// A command with a client id is never undone: its caller may repeat it through another peer, and gets the first
// answer. If that answer was a held lock, the lock must still be held.
func (r *Router) once(ctx context.Context, cmd **coordv1.Command, f func(context.Context, Target) error, undo func(*coordv1.Command)) error {
	if (*cmd).GetAttempt().GetClient() != 0 {
		return r.AtLeader(ctx, f)
	}
	if (*cmd).GetOpenClient() != nil || (*cmd).GetCloseClient() != nil {
		return r.try(ctx, f)
	}
	tries := 0
	counted := func(ctx context.Context, t Target) error {
		tries++
		return f(ctx, t)
	}
	left := func(err error) bool { return undo != nil && tries > 0 && err != nil && ctx.Err() != nil }
	for again := false; ; again = true {
		lent, err := r.slots.take(ctx)
		if err != nil {
			return err
		}
		if again { // the message may still be in use
			*cmd = proto.CloneOf(*cmd)
		}
		lent.sequence++
		(*cmd).Attempt = &apiv1.Attempt{Client: uint64(lent.client), Sequence: lent.sequence}
		tries = 0
		err = r.AtLeader(ctx, counted)
		if sent := *cmd; left(err) && r.config.Start(func() { undo(sent); r.slots.give(lent, false) }) {
			return err
		}
		forgotten, lost := missing(err, "client"), missing(err, "token") && tries > 1
		r.slots.give(lent, forgotten)
		if ctx.Err() != nil || !(forgotten && tries == 1 || lost) {
			return err
		}
		// A command under an expired id had no effect. A claim that the leader gave back after a broken
		// connection must be made again.
	}
}

// missing reports whether err is NotFound for a field.
func missing(err error, field string) bool {
	return fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == field
}

// retrySince is AtLeader in an outage that began before.
func (r *Router) retrySince(ctx context.Context, since time.Time, f func(context.Context, Target) error) error {
	if ctx.Err() != nil {
		return fault.Wrap("group", ctx.Err())
	}
	for wait := resting; ; wait = min(2*wait, 250*time.Millisecond) {
		another := r.changes()
		t, at, err := r.search(ctx, Patience-time.Since(since))
		called := time.Now()
		if err == nil {
			if err = r.call(ctx, t, at, f); fault.KindOf(err) != fault.Unavailable || err == nil {
				return err
			}
			another = r.replaced(at)
			r.Advance(leader.Refused{Leader: at})
		}
		if time.Since(called) > Patience { // a long wait was progress, not an outage
			since = time.Now()
		}
		left := Patience - time.Since(since)
		if r.config.Life.Err() != nil || left <= 0 || !rest(ctx, min(wait, left), another) {
			return r.explain(ctx, err)
		}
	}
}

// search is leader within a time. A search that waits for answers of other peers would outlast the caller's patience.
func (r *Router) search(ctx context.Context, most time.Duration) (Target, peer.ID, error) {
	bounded, end := context.WithTimeout(ctx, most)
	defer end()
	t, at, err := r.leader(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fault.New("group.leader", fault.Unavailable, "no peer that answers knows a leader")
	}
	return t, at, err
}

// rest pauses for d, or until the news. It returns false if ctx ends.
func rest(ctx context.Context, d time.Duration, news <-chan struct{}) bool {
	if !pause.For(ctx, resting) {
		return false
	}
	timer := time.NewTimer(d - resting)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-news:
	case <-ctx.Done():
		return false
	}
	return true
}

// call calls f with a target. A call to another peer is abandoned when a different leader is confirmed,
// because a cut-off or paused leader does not end its calls.
func (r *Router) call(ctx context.Context, t Target, at peer.ID, f func(context.Context, Target) error) error {
	if at == r.config.Self {
		return f(ctx, t)
	}
	bounded, end := r.during(ctx, at)
	defer end()
	r.abroad.Add(1)
	defer r.abroad.Add(-1)
	err := f(bounded, t)
	switch {
	case err == nil:
	case ctx.Err() == nil && bounded.Err() != nil:
		return fault.New("group.call", fault.Unavailable, "%v leads no more: %w", at, err)
	case ctx.Err() != nil:
		r.Advance(leader.Suspect{Leader: at})
	}
	return err
}

// try is AtLeader for a command without a client id. It stops after a failure with an unknown outcome.
func (r *Router) try(ctx context.Context, f func(context.Context, Target) error) error {
	var open error
	err := r.AtLeader(ctx, func(ctx context.Context, t Target) error {
		err := f(ctx, t)
		if fault.KindOf(err) == fault.Unavailable && err != nil && !r.config.Refused(err) {
			open = err
			return nil
		}
		return err
	})
	if open != nil {
		return open
	}
	return err
}

// explain turns the lack of a leader into an error for the caller.
func (r *Router) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.KindOf(err) != fault.Unavailable {
		return fault.Wrap("group", ctx.Err())
	}
	if r.config.Life.Err() != nil {
		return fault.New("group", fault.Unavailable, "this peer goes over to another group, or shuts down (%s)", fault.Message(err))
	}
	kind := fault.Unavailable
	if ctx.Err() != nil {
		kind = fault.KindOf(fault.Wrap("group", ctx.Err()))
	}
	return fault.New("group", kind, "no_quorum: %s (%s)", r.config.Missing(), fault.Message(err))
}

// leader returns the leader and its peer, or the reason for the lack of one.
func (r *Router) leader(ctx context.Context) (Target, peer.ID, error) {
	m := r.config.Member()
	if m != nil && m.Leads() {
		return m, r.config.Self, nil
	}
	if r.config.Group() == "" {
		return nil, "", fault.New("group.leader", fault.Unavailable, "no group is known yet")
	}
	at, err := r.find(ctx)
	if err != nil {
		return nil, "", err
	}
	if at == r.config.Self { // this peer led, or is about to lead
		if m != nil {
			return m, r.config.Self, nil
		}
		return nil, "", fault.New("group.leader", fault.Unavailable, "this peer led the group and has left it")
	}
	t, err := r.remotes.get(at)
	return t, at, err
}

// AtLeader calls f with the leader until it answers. Unavailable is not an answer: f is called again at the
// current leader, within Patience.
func (r *Router) AtLeader(ctx context.Context, f func(context.Context, Target) error) error {
	return r.retrySince(ctx, time.Now(), f)
}

// AtMember calls f with this peer's member, or with the leader if this peer has none. It is repeated as by AtLeader.
func (r *Router) AtMember(ctx context.Context, f func(context.Context, Target) error) error {
	m := r.config.Member()
	if m == nil || !m.Belongs() {
		return r.AtLeader(ctx, f)
	}
	since := time.Now()
	err := f(ctx, m)
	if fault.KindOf(err) == fault.Unavailable && err != nil && ctx.Err() == nil { // this member may have been removed meanwhile
		if time.Since(since) > Patience { // a watch that went on for long was no outage
			since = time.Now()
		}
		return r.retrySince(ctx, since, f)
	}
	return err
}

// AskLeader returns the group's state from the leader, in one call.
func (r *Router) AskLeader(ctx context.Context) (state coord.GroupState, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	t, at, err := r.leader(ctx)
	if err != nil {
		return state, err
	}
	if state, err = t.Group(ctx); err != nil {
		r.Advance(leader.Refused{Leader: at})
	}
	return state, err
}
