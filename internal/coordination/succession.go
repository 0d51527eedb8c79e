package coordination

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// succession makes the running member of this peer the only voter of the group's next incarnation, after the permanent loss of
// the majority. It is Recover without a stop of the peer, and it looks first whether the majority is lost.
type succession struct {
	plane *Plane
	local *local
	now   replica.Status // of this peer's member
	heard []survivor
	done  chan error // receives the result once
}

// survivor is another member that answers.
type survivor struct {
	replica.MemberStatus
	term, index uint64 // end of its log
}

// promoteAlone carries out an order to promote a member of a group without a leader. cause says why no leader took it.
func (s *Seat) promoteAlone(ctx context.Context, p *Plane, c coord.MemberChange, cause error) (done coord.MemberOutcome, err error) {
	const op = "coordination.ChangeMembers"
	if c.Peer != p.name {
		return done, fault.New(op, fault.Unavailable,
			"%s; if the voters are gone for good, give this order at the peer that is to go on: without a leader a member only promotes itself", fault.Message(cause))
	}
	plan, err := planSuccession(ctx, p)
	if err != nil {
		return done, fault.Wrap(op, err)
	}
	done = plan.outcome()
	switch {
	case c.DryRun:
		return done, nil
	case !c.Force:
		return done, fault.Refused(fault.Conflict, "force", "no leader answers, and to go on would %s; a dry run says all that happens", plan.loss())
	}
	err = s.order(ctx, plan)
	audit(p, c, done, err)
	done.Done = err == nil
	return done, fault.Wrap(op, err)
}

// order has run carry out a plan. A plan that run has taken is carried out, even if the caller leaves.
func (s *Seat) order(ctx context.Context, plan *succession) error {
	select {
	case s.alone <- plan:
		return <-plan.done
	case <-ctx.Done():
		return ctx.Err()
	case <-s.life.Done():
		return fault.New("", fault.Unavailable, "this peer is shutting down")
	}
}

// succeed ends the plane, begins the next incarnation in its directory, and starts a plane again. A crash on the way leaves the
// former member, or the new one.
func (s *Seat) succeed(plan *succession) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.plane.Load()
	switch {
	case s.down:
		return fault.New("", fault.Unavailable, "this peer is shutting down")
	case old != plan.plane || old.routing.Leaderless() == 0:
		return fault.New("", fault.Conflict, "the group changed meanwhile: look at its status and order again")
	}
	if err := old.Close(); err != nil {
		s.config.Logger.Warn("closing the old group membership failed", "group", old.ID(), "error", err)
	}
	began, failed := Recover(RecoverConfig{Key: s.config.Self.Key, Dir: s.config.Dir, FS: s.config.FS, Commit: true})
	if err := s.reopen(old); err != nil {
		s.config.Fatal(fault.Wrap("coordination.succeed", err))
		return err
	}
	if failed == nil {
		s.config.Logger.Warn("this peer continues the coordination group alone, by order", "incarnation", began.Incarnation, "revision", began.Revision)
	}
	return failed
}

// planSuccession looks whether the majority is lost, and whether this peer is the one to go on. Errors: Conflict.
func planSuccession(ctx context.Context, p *Plane) (*succession, error) {
	l := p.here.Load()
	if l == nil || !slices.ContainsFunc(l.member.Status().Members, func(m replica.MemberStatus) bool { return m.ID == p.disk.Member() }) {
		return nil, fault.Refused(fault.Conflict, "peer_id", "is no member of the group and has no state of it: promote a member, or restore a backup")
	}
	if l.summary.of(l).Over.Over() {
		return nil, fault.Refused(fault.Conflict, "action", "the group gave itself up for another one: start its voters, or use group recover")
	}
	if since := p.routing.Leaderless(); since < orphaned {
		return nil, fault.Refused(fault.Conflict, "action", "the group has had no leader for %v only, and an election or a restart can bring one: order again in %v",
			since.Round(time.Second), (orphaned - since).Round(time.Second))
	}
	plan := &succession{plane: p, local: l, now: l.member.Status(), done: make(chan error, 1)}
	plan.heard = p.inquiry.survivors(ctx, plan.now)
	if life, _ := p.view.incarnation(); life.storageID() != l.incarnation.storageID() {
		return nil, fault.Refused(fault.Conflict, "action", "the group goes on without this peer, in incarnation %d", life.recovery.Incarnation)
	}
	return plan, plan.check()
}

// survivors asks all other members for the end of their logs. It returns the members of this incarnation that answer.
func (q *inquiry) survivors(ctx context.Context, s replica.Status) (heard []survivor) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var (
		mu   sync.Mutex
		work sync.WaitGroup
	)
	for _, m := range s.Members {
		id, err := peer.Decode(m.Peer)
		if err != nil || m.ID == s.Header.Member {
			continue
		}
		work.Go(func() {
			resp, ok := q.question(ctx, id, 0)
			if !ok {
				return
			}
			if _, same := q.learn(ctx, id, resp.GetInfo()); same && resp.GetLastIndex() > 0 {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, survivor{m, resp.GetLastTerm(), resp.GetLastIndex()})
			}
		})
	}
	work.Wait()
	return heard
}

// check refuses if a majority answers or another survivor has a longer log.
func (s *succession) check() error {
	switch t := s.tolerance(); {
	case s.plane.routing.Known().Peer != "":
		return fault.Refused(fault.Conflict, "action", "the group has a leader again: order again")
	case t.Quorate():
		return fault.Refused(fault.Conflict, "action", "%d of %d voters answer, a majority: wait until they elect a leader", t.Heard, t.Voters)
	}
	for _, m := range s.heard {
		if m.term > s.now.LastTerm || m.term == s.now.LastTerm && m.index > s.now.LastIndex {
			return fault.Refused(fault.Conflict, "peer_id", "%s answers and has more of the log: it ends at term %d, index %d, here at term %d, index %d. Promote that peer",
				s.plane.inquiry.calls(m.Peer), m.term, m.index, s.now.LastTerm, s.now.LastIndex)
		}
	}
	return nil
}

// tolerance counts the voters that answer, this peer included.
func (s *succession) tolerance() (t membership.Tolerance) {
	for _, m := range s.now.Members {
		if m.Voter {
			t.Voters++
			if m.ID == s.now.Header.Member || s.answers(m.ID) {
				t.Heard++
			}
		}
	}
	return t
}

func (s *succession) answers(id uint64) bool {
	return slices.ContainsFunc(s.heard, func(m survivor) bool { return m.ID == id })
}

// names lists the other members that pass a test.
func (s *succession) names(is func(replica.MemberStatus) bool) string {
	var all []string
	for _, m := range s.now.Members {
		if m.ID != s.now.Header.Member && is(m) {
			all = append(all, s.plane.inquiry.calls(m.Peer))
		}
	}
	return strings.Join(all, ", ")
}

// loss says what nobody can bring back.
func (s *succession) loss() string {
	gone := s.names(func(m replica.MemberStatus) bool { return m.Voter && !s.answers(m.ID) })
	return fmt.Sprintf("lose every write that only %s had, answered ones too; no leader was heard for %v", gone, s.plane.routing.Leaderless().Round(time.Second))
}

// outcome describes the plan.
func (s *succession) outcome() coord.MemberOutcome {
	var kept string
	s.local.member.View(func(m *machine.Machine) {
		kept = fmt.Sprintf("keep %d leases with their full time, %d locks and %d keys, as of revision %d; claims that wait end, and watches begin anew",
			m.LeaseCount(), m.LockCount(), m.Len(), m.Revision())
	})
	steps := []string{
		s.loss(), kept,
		fmt.Sprintf("begin the next incarnation of the group from this peer's log, which ends at term %d, index %d, with revisions and tokens above all that were given out",
			s.now.LastTerm, s.now.LastIndex),
		"make this peer the only voter",
	}
	if left := s.names(func(m replica.MemberStatus) bool { return s.answers(m.ID) }); left != "" {
		steps = append(steps, "leave "+left+" behind, which answer")
	}
	steps = append(steps, "refuse every former member until its directory coordination is removed")
	return coord.MemberOutcome{Steps: steps, Before: s.tolerance().String(), After: membership.Tolerance{Voters: 1, Heard: 1}.String()}
}
