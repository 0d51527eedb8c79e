package tour

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// Time limits of the group.
const (
	formed   = 2 * time.Minute // from the start of the peers to their group
	replaced = 2 * time.Minute // from the end of a voter to its replacement
	revived  = 2 * time.Minute // from the restart of all peers to their group
)

// groupFormed waits until every peer knows the same group of three voters, and its leader.
func groupFormed(ctx context.Context, t *Tour) (string, error) {
	state, err := t.awaitGroup(ctx, formed, func(coord.GroupState) error { return nil })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("group %.8s of %d voters, %d learners; %s leads in term %d",
		state.ID, len(state.Voters), len(state.Learners), t.nameOf(state.Leader), state.Term), nil
}

// awaitGroup waits until all living peers know one group with all voters, a living leader, and
// the property fits.
func (t *Tour) awaitGroup(ctx context.Context, limit time.Duration, fits func(coord.GroupState) error) (coord.GroupState, error) {
	var agreed coord.GroupState
	err := await.Until(ctx, limit, "one coordination group", func(ctx context.Context) error {
		agreed = coord.GroupState{}
		for _, p := range t.Network.Living() {
			s, err := group(ctx, p)
			switch {
			case err != nil:
				return err
			case s.ID == "" || s.Missing != "":
				return fault.New(p.Name, fault.Unavailable, "%s: %s", s.Phase, s.Missing)
			case len(s.Voters) != min(voters, t.Network.Founding()):
				return fault.New(p.Name, fault.Unavailable, "%d voters", len(s.Voters))
			case t.living(s.Leader) == nil:
				return fault.New(p.Name, fault.Unavailable, "%q leads, which does not run", s.Leader)
			case agreed.ID != "" && (agreed.ID != s.ID || agreed.Leader != s.Leader):
				return fault.New(p.Name, fault.Conflict, "knows group %.8s led by %s, others %.8s led by %s", s.ID, s.Leader, agreed.ID, agreed.Leader)
			}
			if err := fits(s); err != nil {
				return fault.Wrap(p.Name, err)
			}
			agreed = s
		}
		return nil
	})
	return agreed, err
}

// voters is the number of voters with enough founders.
const voters = 3

func group(ctx context.Context, p *network.Peer) (coord.GroupState, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	s, err := p.Coordination().Group(ctx)
	return s, fault.Wrap(p.Name, err)
}

// living returns the running peer with an id, or nil.
func (t *Tour) living(id string) *network.Peer {
	for _, p := range t.Network.Living() {
		if p.ID.String() == id {
			return p
		}
	}
	return nil
}

func (t *Tour) nameOf(id string) string {
	for _, p := range t.Network.Peers {
		if p.ID.String() == id {
			return p.Name
		}
	}
	return id
}

// bystander returns a running peer that does not lead the group.
func (t *Tour) bystander(leader string) *network.Peer {
	all := t.Network.Living()
	slices.Reverse(all) // founders come first
	for _, p := range all {
		if p.ID.String() != leader {
			return p
		}
	}
	return nil
}

// voterReplaced waits until another founder votes in place of the killed leader. Without a spare
// founder the killed peer returns and votes again.
func voterReplaced(ctx context.Context, t *Tour) (string, error) {
	lost := t.killed
	if lost == nil {
		return "", fault.New("tour.voterReplaced", fault.Invalid, "no leader was killed")
	}
	began := time.Now()
	if t.Network.Founding() <= voters {
		if err := t.Network.Restart(ctx, lost); err != nil {
			return "", err
		}
		state, err := t.awaitGroup(ctx, replaced, allActive)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("nobody to spare: %s restarted, %d voters active again after %v",
			lost.Name, len(state.Voters), time.Since(began).Round(time.Millisecond)), nil
	}
	state, err := t.awaitGroup(ctx, replaced, func(s coord.GroupState) error {
		if slices.ContainsFunc(s.Voters, func(m coord.Member) bool { return m.Peer == lost.ID.String() }) {
			return fault.New("tour.voterReplaced", fault.Unavailable, "%s still votes", lost.Name)
		}
		return allActive(s)
	})
	if err != nil {
		return "", err
	}
	names := make([]string, len(state.Voters))
	for i, m := range state.Voters {
		names[i] = t.nameOf(m.Peer)
	}
	return fmt.Sprintf("%s voted out %v later; now %v vote", lost.Name, time.Since(began).Round(time.Millisecond), names), nil
}

func allActive(s coord.GroupState) error {
	for _, m := range s.Voters {
		if !m.Active {
			return fault.New("tour.allActive", fault.Unavailable, "voter %s is silent", m.Peer)
		}
	}
	return nil
}
