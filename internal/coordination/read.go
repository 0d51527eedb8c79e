package coordination

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// progress is the time between two progress marks of a quiet watch.
const progress = 10 * time.Second

// Read implements coord.Service. Only the leader knows the remaining times of leases.
func (p *Plane) Read(ctx context.Context, q *coordv1.Question) (a *coordv1.Answer, err error) {
	if l := p.here.Load(); l != nil && answer.IsLocal(q) && l.belongs() {
		return l.Read(ctx, q)
	}
	anywhere := p.router.atMember
	if answer.AboutLeases(q) {
		anywhere = p.router.retry
	}
	err = anywhere(ctx, func(ctx context.Context, t coord.Service) error {
		a, err = t.Read(ctx, q)
		return err
	})
	return a, err
}

// Watch implements coord.Service. It resumes at another member after the loss of the serving one.
func (p *Plane) Watch(ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	const op = "coordination.Watch"
	_, floor := p.founder.Left()
	if w.GetStartRevision() > 0 && w.GetStartRevision() <= floor { // perhaps of a group that this peer left
		return anew(op, floor)
	}
	var refused error // the error of send, which ends the watch
	begun := false
	w = proto.CloneOf(w) // the start moves on
	err := p.router.atMember(ctx, func(ctx context.Context, t coord.Service) error {
		resuming := begun
		established := p.router.watch(t)
		defer established.end()
		err := t.Watch(ctx, w, func(b *apiv1.WatchKeysResponse) error {
			established.begin()
			if resuming && len(b.GetEvents()) == 0 {
				resuming = false
				return nil // the client knows the start already
			}
			begun, w.StartRevision = true, b.GetNextRevision()
			refused = send(b)
			return refused
		})
		if refused != nil { // even an Unavailable of send
			return fault.As(op, fault.Canceled, refused)
		}
		return err
	})
	if err != nil && refused == nil && ctx.Err() == nil && p.departed.Load() {
		return anew(op, w.GetStartRevision())
	}
	return err
}

// anew ends a watch that must not go on: its revisions are of another group's history.
func anew(op string, at int64) error {
	return fault.As(op, fault.NotFound, &coord.Compacted{Revision: coord.Revision(at), Current: coord.Revision(at)})
}

// barrier returns a header after which this member's state contains all answered writes. Errors: Unavailable
// if no leader confirms it in time.
func (l *local) barrier(ctx context.Context) (coord.Header, error) {
	bounded, cancel := context.WithTimeout(ctx, patience/2) // the rest is for other members: see router.atMember
	defer cancel()
	h, err := l.member.Barrier(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return h, fault.New("group.barrier", fault.Unavailable, "no_quorum: %s", l.plane.missing())
	}
	return h, err
}

// Read implements coord.Service.
func (l *local) Read(ctx context.Context, q *coordv1.Question) (_ *coordv1.Answer, err error) {
	state := answer.State{
		View: func(read func(*machine.Machine)) { l.member.View(read) },
		Keys: func() *machine.Keyspace { keys, _ := l.member.Keyspace(); return keys },
		Remaining: func(id coord.LeaseID) int64 {
			left, _ := l.member.Remaining(id)
			return max(left, 0).Milliseconds()
		},
		Age: func(kv *coord.KeyValue) time.Duration { return l.claimTimes.age(kv.Key) },
	}
	if answer.IsLocal(q) {
		state.Header = l.header(0)
	} else if state.Header, err = l.barrier(ctx); err != nil {
		return nil, err
	}
	if answer.AboutLeases(q) && !l.leads() {
		return nil, fault.New("group.Read", fault.Unavailable, "another member leads")
	}
	a, err := state.Read(q)
	return a, fault.Wrap("group.Read", err)
}

func absent(field, what string) error {
	return &fault.Error{Op: "group", Kind: fault.NotFound, Field: field, Err: fault.New("", fault.NotFound, "%s", what).Err}
}

// Watch implements coord.Service.
func (l *local) Watch(ctx context.Context, r *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	h, err := l.barrier(ctx)
	if err != nil {
		return err
	}
	w := answer.Watch(r)
	if w.From == 0 {
		w.From = h.Revision + 1
	}
	l.member.View(func(m *machine.Machine) {
		first := w
		first.Limit = 1
		_, err = m.Events(first) // report an impossible start first
	})
	if err != nil {
		return err
	}
	for b := (coord.Batch{Next: w.From}); ; {
		if err := send(answer.Events(b, h)); err != nil {
			return err
		}
		if b, err = l.events(ctx, w); err != nil {
			return err
		}
		w.From = b.Next
		if len(b.Events) == 0 { // a progress mark: only members of the group may send it
			h, err = l.barrier(ctx)
		} else {
			h = l.header(b.Next - 1)
		}
		if err != nil {
			return err
		}
	}
}

// events waits for the next events of a watch, or for the time of a progress mark.
func (l *local) events(ctx context.Context, w coord.Watch) (b coord.Batch, err error) {
	bounded, cancel := context.WithTimeout(ctx, progress)
	defer cancel()
	for {
		l.member.View(func(m *machine.Machine) { b, err = m.Events(w) })
		if err != nil || len(b.Events) > 0 {
			return b, err
		}
		if w.From = b.Next; b.More {
			continue
		}
		if _, err := l.member.After(bounded, w.From-1); err != nil {
			if ctx.Err() == nil && bounded.Err() != nil {
				return b, nil
			}
			return b, err
		}
	}
}

// header returns this member's header, at revision or later.
func (l *local) header(revision coord.Revision) coord.Header {
	h := l.member.Status().Header
	h.Revision = max(l.member.Revision(), revision)
	return h
}
