package coordination

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/pause"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// router carries calls to the current leader until they are answered.
type router struct {
	plane   *Plane
	remotes *remotes
	slots   *slots
	abroad  atomic.Int64 // calls at another peer
	watches atomic.Int64 // those of them that are established watches
}

// waiting describes the calls at another peer.
func (r *router) waiting() leader.Tick {
	watches := r.watches.Load()
	return leader.Tick{Waiting: r.abroad.Load() > watches, Watching: watches > 0}
}

func newRouter(p *Plane) *router {
	r := &router{plane: p}
	r.remotes = &remotes{dial: func(to peer.ID) (Remote, error) { return p.config.Remote(to, p.ID()) }, open: map[peer.ID]Remote{}}
	r.slots = newSlots(maxSlots, r.openClient)
	return r
}

// openClient makes a client id for commands of this peer.
func (r *router) openClient(ctx context.Context) (coord.ClientID, error) {
	var id coord.ClientID
	err := r.retry(ctx, func(ctx context.Context, t coord.Service) error {
		result, err := t.Execute(ctx, coord.CommandOf(r.plane.name, &apiv1.OpenClientRequest{}))
		id = coord.ClientID(result.GetOpenClient().GetClient())
		return err
	})
	return id, err
}

// withdraw gives back the claim of a lock under an id of this peer, whose caller is gone. The repeated command
// returns the claim's token, and a wait of little time gives the claim back. The end of the lease covers a failure.
func (r *router) withdraw(cmd *coordv1.Command) {
	lock := cmd.GetLock()
	ctx, cancel := context.WithTimeout(r.plane.life, cleaningUp)
	defer cancel()
	_ = r.retry(ctx, func(ctx context.Context, t coord.Service) error {
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
func (r *router) once(ctx context.Context, cmd **coordv1.Command, f func(context.Context, coord.Service) error, undo func(*coordv1.Command)) error {
	if (*cmd).GetAttempt().GetClient() != 0 {
		return r.retry(ctx, f)
	}
	if (*cmd).GetOpenClient() != nil || (*cmd).GetCloseClient() != nil {
		return r.try(ctx, f)
	}
	tries := 0
	counted := func(ctx context.Context, t coord.Service) error {
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
		err = r.retry(ctx, counted)
		if sent := *cmd; left(err) && r.plane.life.start(func() { undo(sent); r.slots.give(lent, false) }) {
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

// retry calls f with the leader until it answers. Unavailable is not an answer: f is called again at the
// current leader, within a bound of time.
func (r *router) retry(ctx context.Context, f func(context.Context, coord.Service) error) error {
	return r.retrySince(ctx, time.Now(), f)
}

// retrySince is retry in an outage that began before.
func (r *router) retrySince(ctx context.Context, since time.Time, f func(context.Context, coord.Service) error) error {
	if ctx.Err() != nil {
		return fault.Wrap("group", ctx.Err())
	}
	for wait := resting; ; wait = min(2*wait, 250*time.Millisecond) {
		another := r.plane.finder.changes()
		t, at, err := r.search(ctx, patience-time.Since(since))
		called := time.Now()
		if err == nil {
			if err = r.call(ctx, t, at, f); fault.KindOf(err) != fault.Unavailable || err == nil {
				return err
			}
			another = r.plane.finder.replaced(at)
			r.plane.finder.advance(leader.Refused{Leader: at})
		}
		if time.Since(called) > patience { // a long wait was progress, not an outage
			since = time.Now()
		}
		left := patience - time.Since(since)
		if r.plane.life.Err() != nil || left <= 0 || !rest(ctx, min(wait, left), another) {
			return r.explain(ctx, err)
		}
	}
}

// search is leader within a time. A search that waits for answers of other peers would outlast the caller's patience.
func (r *router) search(ctx context.Context, most time.Duration) (coord.Service, peer.ID, error) {
	bounded, end := context.WithTimeout(ctx, most)
	defer end()
	t, at, err := r.leader(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fault.New("group.leader", fault.Unavailable, "no peer that answers knows a leader")
	}
	return t, at, err
}

// resting is the minimum pause between two calls: a known leader may fail to answer.
const resting = 20 * time.Millisecond

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
func (r *router) call(ctx context.Context, t coord.Service, at peer.ID, f func(context.Context, coord.Service) error) error {
	if at == r.plane.self {
		return f(ctx, t)
	}
	bounded, end := r.plane.finder.during(ctx, at)
	defer end()
	r.abroad.Add(1)
	defer r.abroad.Add(-1)
	err := f(bounded, t)
	switch {
	case err == nil:
	case ctx.Err() == nil && bounded.Err() != nil:
		return fault.New("group.call", fault.Unavailable, "%v leads no more: %w", at, err)
	case ctx.Err() != nil:
		r.plane.finder.advance(leader.Suspect{Leader: at})
	}
	return err
}

// try is retry for a command without a client id. It stops after a failure with an unknown outcome.
func (r *router) try(ctx context.Context, f func(context.Context, coord.Service) error) error {
	var open error
	err := r.retry(ctx, func(ctx context.Context, t coord.Service) error {
		err := f(ctx, t)
		var n *replica.NotLeader
		if fault.KindOf(err) == fault.Unavailable && err != nil && !(errors.As(err, &n) && !n.Maybe) {
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
func (r *router) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.KindOf(err) != fault.Unavailable {
		return fault.Wrap("group", ctx.Err())
	}
	if r.plane.life.Err() != nil {
		return fault.New("group", fault.Unavailable, "this peer goes over to another group, or shuts down (%s)", fault.Message(err))
	}
	kind := fault.Unavailable
	if ctx.Err() != nil {
		kind = fault.KindOf(fault.Wrap("group", ctx.Err()))
	}
	return fault.New("group", kind, "no_quorum: %s (%s)", r.plane.missing(), fault.Message(err))
}

// leader returns the coord.Service at the leader and its peer, or the reason for the lack of one.
func (r *router) leader(ctx context.Context) (coord.Service, peer.ID, error) {
	l := r.plane.here.Load()
	if l != nil && l.leads() {
		return l, r.plane.self, nil
	}
	if r.plane.ID() == "" {
		return nil, "", fault.New("group.leader", fault.Unavailable, "no group is known yet")
	}
	at, err := r.plane.finder.find(ctx)
	if err != nil {
		return nil, "", err
	}
	if at == r.plane.self { // this peer led, or is about to lead
		if l != nil {
			return l, r.plane.self, nil
		}
		return nil, "", fault.New("group.leader", fault.Unavailable, "this peer led the group and has left it")
	}
	t, err := r.remotes.get(at)
	return t, at, err
}

// atMember calls f with this member, or with the leader if this peer has no member.
func (r *router) atMember(ctx context.Context, f func(context.Context, coord.Service) error) error {
	l := r.plane.here.Load()
	if l == nil || !l.belongs() { // a removed member may wait for its leader forever
		return r.retry(ctx, f)
	}
	since := time.Now()
	err := f(ctx, l)
	if fault.KindOf(err) == fault.Unavailable && err != nil && ctx.Err() == nil { // this member may have been removed meanwhile
		if time.Since(since) > patience { // a watch that went on for long was no outage
			since = time.Now()
		}
		return r.retrySince(ctx, since, f)
	}
	return err
}

// watch is a watch at another peer, from its first answer on. It is for one goroutine.
type watch struct {
	router *router
	here   bool // it is at this peer
	open   bool
}

func (r *router) watch(at coord.Service) *watch {
	_, here := at.(*local)
	return &watch{router: r, here: here}
}

func (w *watch) begin() {
	if !w.here && !w.open {
		w.open = true
		w.router.watches.Add(1)
	}
}

func (w *watch) end() {
	if w.open {
		w.router.watches.Add(-1)
	}
}
