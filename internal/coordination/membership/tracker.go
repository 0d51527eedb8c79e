package membership

import "time"

// Progress is what raft's leader knows of one member.
type Progress struct {
	Peer
	Voter bool
	// Match is the index up to which its log is known to be the leader's.
	Match uint64
	// Active says that it was heard of since raft last asked itself: within an election
	// timeout.
	Active bool
}

// within is how old the commit index may be that a member must match to be caught up. It is
// not the present one, which the best of followers is a round trip behind.
const within = time.Second

// Tracker makes a leader's Members out of what raft says of them from time to time. Begin
// with a new one on each promotion.
type Tracker struct {
	leader  uint64
	members map[uint64]*tracked
	commits []commit // ascending; the first is the latest that is at least a second old
}

type tracked struct {
	seen     time.Duration
	caughtUp bool
	since    time.Duration
}

type commit struct {
	at    time.Duration
	index uint64
}

// NewTracker begins to follow members for the leader with an id.
func NewTracker(leader uint64) *Tracker {
	return &Tracker{leader: leader, members: make(map[uint64]*tracked)}
}

// Observe takes in the progress of all members and gives them back as seen over time, in the
// same order, none of them barred. Call it a few times a second. Times are durations since
// any fixed origin.
func (t *Tracker) Observe(now time.Duration, committed uint64, progress []Progress) []Member {
	target := t.target(now, committed)
	known := make(map[uint64]*tracked, len(progress))
	members := make([]Member, len(progress))
	for i, p := range progress {
		m := t.members[p.ID]
		if m == nil {
			m = &tracked{seen: now, since: now}
		}
		known[p.ID] = m
		if p.Active || p.ID == t.leader {
			m.seen = now
		}
		if caughtUp := p.ID == t.leader || p.Match >= target; caughtUp != m.caughtUp {
			m.caughtUp, m.since = caughtUp, now
		}
		members[i] = Member{Peer: p.Peer, Voter: p.Voter, Unseen: now - m.seen, CaughtUp: m.caughtUp, Steady: now - m.since}
	}
	t.members = known
	return members
}

// target gives the commit index of a second ago, or the present one while there is none so old.
func (t *Tracker) target(now time.Duration, committed uint64) uint64 {
	if n := len(t.commits); n == 0 || t.commits[n-1].at+within/8 <= now {
		t.commits = append(t.commits, commit{now, committed})
	}
	for len(t.commits) > 1 && t.commits[1].at <= now-within {
		t.commits = t.commits[1:]
	}
	if t.commits[0].at > now-within {
		return committed
	}
	return t.commits[0].index
}
