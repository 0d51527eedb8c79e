package coordination

import (
	"context"
	"errors"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// target is where a call is carried out: this member, or another peer.
type target interface {
	coord.Actor
	coord.Reader
}

// Do implements coord.Actor.
func (p *Plane) Do(ctx context.Context, cmd coord.Command) (result coord.Result, h coord.Header, err error) {
	err = p.once(ctx, &cmd, func(ctx context.Context, t target) error {
		result, h, err = t.Do(ctx, cmd)
		return err
	}, nil)
	return result, h, err
}

// Acquire implements coord.Actor.
func (p *Plane) Acquire(ctx context.Context, cmd coord.Command, wait time.Duration) (result coord.Result, h coord.Header, err error) {
	op, ok := cmd.Op.(*coord.Lock)
	if !ok || !op.Wait {
		return result, h, fault.Wrap("group.Acquire", fault.Invalidf("op", nil, "must be a lock to wait for"))
	}
	began := time.Now()
	left := func() time.Duration {
		if wait <= 0 {
			return 0
		}
		return max(wait-time.Since(began), time.Millisecond)
	}
	err = p.once(ctx, &cmd, func(ctx context.Context, t target) error {
		result, h, err = t.Acquire(ctx, cmd, left())
		return err
	}, p.withdraw)
	return result, h, err
}

// withdraw gives back the claim of an Acquire whose caller is gone, wherever it was made: to try the
// same command once more tells its token, and waiting for no time gives it back. What it cannot do
// the lease's end does.
func (p *Plane) withdraw(cmd coord.Command) {
	op := cmd.Op.(*coord.Lock)
	ctx, cancel := context.WithTimeout(p.life, cleaningUp)
	defer cancel()
	_ = p.insist(ctx, func(ctx context.Context, t target) error {
		result, _, err := t.Acquire(ctx, cmd, time.Millisecond)
		if err == nil && result.Lock.Granted {
			_, _, err = t.Do(ctx, coord.Command{Owner: cmd.Owner, Op: &coord.Unlock{Name: op.Name, Lease: op.Lease, Token: result.Lock.Token}})
		}
		return err
	})
}

// KeepAlive implements coord.Actor.
func (p *Plane) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) (renewals []coord.Renewal, h coord.Header, err error) {
	if len(ids) > coord.MaxKeepAlive {
		return nil, h, fault.Wrap("group.KeepAlive", fault.Invalidf("ids", len(ids), "must be at most %d", coord.MaxKeepAlive))
	}
	err = p.insist(ctx, func(ctx context.Context, t target) error {
		renewals, h, err = t.KeepAlive(ctx, owner, ids)
		return err
	})
	return renewals, h, err
}

// once carries a command out at the leader and tries again until the outcome is known, without
// doing it twice: under an identity of this peer if the command comes without one. When the caller
// is gone before that, undo, if there is one, is called with the command as it was sent; the identity
// is not lent to another command before it returns.
func (p *Plane) once(ctx context.Context, cmd *coord.Command, f func(context.Context, target) error, undo func(coord.Command)) error {
	tries := 0
	counted := func(ctx context.Context, t target) error {
		tries++
		return f(ctx, t)
	}
	left := func(err error) bool { return undo != nil && tries > 0 && err != nil && ctx.Err() != nil }
	if cmd.Client != 0 {
		err := p.insist(ctx, counted)
		if left(err) {
			p.later(*cmd, undo)
		}
		return err
	}
	if cmd.Owner != p.name || !named(cmd.Op) {
		return p.try(ctx, f)
	}
	for {
		lent, err := p.slots.take(ctx)
		if err != nil {
			return err
		}
		lent.sequence++
		cmd.Client, cmd.Sequence, tries = lent.client, lent.sequence, 0
		err = p.insist(ctx, counted)
		if sent := *cmd; left(err) && p.life.start(func() { undo(sent); p.slots.give(lent, false) }) {
			return err
		}
		forgotten, lost := missing(err, "client"), missing(err, "token") && tries > 1
		p.slots.give(lent, forgotten)
		if ctx.Err() != nil || !(forgotten && tries == 1 || lost) {
			return err
		}
		// Nothing was done under an identity that had lapsed, and a claim that was given back when the
		// connection to the leader broke is to be made anew.
	}
}

// later undoes a command of a caller that has its own identity, unless too many are being undone.
func (p *Plane) later(cmd coord.Command, undo func(coord.Command)) {
	select {
	case p.undoing <- struct{}{}:
		if !p.life.start(func() { undo(cmd); <-p.undoing }) {
			<-p.undoing
		}
	default:
	}
}

// missing reports whether an error says that the thing in a field is not there.
func missing(err error, field string) bool {
	return fault.KindOf(err) == fault.NotFound && fault.FieldOf(err) == field
}

// named reports whether an operation can carry an identity: those about identities cannot.
func named(op coord.Op) bool {
	switch op.(type) {
	case *coord.ClientOpen, *coord.ClientClose:
		return false
	}
	return true
}

// insist calls f with the leader until it answers. Unavailable is no answer: f is called again,
// wherever the leader is then, until that has gone on for too long.
func (p *Plane) insist(ctx context.Context, f func(context.Context, target) error) error {
	if ctx.Err() != nil {
		return fault.Wrap("group", ctx.Err())
	}
	var since time.Time // of the outage
	for wait := resting; ; wait = min(2*wait, 250*time.Millisecond) {
		began, news := time.Now(), p.seeker.awaited()
		t, at, err := p.leader(ctx)
		if err == nil {
			if err = p.call(ctx, t, at, f); fault.KindOf(err) != fault.Unavailable || err == nil {
				return err
			}
			p.seeker.doubt(p.here.Load())
		}
		if since.IsZero() || time.Since(began) > patience { // what lasted so long was waited for, and not in vain
			since = time.Now()
		}
		if time.Since(since) > patience || !rest(ctx, wait, news) {
			return p.explain(ctx, err)
		}
	}
}

// resting is the least pause between two calls: a leader may be known and yet not answer.
const resting = 20 * time.Millisecond

// rest pauses, and no longer than until there is news. It reports whether ctx is still on.
func rest(ctx context.Context, d time.Duration, news <-chan struct{}) bool {
	if !pause(ctx, resting) {
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

// call calls f with a target. One at another peer is given up when yet another is known to lead: a leader
// that is cut off, or paused, does not say that it leads no more.
func (p *Plane) call(ctx context.Context, t target, at peer.ID, f func(context.Context, target) error) error {
	if at == p.self {
		return f(ctx, t)
	}
	bounded, end := p.seeker.during(ctx, at)
	defer end()
	p.abroad.Add(1)
	defer p.abroad.Add(-1)
	err := f(bounded, t)
	switch {
	case err == nil:
	case ctx.Err() == nil && bounded.Err() != nil:
		return fault.New("group.call", fault.Unavailable, "%v leads no more: %w", at, err)
	case ctx.Err() != nil:
		p.seeker.doubt(p.here.Load())
	}
	return err
}

// attend keeps up with who leads, for the calls that wait for an answer of another peer.
func (p *Plane) attend() {
	asked := time.Now()
	for pause(p.life, tending) {
		if b, ok := p.here.Load().believed(); ok {
			p.seeker.learnOwn(b)
		}
		if p.abroad.Load() > 0 && time.Since(asked) > attending {
			p.seeker.refresh()
			asked = time.Now()
		}
	}
}

// try is insist for a command that could be done twice: after a failure that leaves its fate
// open it ends.
func (p *Plane) try(ctx context.Context, f func(context.Context, target) error) error {
	var open error
	err := p.insist(ctx, func(ctx context.Context, t target) error {
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

// explain makes of a failure for want of a leader what the caller should know.
func (p *Plane) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil && fault.KindOf(err) != fault.Unavailable {
		return fault.Wrap("group", ctx.Err())
	}
	kind := fault.Unavailable
	if ctx.Err() != nil {
		kind = fault.KindOf(fault.Wrap("group", ctx.Err()))
	}
	return fault.New("group", kind, "no_quorum: %s: %w", p.missing(), err)
}

// leader gives the target that leads, and whose it is, or says why there is none.
func (p *Plane) leader(ctx context.Context) (target, peer.ID, error) {
	l := p.here.Load()
	if l != nil && l.leads() {
		return l, p.self, nil
	}
	at, err := p.seeker.leader(ctx, l)
	if err != nil {
		return nil, "", err
	}
	if at == p.self { // it was, or is about to be
		if l != nil {
			return l, p.self, nil
		}
		return nil, "", fault.New("group.leader", fault.Unavailable, "this peer led the group and is none of it now")
	}
	t, err := p.remotes.get(at)
	return t, at, err
}
