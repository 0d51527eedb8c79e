package membership

import (
	"slices"
	"time"
)

// crowd counts the members behind the address prefix of a peer, without one of them.
func crowd(members []Member, p Peer, without uint64) (n int) {
	for _, m := range members {
		if p.Prefix != "" && m.Prefix == p.Prefix && m.ID != p.ID && m.ID != without {
			n++
		}
	}
	return n
}

// candidate returns the admissible candidate whose prefix the fewest members share, of equals the one of the longest standing.
func (v *view) candidate(c Config) (best Peer, ok bool) {
	for _, p := range v.Candidates {
		if c.admissible(v, p) && (!ok || crowd(v.Members, p, 0) < crowd(v.Members, best, 0)) {
			best, ok = p, true
		}
	}
	return best, ok
}

// pick returns n learners that have been ready for some time, nil if there are fewer. Each is the best one of those whose
// prefix the fewest voters share, the picked ones included and without a leaving one.
func (v *view) pick(c Config, n int, since time.Duration, leaving uint64) (picked []uint64) {
	voters := slices.Clone(v.voters)
	for range n {
		var best Member
		for _, m := range v.learners {
			if !c.ready(m, since) || slices.Contains(picked, m.ID) {
				continue
			}
			if best.ID == 0 || crowd(voters, m.Peer, leaving) < crowd(voters, best.Peer, leaving) {
				best = m
			}
		}
		if best.ID == 0 {
			return nil
		}
		voters, picked = append(voters, best), append(picked, best.ID)
	}
	return picked
}

// disperse acts while a majority of the voters shares one prefix, so that the failure of one site stops all writes. It swaps a
// voter there with a learner elsewhere, or gets such a learner. Each swap shrinks the largest prefix group, so
// spreading terminates. Nothing is urgent: the group was quiet, and the learner steady, for Patience.
func (c Config) disperse(v *view) (Change, bool) {
	leaving, size := v.crowded()
	if leaving == 0 || v.Quiet < c.Patience || len(v.voters) < c.Voters {
		return Change{}, false
	}
	helps := func(p Peer) bool { return p.Prefix != "" && crowd(v.voters, p, leaving)+1 < size }
	for _, m := range v.learners {
		if helps(m.Peer) {
			return Change{Promote: []uint64{m.ID}, Remove: leaving}, c.ready(m, c.Patience)
		}
	}
	i := slices.IndexFunc(v.Candidates, func(p Peer) bool { return c.admissible(v, p) && helps(p) })
	if i < 0 || len(v.learners) == 0 {
		return Change{}, false // without a learner, replaceDead adds one
	}
	worst := v.learners[len(v.learners)-1]
	return Change{Add: v.Candidates[i], Remove: worst.ID}, !worst.Wanted
}

// crowded returns a voter, not the leader, of a prefix that a majority shares, and the size of that majority; 0 without one.
func (v *view) crowded() (leaving uint64, size int) {
	for _, m := range v.voters {
		if n := crowd(v.voters, m.Peer, 0) + 1; n > len(v.voters)/2 && n > 1 && m.ID != v.Leader {
			return m.ID, n
		}
	}
	return 0, 0
}
