package coordination

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// progress is the time between two progress marks of a quiet watch.
const progress = 10 * time.Second

// barrier returns a header after which this member's state contains all answered writes. Errors: Unavailable
// if no leader confirms it in time.
func (l *local) barrier(ctx context.Context) (coord.Header, error) {
	bounded, cancel := context.WithTimeout(ctx, routing.Patience/2) // the rest is for other members: see routing.Router.AtMember
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
	if answer.AboutLeases(q) && !l.Leads() {
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
