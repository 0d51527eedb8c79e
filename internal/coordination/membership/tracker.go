package membership

import "time"

// Progress is raft's knowledge of one member at the leader.
type Progress struct {
	Peer
	Voter bool
	// Match is the last index known to equal the leader's log.
	Match uint64
	// Active says that the member answered raft within an election timeout.
	Active bool
}

// within is the age of the commit index that a caught-up member must match. The present index is a round trip
// ahead of the best follower.
const within = time.Second

// Tracker derives a leader's Members from raft's periodic progress. Each promotion needs a new one.
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

// NewTracker returns a Tracker for the leader with an id.
func NewTracker(leader uint64) *Tracker {
	return &Tracker{leader: leader, members: make(map[uint64]*tracked)}
}

// Observe applies the progress of all members and returns them with their history, in the same order, none
// barred. Call it a few times a second. Times are durations since any fixed origin.
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

// target returns the commit index of a second ago, or the present one without a history.
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
