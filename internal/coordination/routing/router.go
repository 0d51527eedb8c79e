package routing

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Patience is the time without an answer of a leader after which a call fails: callers learn it within 5 s.
const Patience = 4500 * time.Millisecond

const (
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
	Listed() bool  // it has a part in the group, as far as it knows: what it has may be old, without a leader too
	Belief() leader.Member
	Changed() <-chan struct{} // closed at the next change of Belief
}

// Config holds what a Router needs from its peer. Start and Member run under a lock of the Router: they, Belief and Changed
// must not call it.
type Config struct {
	Self  peer.ID
	Life  context.Context   // ends when this peer leaves the group or stops
	Start func(func()) bool // runs work until the end of Life, in a goroutine that the owner waits for; false after it

	Member    func() Member                                                     // nil without one
	Peers     func() []peer.ID                                                  // that may know the leader
	Ask       func(context.Context, peer.ID) (_ leader.Leadership, counts bool) // one of them
	Dial      func(peer.ID) (Remote, error)                                     // connects to another peer's member, perhaps lazily
	Group     func() string                                                     // its id; empty while unknown
	Missing   func() string                                                     // explains the lack of a leader to an operator
	Refused   func(error) bool                                                  // whether a member refused a command, which then had no effect
	Exhausted func(owner string, err error)                                     // hears of commands that found no room in a pool of the group; nil: nobody
	Left      func() (departed bool, floor int64)                               // whether this peer left the group, and the last revision of a group that it left
	Jitter    func() float64                                                    // draws from [0, 1)
}

// Router carries calls to the current leader until they are answered. It is safe for concurrent use.
type Router struct {
	*finder
	remotes *remotes
	pool    *attempt.Pool
	rules   attempt.Rules
	abroad  atomic.Int64 // calls at another peer
	watches atomic.Int64 // those of them that are established watches
}

// New returns a Router. Run must run until the end of the life, and Close comes after it.
func New(c Config) *Router {
	r := &Router{pool: attempt.NewPool(c.Self.String(), share.Fits), remotes: &remotes{dial: c.Dial, open: map[peer.ID]Remote{}}}
	r.finder = newFinder(c, r.waiting)
	r.rules = attempt.Rules{First: resting, Last: 250 * time.Millisecond, Patience: Patience, Now: time.Now, Rest: r.rest}
	return r
}

// Close ends the connections to other members.
func (r *Router) Close() error { return r.remotes.close() }

// waiting describes the calls at another peer.
func (r *Router) waiting() leader.Tick {
	watches := r.watches.Load()
	return leader.Tick{Waiting: r.abroad.Load() > watches, Watching: watches > 0}
}

// search returns the leader and its peer. It looks for another peer within a time: answers of peers would outlast the
// caller's patience.
func (r *Router) search(ctx context.Context, most time.Duration) (Target, peer.ID, error) {
	if m := r.config.Member(); m != nil && m.Leads() {
		return m, r.config.Self, nil
	}
	bounded, end := context.WithTimeout(ctx, most)
	defer end()
	t, at, err := r.leader(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fault.New("routing.leader", fault.Unavailable, "no peer that answers knows a leader")
	}
	return t, at, err
}

// rest pauses for d, or until the news. It returns false if ctx or the life of the peer in the group ends.
func (r *Router) rest(ctx context.Context, d time.Duration, news <-chan struct{}) bool {
	if r.config.Life.Err() != nil || !pause.For(ctx, resting) {
		return false
	}
	select {
	case <-time.After(d - resting):
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
		return fault.New("routing.call", fault.Unavailable, "%v leads no more: %w", at, err)
	case ctx.Err() != nil:
		r.Advance(leader.Suspect{Leader: at})
	}
	return err
}

// explain turns the lack of a leader into an error for the caller.
func (r *Router) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.KindOf(err) != fault.Unavailable {
		return fault.Wrap("routing", ctx.Err())
	}
	if r.config.Life.Err() != nil {
		return fault.New("routing", fault.Unavailable, "this peer goes over to another group, or shuts down (%s)", fault.Message(err))
	}
	kind := fault.Unavailable
	if ctx.Err() != nil {
		kind = fault.KindOf(fault.Wrap("routing", ctx.Err()))
	}
	return fault.New("routing", kind, "no_quorum: %s (%s)", r.config.Missing(), fault.Message(err))
}

// leader returns the leader that other members know, or the reason for the lack of one.
func (r *Router) leader(ctx context.Context) (Target, peer.ID, error) {
	if r.config.Group() == "" {
		return nil, "", fault.New("routing.leader", fault.Unavailable, "no group is known yet")
	}
	at, err := r.find(ctx)
	if err != nil {
		return nil, "", err
	}
	if at == r.config.Self { // this peer led, or is about to lead
		if m := r.config.Member(); m != nil {
			return m, r.config.Self, nil
		}
		return nil, "", fault.New("routing.leader", fault.Unavailable, "this peer led the group and has left it")
	}
	t, err := r.remotes.get(at)
	return t, at, err
}

// AtLeader calls f with the leader until it answers. Unavailable is not an answer: f is called again at the
// current leader, within Patience.
func (r *Router) AtLeader(ctx context.Context, f func(context.Context, Target) error) error {
	return r.repeat(ctx, nil, f)
}

// AtMember calls f with this peer's member, or with the leader if this peer has none. It repeats f as AtLeader does, because
// this member may have been removed meanwhile.
func (r *Router) AtMember(ctx context.Context, f func(context.Context, Target) error) error {
	if m := r.config.Member(); m != nil && m.Belongs() {
		return r.repeat(ctx, m, f)
	}
	return r.repeat(ctx, nil, f)
}

// repeat calls f with the first target, unless nil, and then with the leader until it answers.
func (r *Router) repeat(ctx context.Context, first Target, f func(context.Context, Target) error) error {
	if ctx.Err() != nil {
		return fault.Wrap("routing", ctx.Err())
	}
	for run := r.rules.Begin(); ; {
		if first != nil {
			began := time.Now()
			if err := f(ctx, first); err == nil || fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil {
				return err
			}
			first = nil
			lasted(&run, began)
		}
		news := r.changes()
		t, at, err := r.search(ctx, run.Left())
		if err == nil {
			began := time.Now()
			if err = r.call(ctx, t, at, f); err == nil || fault.KindOf(err) != fault.Unavailable {
				return err
			}
			lasted(&run, began)
			news = r.replaced(at)
			r.Advance(leader.Refused{Leader: at})
		}
		if !run.Again(ctx, err, news) {
			return r.explain(ctx, err)
		}
	}
}

// lasted notes a failed call: a long one was progress, not an outage.
func lasted(run *attempt.Run, began time.Time) {
	if time.Since(began) > Patience {
		run.Progress()
	}
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
