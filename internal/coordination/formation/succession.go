package formation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/view"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// SuccessionConfig configures a Succession. All fields are required, but for Member.
type SuccessionConfig struct {
	Member      *member.Member // this peer's; nil without one
	Incarnation view.Incarnation
	View        *view.View
	// Learn applies a peer's description of the group. False: it does not count.
	Learn func(ctx context.Context, from peer.ID, info *groupv1.GroupInfo) bool
	// Leaderless returns the time without a known leader; 0 with one.
	Leaderless func() time.Duration
}

// Succession makes the running member of this peer the only voter of the group's next incarnation, after the permanent loss of
// the majority. It looks first whether the majority is lost.
type Succession struct {
	SuccessionConfig
	now       replica.Status // of this peer's member
	survivors []survivor
}

// survivor is another member that answers.
type survivor struct {
	replica.MemberStatus
	term, index uint64 // end of its log
}

// Succeed looks whether the majority is lost, and whether this peer is the one to go on. Errors: Conflict.
func Succeed(ctx context.Context, c SuccessionConfig) (*Succession, error) {
	s := &Succession{SuccessionConfig: c}
	if c.Member != nil {
		s.now = c.Member.Status()
	}
	if !slices.ContainsFunc(s.now.Members, s.isSelf) {
		return nil, fault.Refused(fault.Conflict, "peer_id", "is no member of the group and has no state of it: promote a member, or restore a backup")
	}
	var over machine.Dissolution
	c.Member.View(func(m *machine.Machine) { over = machine.StandingOf(m).Over })
	if over.Over() {
		return nil, fault.Refused(fault.Conflict, "action", "the group gave itself up for another one: start its voters")
	}
	if since := c.Leaderless(); since < view.Orphaned {
		return nil, fault.Refused(fault.Conflict, "action", "the group has had no leader for %v only, and an election or a restart can bring one: order again in %v",
			since.Round(time.Second), (view.Orphaned - since).Round(time.Second))
	}
	s.ask(ctx)
	if now, _ := c.View.Incarnation(); now.StorageID() != c.Incarnation.StorageID() {
		return nil, fault.Refused(fault.Conflict, "action", "the group goes on without this peer, in incarnation %d", now.Recovery.Incarnation)
	}
	if c.View.Excludes(s.now.Header.Member, s.now.Applied) {
		return nil, fault.Refused(fault.Conflict, "peer_id", "was removed from the group, whose members say so: order at one of these")
	}
	return s, s.check()
}

func (s *Succession) isSelf(m replica.MemberStatus) bool { return m.ID == s.now.Header.Member }

// ask asks all other members for the end of their logs, and keeps the members of this incarnation that answer.
func (s *Succession) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var (
		mu   sync.Mutex
		work sync.WaitGroup
	)
	for _, m := range s.now.Members {
		id, err := peer.Decode(m.Peer)
		if err != nil || s.isSelf(m) {
			continue
		}
		work.Go(func() {
			resp, ok := s.View.Question(ctx, id, 0)
			if !ok || !s.Learn(ctx, id, resp.GetInfo()) || resp.GetLastIndex() == 0 {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			s.survivors = append(s.survivors, survivor{m, resp.GetLastTerm(), resp.GetLastIndex()})
		})
	}
	work.Wait()
}

// check refuses if a majority answers or another survivor has a longer log.
func (s *Succession) check() error {
	switch t := s.tolerance(); {
	case s.Leaderless() == 0:
		return fault.Refused(fault.Conflict, "action", "the group has a leader again: order again")
	case t.Quorate():
		return fault.Refused(fault.Conflict, "action", "%d of %d voters answer, a majority: wait until they elect a leader", t.Active, t.Voters)
	}
	for _, m := range s.survivors {
		if m.term > s.now.LastTerm || m.term == s.now.LastTerm && m.index > s.now.LastIndex {
			return fault.Refused(fault.Conflict, "peer_id", "%s answers and has more of the log: it ends at term %d, index %d, here at term %d, index %d. Promote that peer",
				s.View.WithName(m.Peer), m.term, m.index, s.now.LastTerm, s.now.LastIndex)
		}
	}
	return nil
}

// tolerance counts the voters that answer, this peer included.
func (s *Succession) tolerance() (t membership.Tolerance) {
	for _, m := range s.now.Members {
		if m.Voter {
			t.Voters++
			if s.isSelf(m) || s.answers(m) {
				t.Active++
			}
		}
	}
	return t
}

func (s *Succession) answers(m replica.MemberStatus) bool {
	return slices.ContainsFunc(s.survivors, func(other survivor) bool { return other.ID == m.ID })
}

// names lists the other members that pass a test.
func (s *Succession) names(is func(replica.MemberStatus) bool) string {
	var all []string
	for _, m := range s.now.Members {
		if !s.isSelf(m) && is(m) {
			all = append(all, s.View.WithName(m.Peer))
		}
	}
	return strings.Join(all, ", ")
}

// Loss says what nobody can bring back.
func (s *Succession) Loss() string {
	lost := s.names(func(m replica.MemberStatus) bool { return m.Voter && !s.answers(m) })
	return fmt.Sprintf("lose every write that only %s had, answered ones too; there was no leader for %v", lost, s.Leaderless().Round(time.Second))
}

// Outcome describes the plan.
func (s *Succession) Outcome() coord.MemberOutcome {
	var kept string
	s.Member.View(func(m *machine.Machine) {
		kept = fmt.Sprintf("keep %d leases with their full time, %d locks and %d keys, as of revision %d; claims that wait end, and watches begin anew",
			m.LeaseCount(), m.LockCount(), m.Len(), m.Revision())
	})
	steps := []string{
		s.Loss(), kept,
		fmt.Sprintf("begin the next incarnation of the group from this peer's log, which ends at term %d, index %d, with revisions and tokens above all that were given out",
			s.now.LastTerm, s.now.LastIndex),
		"make this peer the only voter",
	}
	if left := s.names(s.answers); left != "" {
		steps = append(steps, "leave "+left+" behind, which answer")
	}
	steps = append(steps, "refuse every former member until its directory coordination is removed")
	return coord.MemberOutcome{Steps: steps, Before: s.tolerance().String(), After: membership.Tolerance{Voters: 1, Active: 1}.String()}
}
