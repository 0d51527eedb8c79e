// Package membership decides on changes of the coordination group's members: it aims at V living voters, and one
// learner that is ready to replace the next dead voter.
//
// The leader calls Decide periodically with the whole state and gets at most one change, so that a change of
// leader or a failed change loses nothing. The rules:
//
//   - Only a joint change that adds another voter removes a voter. The number of voters never falls.
//   - A learner becomes a voter after it was caught up and active for some time, because it counts for the
//     quorum from its first moment.
//   - Every change requires a living quorum before and after it, and some time since the last change.
//   - A leader that is to be replaced hands over first.
//   - A stopped voter keeps its seat until patience ends.
//   - Voters are spread over address prefixes: see disperse.
//
// The rules follow HashiCorp's autopilot, for a group that wants V of many peers instead of all, and with
// joint consensus instead of an addition followed by a removal.
package membership

import (
	"cmp"
	"slices"
	"time"
)

// Config holds the patience of a group.
type Config struct {
	// Voters is the wanted number of voters: 1, 3 or 5. A group with more keeps them.
	Voters int
	// Patience is the silence after which a voter is replaced, or a dead or slow learner.
	Patience time.Duration
	// Returned replaces Patience for a member whose peer is back under another id: its disk is lost, so the
	// old id never returns.
	Returned time.Duration
	// Stable is the time that a learner must be caught up before its promotion.
	Stable time.Duration
	// Contact is the silence after which a member counts as dead: several election timeouts.
	Contact time.Duration
	// Interval is the minimum time between two changes. Growth to the wanted number of voters needs only Contact:
	// two voters survive no failure.
	Interval time.Duration
}

// DefaultConfig suits a group of three on the Internet.
func DefaultConfig() Config {
	return Config{
		Voters: 3, Patience: 10 * time.Minute, Returned: 30 * time.Second,
		Stable: 30 * time.Second, Contact: 5 * time.Second, Interval: time.Minute,
	}
}

// addition is the minimum time between two additions of learners that the group needs for its growth: a learner
// changes no quorum.
const addition = time.Second

// Peer is a peer with the raft id of its data directory.
type Peer struct {
	ID     uint64 // raft member id
	Name   string // peer id
	Prefix string // of its address: peers with the same one fail together; empty: unknown, shared with nobody
}

// Member is a member from its leader's view.
type Member struct {
	Peer
	Voter bool
	// Barred says that the peer is no longer eligible, or that an operator removed it.
	Barred bool
	// Wanted says that an operator added the member: it is never superfluous.
	Wanted bool
	// Unseen is the time since raft's last message from the member, or since the election; 0 for the leader
	// itself.
	Unseen time.Duration
	// CaughtUp says that the member has all entries committed a second ago.
	CaughtUp bool
	// Steady is the age of CaughtUp's present value.
	Steady time.Duration
}

// State is the leader's knowledge.
type State struct {
	Leader  uint64 // its own id
	Members []Member
	// Candidates are eligible peers that offer themselves as learners, those of the longest standing first. Members among them
	// are ignored.
	Candidates []Peer
	// Unreached says of candidates that the leader has not reached, by id, why: they are ignored.
	Unreached map[uint64]string
	// Changing is true from the proposal of a change to its application and the end of its joint
	// configuration.
	Changing bool
	// Quiet is the time since the last change, transfers and failures included, or since the election if that
	// is later.
	Quiet time.Duration
}

// Change is one change. Only one field is set, or the two of a swap; Promote alone for growth.
type Change struct {
	// Transfer hands leadership to this voter.
	Transfer uint64
	// Add adds this peer as a learner, in one change with Remove if both are set.
	Add Peer
	// Promote turns these learners into voters, in one joint change with Remove if both are set.
	Promote []uint64
	// Remove removes this member.
	Remove uint64
}

// Decide returns the next change; false if none is useful now.
func (c Config) Decide(s State) (Change, bool) {
	if s.Changing || s.Quiet < min(addition, c.Interval) || !c.quorate(s.Members) {
		return Change{}, false
	}
	v := c.view(s)
	rules := []func(*view) (Change, bool){c.swap, c.grow, c.replaceDead, c.removeMember, c.disperse}
	switch {
	case s.Quiet < min(c.Contact, c.Interval):
		rules = []func(*view) (Change, bool){c.addForGrowth}
	case s.Quiet < c.Interval:
		rules = []func(*view) (Change, bool){c.grow, c.addForGrowth}
	}
	for _, rule := range rules {
		if change, ok := rule(v); ok {
			return change, true
		}
	}
	return Change{}, false
}

// quorate reports whether a majority of the voters is alive.
func (c Config) quorate(members []Member) bool {
	voters, living := 0, 0
	for _, m := range members {
		if m.Voter {
			voters++
			if c.lives(m) {
				living++
			}
		}
	}
	return living > voters/2
}

func (c Config) lives(m Member) bool { return m.Unseen < c.Contact }

// ready reports whether a learner has been fit to vote for some time.
func (c Config) ready(m Member, since time.Duration) bool {
	return !m.Voter && !m.Barred && c.lives(m) && m.CaughtUp && m.Steady >= since
}

// view is the sorted state.
type view struct {
	State
	voters, learners []Member
}

// view sorts members: the worst voter and the best learner first.
func (c Config) view(s State) *view {
	v := &view{State: s}
	for _, m := range s.Members {
		if m.Voter {
			v.voters = append(v.voters, m)
		} else {
			v.learners = append(v.learners, m)
		}
	}
	slices.SortFunc(v.voters, func(a, b Member) int {
		return cmp.Or(cmp.Compare(b.Unseen, a.Unseen), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(v.learners, func(a, b Member) int {
		return cmp.Or(cmp.Compare(c.rank(b), c.rank(a)), cmp.Compare(b.Steady, a.Steady), cmp.Compare(a.ID, b.ID))
	})
	return v
}

// rank orders learners by their value.
func (c Config) rank(m Member) int {
	switch {
	case m.Barred:
		return 0
	case !c.lives(m):
		return 1
	case !m.CaughtUp:
		return 2
	}
	return 3
}

// lost reports whether a member must be assumed dead for good.
func (c Config) lost(v *view, m Member) bool {
	if m.ID == v.Leader {
		return false
	}
	return m.Unseen >= c.Patience || m.Unseen >= c.Returned && v.returned(m)
}

// returned reports whether a member's peer is back under another id.
func (v *view) returned(m Member) bool {
	other := func(p Peer) bool { return p.Name == m.Name && p.ID != m.ID }
	return slices.ContainsFunc(v.Candidates, other) ||
		slices.ContainsFunc(v.learners, func(l Member) bool { return other(l.Peer) })
}

// swap replaces a lost voter, or a barred one, by the best learner.
func (c Config) swap(v *view) (Change, bool) {
	i := slices.IndexFunc(v.voters, func(m Member) bool { return c.lost(v, m) })
	if i < 0 {
		i = slices.IndexFunc(v.voters, func(m Member) bool { return m.Barred })
	}
	if i < 0 {
		return Change{}, false
	}
	best := v.pick(c, 1, c.Stable, v.voters[i].ID)
	if best == nil {
		return Change{}, false
	}
	if v.voters[i].ID == v.Leader {
		return c.handOver(v)
	}
	return Change{Promote: best, Remove: v.voters[i].ID}, true
}

// handOver hands leadership to another voter.
func (c Config) handOver(v *view) (Change, bool) {
	for _, m := range slices.Backward(v.voters) { // the most recently active one
		if m.ID != v.Leader && !m.Barred && c.lives(m) && m.CaughtUp {
			return Change{Transfer: m.ID}, true
		}
	}
	return Change{}, false
}

// step returns the number of voters of the next growth: two, because the second voter of an even number only
// enlarges the quorum.
func (c Config) step(v *view) int {
	if len(v.voters) >= c.Voters {
		return 0
	}
	return 1 + len(v.voters)%2
}

// grow adds voters as soon as enough learners are ready.
func (c Config) grow(v *view) (Change, bool) {
	n := c.step(v)
	if n == 0 {
		return Change{}, false
	}
	promoted := v.pick(c, n, min(c.Contact, c.Stable), 0)
	return Change{Promote: promoted}, promoted != nil
}

// addForGrowth makes a candidate a learner that the group needs for its growth.
func (c Config) addForGrowth(v *view) (Change, bool) {
	one, ok := v.candidate(c)
	if !ok || len(v.learners) >= c.step(v) {
		return Change{}, false
	}
	return Change{Add: one}, true
}

// replaceDead makes a candidate a learner: as an additional one, or for a learner that is lost or stuck.
func (c Config) replaceDead(v *view) (Change, bool) {
	one, ok := v.candidate(c)
	if !ok {
		return Change{}, false
	}
	change := Change{Add: one}
	if len(v.learners) < c.learners(v) {
		return change, true
	}
	if worst := v.learners[len(v.learners)-1]; c.unreachable(v, worst) {
		change.Remove = worst.ID
		return change, true
	}
	return Change{}, false
}

// learners returns the wanted number of learners: one standby, and those for growth.
func (c Config) learners(v *view) int { return 1 + c.step(v) }

// unreachable reports whether a learner should be replaced.
func (c Config) unreachable(v *view, m Member) bool {
	return m.Barred || c.lost(v, m) || !m.CaughtUp && m.Steady >= c.Patience
}

// admissible reports whether a candidate may become a learner: it was reached, and neither it nor another living id of its
// peer is a member.
func (c Config) admissible(v *view, p Peer) bool {
	return p.ID != 0 && v.Unreached[p.ID] == "" && !slices.ContainsFunc(v.Members, func(m Member) bool {
		return m.ID == p.ID || m.Name == p.Name && !c.lost(v, m)
	})
}

// removeMember removes barred or superfluous learners.
func (c Config) removeMember(v *view) (Change, bool) {
	if len(v.learners) == 0 {
		return Change{}, false
	}
	for _, worst := range slices.Backward(v.learners) {
		if worst.Barred || len(v.learners) > c.learners(v) && !worst.Wanted {
			return Change{Remove: worst.ID}, true
		}
	}
	return Change{}, false
}
