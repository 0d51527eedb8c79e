// Package membership decides how the coordination group keeps its strength: V voters that live, and
// one learner that is ready to take the place of the next that does not.
//
// The leader asks Decide again and again; it sees the whole state each time and answers with at
// most one change, so that nothing is lost when the leader changes or a change fails. The rules:
//
//   - A voter is removed only in the joint change that puts another in its place. The number of
//     voters never falls.
//   - Who becomes a voter is a learner that has been caught up and heard of for a while: it
//     counts for the quorum from its first moment.
//   - Nothing is changed without a living quorum before and after it, nor soon after the last
//     change, nor during one.
//   - A leader that is to be replaced hands over first.
//   - Being off is not leaving: a voter that shuts down keeps its seat until patience ends.
//
// The rules are those of HashiCorp's autopilot for a group that wants V of many peers rather than
// all of them, with joint consensus where autopilot adds first and removes later.
package membership

import (
	"cmp"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Config is how patient a group is.
type Config struct {
	// Voters that the group wants: 1, 3 or 5. One that has more keeps them.
	Voters int
	// Patience is how long a voter may be unseen before it is replaced, a learner dead or
	// behind before another takes over, and how steady learners must be for the group to grow.
	Patience time.Duration
	// Returned is the same for a member whose peer is back under another id: its disk is lost
	// and the old id will not be seen again.
	Returned time.Duration
	// Stable is how long a learner must have been caught up to become a voter.
	Stable time.Duration
	// Contact is how recently a member must have been heard of to count as living: some
	// election timeouts.
	Contact time.Duration
	// Interval is the least time between two changes.
	Interval time.Duration
}

// DefaultConfig is for a group of three on the Internet.
func DefaultConfig() Config {
	return Config{
		Voters: 3, Patience: 10 * time.Minute, Returned: 30 * time.Second,
		Stable: 30 * time.Second, Contact: 5 * time.Second, Interval: time.Minute,
	}
}

// Validate reports a configuration that cannot be meant. Errors: Invalid.
func (c Config) Validate() error {
	if c.Voters != 1 && c.Voters != 3 && c.Voters != 5 {
		return fault.Invalidf("voters", c.Voters, "must be 1, 3 or 5")
	}
	for _, f := range []struct {
		name  string
		value time.Duration
		min   time.Duration
	}{
		{"contact", c.Contact, 1}, {"stable", c.Stable, 0}, {"interval", c.Interval, 0},
		{"returned", c.Returned, c.Contact}, {"patience", c.Patience, c.Returned},
	} {
		if f.value < f.min {
			return fault.Invalidf(f.name, f.value, "must be at least %v", f.min)
		}
	}
	return nil
}

// Peer is a peer with the id under which its data directory takes part in the group.
type Peer struct {
	ID   uint64 // raft member id
	Name string // peer id
}

// Member is a member as its leader sees it.
type Member struct {
	Peer
	Voter bool
	// Barred says that the peer is not eligible any more.
	Barred bool
	// Unseen is how long ago raft heard of it, or of the leader's beginning when it has not
	// since; 0 for the leader itself.
	Unseen time.Duration
	// CaughtUp says that it has what was committed a second ago.
	CaughtUp bool
	// Steady is how long CaughtUp has been what it is.
	Steady time.Duration
}

// State is what a leader knows.
type State struct {
	Leader  uint64 // its own id
	Members []Member
	// Candidates are peers that are eligible, reachable, and ready to begin as learners, the
	// preferred ones first. Members among them are passed over.
	Candidates []Peer
	// Changing is set from the proposal of a change until it has been applied, and left if it
	// is joint.
	Changing bool
	// Quiet is how long ago the last change was, transfers and failures included, or the
	// leader's beginning if that was later.
	Quiet time.Duration
}

// Change is what to do; one of its fields or the two of a swap are set, for growth Promote alone.
type Change struct {
	// Transfer leadership to this voter.
	Transfer uint64
	// Add this peer as a learner, in one change with Remove when that is set.
	Add Peer
	// Promote these learners to voters, in one joint change with Remove when that is set.
	Promote []uint64
	// Remove this member.
	Remove uint64
}

// Decide gives the next change; false when all is as well as it can be now.
func (c Config) Decide(s State) (Change, bool) {
	if s.Changing || s.Quiet < c.Interval || !c.quorate(s.Members) {
		return Change{}, false
	}
	v := c.view(s)
	for _, rule := range []func(*view) (Change, bool){c.swap, c.grow, c.replaceDead, c.removeMember} {
		if change, ok := rule(v); ok {
			return change, true
		}
	}
	return Change{}, false
}

// quorate reports whether a majority of the voters among members lives.
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

// ready reports whether a learner has been fit to vote for a time.
func (c Config) ready(m Member, since time.Duration) bool {
	return !m.Voter && !m.Barred && c.lives(m) && m.CaughtUp && m.Steady >= since
}

// view is the state, sorted.
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

// rank orders learners by their worth.
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

// lost reports whether a member must be assumed to be gone for good.
func (c Config) lost(v *view, m Member) bool {
	if m.ID == v.Leader {
		return false
	}
	return m.Unseen >= c.Patience || m.Unseen >= c.Returned && v.returned(m)
}

// returned reports whether a member's peer is about under another id.
func (v *view) returned(m Member) bool {
	other := func(p Peer) bool { return p.Name == m.Name && p.ID != m.ID }
	return slices.ContainsFunc(v.Candidates, other) ||
		slices.ContainsFunc(v.learners, func(l Member) bool { return other(l.Peer) })
}

// swap replaces a voter that is lost, or else one that is barred, by the best learner.
func (c Config) swap(v *view) (Change, bool) {
	i := slices.IndexFunc(v.voters, func(m Member) bool { return c.lost(v, m) })
	if i < 0 {
		i = slices.IndexFunc(v.voters, func(m Member) bool { return m.Barred })
	}
	if i < 0 || len(v.learners) == 0 || !c.ready(v.learners[0], c.Stable) {
		return Change{}, false
	}
	if v.voters[i].ID == v.Leader {
		return c.handOver(v)
	}
	return Change{Promote: []uint64{v.learners[0].ID}, Remove: v.voters[i].ID}, true
}

// handOver gives the leadership to another voter.
func (c Config) handOver(v *view) (Change, bool) {
	for _, m := range slices.Backward(v.voters) { // the one heard of last
		if m.ID != v.Leader && !m.Barred && c.lives(m) && m.CaughtUp {
			return Change{Transfer: m.ID}, true
		}
	}
	return Change{}, false
}

// step is by how many voters the group grows next: by two, as the second of an even number
// only adds to the quorum.
func (c Config) step(v *view) int {
	if len(v.voters) >= c.Voters {
		return 0
	}
	return 1 + len(v.voters)%2
}

// grow adds voters when as many learners as are needed have long been ready.
func (c Config) grow(v *view) (Change, bool) {
	n := c.step(v)
	if n == 0 || len(v.learners) < n {
		return Change{}, false
	}
	var promoted []uint64
	for _, m := range v.learners[:n] {
		if !c.ready(m, c.Patience) {
			return Change{}, false
		}
		promoted = append(promoted, m.ID)
	}
	return Change{Promote: promoted}, true
}

// replaceDead makes a candidate a learner: if there are too few, or in the place of one that is
// lost or does not get any closer.
func (c Config) replaceDead(v *view) (Change, bool) {
	i := slices.IndexFunc(v.Candidates, func(p Peer) bool { return c.admissible(v, p) })
	if i < 0 {
		return Change{}, false
	}
	change := Change{Add: v.Candidates[i]}
	if len(v.learners) < c.learners(v) {
		return change, true
	}
	if worst := v.learners[len(v.learners)-1]; c.unreachable(v, worst) {
		change.Remove = worst.ID
		return change, true
	}
	return Change{}, false
}

// learners is how many the group wants: one to stand by, and those it wants to grow by.
func (c Config) learners(v *view) int { return 1 + c.step(v) }

// unreachable reports whether a learner had better be another.
func (c Config) unreachable(v *view, m Member) bool {
	return m.Barred || c.lost(v, m) || !m.CaughtUp && m.Steady >= c.Patience
}

// admissible reports whether a candidate may become a learner: it is no member, and no member
// that may yet return is of the same peer.
func (c Config) admissible(v *view, p Peer) bool {
	return p.ID != 0 && !slices.ContainsFunc(v.Members, func(m Member) bool {
		return m.ID == p.ID || m.Name == p.Name && !c.lost(v, m)
	})
}

// removeMember removes learners that are barred or too many.
func (c Config) removeMember(v *view) (Change, bool) {
	if len(v.learners) == 0 {
		return Change{}, false
	}
	worst := v.learners[len(v.learners)-1]
	if worst.Barred || len(v.learners) > c.learners(v) {
		return Change{Remove: worst.ID}, true
	}
	return Change{}, false
}
