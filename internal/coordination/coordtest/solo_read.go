package coordtest

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/answer"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Read implements coord.Service.
func (s *Solo) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	const op = "coordtest.Read"
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ctx); err != nil && (!answer.IsLocal(q) || ctx.Err() != nil) {
		return nil, fault.Wrap(op, err)
	}
	state := answer.State{
		View:      func(read func(*machine.Machine)) coord.Header { read(s.machine); return s.header() },
		Keys:      func() (*machine.Keyspace, coord.Header) { return s.machine.View(), s.header() },
		Remaining: func(id coord.LeaseID) int64 { return s.leases.remaining(s.Now(), id) },
		Age:       func(kv *coord.KeyValue) time.Duration { return s.Now().Sub(s.made[kv.Key]) },
	}
	a, err := state.Read(q)
	return a, fault.Wrap(op, err)
}

// Watch implements coord.Service.
func (s *Solo) Watch(ctx context.Context, r *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	const op = "coordtest.Watch"
	w := answer.Watch(r)
	header, err := s.begin(ctx, &w)
	if err != nil {
		return fault.Wrap(op, err)
	}
	mark := r.GetMark()
	for batch := (coord.Batch{Next: w.From}); ; {
		if err := send(answer.Events(batch, header)); err != nil {
			return err
		}
		if batch, header, err = s.next(ctx, &w, mark); err != nil {
			return fault.Wrap(op, err)
		}
		mark = mark && len(batch.Events) > 0
	}
}

// begin finds where a watch begins.
func (s *Solo) begin(ctx context.Context, w *coord.Watch) (coord.Header, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ctx); err != nil {
		return coord.Header{}, err
	}
	if w.From == 0 {
		w.From = s.machine.Revision() + 1
	}
	_, err := s.machine.Events(*w)
	return s.header(), err
}

// next waits for the next batch or the time of a mark: now, or after some silence.
func (s *Solo) next(ctx context.Context, w *coord.Watch, now bool) (coord.Batch, coord.Header, error) {
	idle := make(chan struct{})
	defer s.After(Progress, func() { close(idle) })()
	for marked := now; ; {
		batch, header, changed, err := s.look(*w)
		if err != nil {
			return batch, header, err
		}
		w.From = batch.Next
		switch {
		case len(batch.Events) > 0 || marked && !batch.More:
			return batch, header, nil
		case batch.More:
			continue
		}
		select {
		case <-changed:
		case <-idle:
			marked = true
		case <-ctx.Done():
			return batch, header, ctx.Err()
		}
	}
}

func (s *Solo) look(w coord.Watch) (coord.Batch, coord.Header, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch, err := s.machine.Events(w)
	return batch, s.header(), s.changed, err
}

// Group implements coord.Admin.
func (s *Solo) Group(ctx context.Context) (coord.GroupState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return coord.GroupState{}, fault.Wrap("coordtest.Group", err)
	}
	state := coord.GroupState{
		ID: GroupID, Phase: "member", Missing: s.missing, Term: term, Leader: Peer,
		Voters:   []coord.Member{{Peer: Peer, ID: member, Applied: appliedAt(s.machine), Active: true}},
		Revision: s.machine.Revision(), Incarnation: s.machine.Incarnation(),
		Leases: len(s.machine.Leases()), Locks: len(s.machine.LockNames("")), Keys: s.machine.Len(),
	}
	if s.missing != "" {
		state.Leader = ""
	}
	return state, nil
}

func appliedAt(m *machine.Machine) uint64 {
	index, _ := m.Index()
	return index
}

// ChangeMembers implements coord.Admin. It gives the refusals of a group with one member.
func (s *Solo) ChangeMembers(ctx context.Context, c coord.MemberChange) (done coord.MemberOutcome, err error) {
	const op = "coordtest.ChangeMembers"
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ctx); err != nil {
		return done, fault.Wrap(op, err)
	}
	alone := membership.State{Leader: member, Members: []membership.Member{{Peer: membership.Peer{ID: member, Name: Peer}, Voter: true, CaughtUp: true}}}
	plan, err := membership.DefaultConfig().Plan(alone, c)
	return coord.MemberOutcome{Before: plan.Before.String(), After: plan.After.String()}, fault.Wrap(op, err)
}

// Backup implements coord.Admin: the bare state.
func (s *Solo) Backup(ctx context.Context, w io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ctx); err != nil {
		return fault.Wrap("coordtest.Backup", err)
	}
	_, err := s.machine.Image().WriteTo(w)
	return fault.As("coordtest.Backup", fault.Canceled, err)
}

func gone(field, why string) error {
	return &fault.Error{Kind: fault.NotFound, Field: field, Err: errors.New(why)}
}
