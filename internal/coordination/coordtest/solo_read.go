package coordtest

import (
	"context"
	"errors"
	"io"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

const listed = 1000 // default limit

// Leases implements coord.Reader.
func (s *Solo) Leases(ctx context.Context, q coord.LeaseQuery) ([]coord.LeaseState, coord.Header, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	states, err := s.leaseStates(ctx, q)
	if err != nil {
		return nil, coord.Header{}, fault.Wrap("coordtest.Leases", err)
	}
	return states, s.header(), nil
}

func (s *Solo) leaseStates(ctx context.Context, q coord.LeaseQuery) ([]coord.LeaseState, error) {
	if err := s.serves(ctx); err != nil {
		return nil, err
	}
	if q.ID != 0 {
		l, ok := s.machine.Lease(q.ID)
		if !ok {
			return nil, gone("lease", "does not exist")
		}
		return []coord.LeaseState{{Lease: l, Tag: l.ID.Tag(), Remaining: s.leases.remaining(s.Now(), l.ID), Keys: s.machine.LeaseKeys(l.ID)}}, nil
	}
	var states []coord.LeaseState
	for _, l := range q.List(s.machine.Leases()) {
		states = append(states, coord.LeaseState{Lease: l, Tag: l.ID.Tag(), Remaining: s.leases.remaining(s.Now(), l.ID)})
	}
	return states, nil
}

// Locks implements coord.Reader.
func (s *Solo) Locks(ctx context.Context, q coord.LockQuery) ([]coord.LockState, coord.Header, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	states, err := s.lockStates(ctx, q)
	if err != nil {
		return nil, coord.Header{}, fault.Wrap("coordtest.Locks", err)
	}
	return states, s.header(), nil
}

func (s *Solo) lockStates(ctx context.Context, q coord.LockQuery) ([]coord.LockState, error) {
	if err := s.serves(ctx); err != nil {
		return nil, err
	}
	q.Limit = limit(q.Limit)
	var states []coord.LockState
	for _, info := range machine.ListLocks(s.machine, q) {
		states = append(states, s.lockState(info))
	}
	if q.Name != "" && len(states) == 0 {
		return nil, gone("name", "does not exist")
	}
	return states, nil
}

func (s *Solo) lockState(info machine.LockInfo) coord.LockState {
	return coord.LockState{
		Name: info.Name, Holding: s.claimStates(info.Holding, info.Applications), Waiting: s.claimStates(info.Waiting, info.Applications),
		LeftOut: info.LeftOut,
	}
}

func (s *Solo) claimStates(claims []*coord.KeyValue, applications map[coord.LeaseID]string) []coord.ClaimState {
	states := make([]coord.ClaimState, len(claims))
	for i, kv := range claims {
		claim, _ := kv.Claim()
		states[i] = coord.ClaimState{
			Claim: claim, Key: kv.Key, Lease: kv.Lease, Token: kv.Token(), ModRevision: kv.ModRevision, Version: kv.Version,
			Application: applications[kv.Lease], Age: s.Now().Sub(s.made[kv.Token()]),
		}
	}
	return states
}

// Range implements coord.Reader.
func (s *Solo) Range(ctx context.Context, q coord.Query, c coord.Consistency) (coord.Page, coord.Header, error) {
	const op = "coordtest.Range"
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.serves(ctx); err != nil && (c != coord.Local || ctx.Err() != nil) {
		return coord.Page{}, coord.Header{}, fault.Wrap(op, err)
	}
	page, err := s.machine.Range(q)
	if err != nil {
		return coord.Page{}, coord.Header{}, fault.Wrap(op, err)
	}
	return page, s.header(), nil
}

// Watch implements coord.Reader.
func (s *Solo) Watch(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	const op = "coordtest.Watch"
	header, err := s.begin(ctx, &w)
	if err != nil {
		return fault.Wrap(op, err)
	}
	if err := send(coord.Batch{Next: w.From}, header); err != nil {
		return err
	}
	for {
		batch, header, err := s.next(ctx, &w)
		if err != nil {
			return fault.Wrap(op, err)
		}
		if err := send(batch, header); err != nil {
			return err
		}
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

// next waits for the next batch or the time of a mark.
func (s *Solo) next(ctx context.Context, w *coord.Watch) (coord.Batch, coord.Header, error) {
	idle := make(chan struct{})
	defer s.After(Progress, func() { close(idle) })()
	for marked := false; ; {
		batch, header, changed, err := s.look(*w)
		if err != nil {
			return batch, header, err
		}
		w.From = batch.Next
		if marked || len(batch.Events) > 0 {
			return batch, header, nil
		}
		if batch.More {
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

func limit(asked int) int {
	if asked <= 0 {
		return listed
	}
	return asked
}
