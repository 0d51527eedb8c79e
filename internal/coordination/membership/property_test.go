package membership_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/coordination/membership"
)

// apply makes the change in a list of members.
func apply(all []membership.Member, c membership.Change) (after []membership.Member) {
	for _, m := range all {
		m.Voter = m.Voter || slices.Contains(c.Promote, m.ID)
		if m.ID != c.Remove {
			after = append(after, m)
		}
	}
	if c.Add.ID != 0 {
		after = append(after, membership.Member{Peer: c.Add})
	}
	return after
}

func count(all []membership.Member, is func(membership.Member) bool) (n int) {
	for _, m := range all {
		if is(m) {
			n++
		}
	}
	return n
}

func votes(m membership.Member) bool     { return m.Voter }
func votesNow(m membership.Member) bool  { return m.Voter && m.Unseen < 5*s }
func margin(all []membership.Member) int { return count(all, votesNow) - (count(all, votes)/2 + 1) }

// Whatever the state, a change keeps every promise of the package.
func TestChangesAreSafe(t *testing.T) {
	durations := rapid.SampledFrom([]time.Duration{0, s, 0, 4 * s, 5 * s, 29 * s, 30 * s, m, 9 * m, 10 * m, time.Hour})
	steady := rapid.SampledFrom([]time.Duration{0, 29 * s, 30 * s, 10*m - s, 10 * m, time.Hour})
	quiet := rapid.SampledFrom([]time.Duration{m - 1, m, m, m, time.Hour})
	changes := 0
	rapid.Check(t, func(t *rapid.T) {
		state := membership.State{Leader: 1, Quiet: quiet.Draw(t, "quiet"), Changing: rapid.IntRange(0, 9).Draw(t, "changing") == 0}
		names := rapid.IntRange(1, 6)
		for id := range uint64(rapid.IntRange(1, 8).Draw(t, "members")) {
			member := membership.Member{
				Peer:   membership.Peer{ID: id + 1, Name: fmt.Sprint(names.Draw(t, "name"))},
				Voter:  id == 0 || rapid.IntRange(0, 3).Draw(t, "voter") > 0,
				Barred: rapid.IntRange(0, 5).Draw(t, "barred") == 0,
				Unseen: durations.Draw(t, "unseen"), CaughtUp: rapid.IntRange(0, 3).Draw(t, "behind") > 0,
				Steady: steady.Draw(t, "steady"),
			}
			if id == 0 {
				member.Unseen, member.CaughtUp = 0, true
			}
			state.Members = append(state.Members, member)
		}
		for range rapid.IntRange(0, 3).Draw(t, "candidates") {
			id := rapid.Uint64Range(1, 12).Draw(t, "candidate")
			state.Candidates = append(state.Candidates, membership.Peer{ID: id, Name: fmt.Sprint(names.Draw(t, "name"))})
		}
		c := membership.DefaultConfig()
		c.Voters = rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "voters")
		change, ok := c.Decide(state)
		again, _ := c.Decide(state)
		require.Equal(t, change, again)
		if !ok {
			require.Zero(t, change)
			return
		}
		changes++
		safe(t, c, state, change)
	})
	require.True(t, changes > 0 || testing.Short(), "the states drawn ask for no change") // about every fourth does
}

func safe(t *rapid.T, c membership.Config, state membership.State, change membership.Change) {
	before, after := state.Members, apply(state.Members, change)
	require.False(t, state.Changing)
	quiet, steady := c.Interval, c.Stable
	if voters := count(before, votes); voters < c.Voters && change.Remove == 0 && change.Transfer == 0 { // growth
		quiet, steady = c.Contact, min(c.Contact, c.Stable)
		if change.Promote == nil {
			quiet = s
		}
		require.True(t, change.Promote == nil || len(change.Promote) == 1+voters%2, "an even number of voters")
	}
	require.GreaterOrEqual(t, state.Quiet, quiet)
	require.GreaterOrEqual(t, margin(before), 0, "no quorum before")
	require.GreaterOrEqual(t, margin(after), margin(before), "less to spare after")
	require.GreaterOrEqual(t, count(after, votes), count(before, votes), "fewer voters")
	require.NotEqual(t, state.Leader, change.Remove, "the leader removes itself")
	find := func(id uint64) membership.Member {
		return before[slices.IndexFunc(before, func(m membership.Member) bool { return m.ID == id })]
	}
	for _, id := range change.Promote {
		p := find(id)
		require.True(t, !p.Voter && !p.Barred && p.CaughtUp && p.Unseen < c.Contact && p.Steady >= steady, "not fit to vote: %v", p)
	}
	if change.Transfer != 0 {
		to := find(change.Transfer)
		require.True(t, to.Voter && !to.Barred && to.CaughtUp && to.Unseen < c.Contact && to.ID != state.Leader)
		require.True(t, find(state.Leader).Barred)
	}
	if change.Remove != 0 && find(change.Remove).Voter {
		gone := find(change.Remove)
		require.Len(t, change.Promote, 1, "without replacement")
		require.True(t, gone.Barred || gone.Unseen >= c.Returned, "a voter that lives was removed")
	}
	if change.Add.ID != 0 {
		require.Contains(t, state.Candidates, change.Add)
		require.False(t, slices.ContainsFunc(before, func(m membership.Member) bool { return m.ID == change.Add.ID }))
	}
}

const tick = 3 * s

// cluster is a group whose peers die for good, or lose their disks, one after the other.
type cluster struct {
	config  membership.Config
	now     time.Duration
	members []membership.Member
	peers   map[string]*uint64 // the id under which a peer lives; nil: dead
	next    uint64
	changed time.Duration
	leader  uint64
}

func (w *cluster) lives(m membership.Member) bool {
	id := w.peers[m.Name]
	return id != nil && *id == m.ID
}

// tick lets some seconds pass.
func (w *cluster) tick(t *rapid.T) {
	w.now += tick
	for i := range w.members {
		m := &w.members[i]
		if m.Steady += tick; w.lives(*m) {
			m.Unseen = 0
			if !m.CaughtUp && m.Steady > 20*s {
				m.CaughtUp, m.Steady = true, 0
			}
		} else {
			m.Unseen += tick
		}
		if m.Voter && w.lives(*m) && !slices.ContainsFunc(w.members, func(l membership.Member) bool { return l.ID == w.leader && w.lives(l) }) {
			w.leader, w.changed = m.ID, w.now
		}
	}
	state := membership.State{Leader: w.leader, Members: w.members, Quiet: w.now - w.changed}
	for i := range len(w.peers) {
		name := fmt.Sprint(i)
		if id := w.peers[name]; id != nil {
			state.Candidates = append(state.Candidates, membership.Peer{ID: *id, Name: name})
		}
	}
	if change, ok := w.config.Decide(state); ok {
		safe(t, w.config, state, change)
		w.members, w.changed = apply(w.members, change), w.now
	}
}

// strong reports whether the group has all the voters it wants, living, and a learner.
func (w *cluster) strong() bool {
	voters := count(w.members, func(m membership.Member) bool { return m.Voter && w.lives(m) })
	learners := count(w.members, func(m membership.Member) bool { return !m.Voter && w.lives(m) })
	return voters >= w.config.Voters && voters == count(w.members, votes) && learners == 1
}

// Given time between them, the group survives more deaths than it has voters.
func TestGroupRegainsItsStrength(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &cluster{config: membership.DefaultConfig(), peers: make(map[string]*uint64)}
		w.config.Voters = rapid.SampledFrom([]int{3, 5}).Draw(t, "voters")
		born := func() *uint64 { w.next++; id := w.next; return &id }
		for i := range 9 {
			w.peers[fmt.Sprint(i)] = born()
		}
		for i := range rapid.SampledFrom([]int{1, w.config.Voters}).Draw(t, "founders") {
			w.members = append(w.members, membership.Member{Peer: membership.Peer{ID: uint64(i + 1), Name: fmt.Sprint(i)}, Voter: true, CaughtUp: true})
		}
		w.leader = 1
		dead := 0
		for range 5 {
			for range 1 + 2*(w.config.Patience+w.config.Interval+m)/tick {
				w.tick(t)
			}
			require.True(t, w.strong(), "%+v", w.members)
			victim := fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "victim"))
			if rapid.Bool().Draw(t, "disk only") && w.peers[victim] != nil {
				w.peers[victim] = born()
			} else if dead < 9-w.config.Voters-1 && w.peers[victim] != nil {
				w.peers[victim] = nil
				dead++
			}
		}
	})
}

// A disk lost is repaired long before patience ends.
func TestWipedVoterReplacesItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := membership.DefaultConfig()
		w := &cluster{config: c, leader: 1, peers: make(map[string]*uint64)}
		for i := range uint64(3) {
			id := i + 1
			w.peers[fmt.Sprint(i)] = &id
			w.members = append(w.members, membership.Member{Peer: membership.Peer{ID: id, Name: fmt.Sprint(i)}, Voter: true, CaughtUp: true})
		}
		id := uint64(9)
		w.peers["2"] = &id
		for range (c.Returned + c.Stable + 2*c.Interval + 30*s) / tick {
			w.tick(t)
		}
		require.Equal(t, 3, count(w.members, func(m membership.Member) bool { return m.Voter && w.lives(m) }))
	})
}
