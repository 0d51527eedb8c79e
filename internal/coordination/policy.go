package coordination

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Members says which peers may be members of the group.
type Members uint8

const (
	ListedMembers  Members = iota // the founders, and the peers of Access.Allow
	TrustedMembers                // all trusted peers
	NoMembers                     // this peer is a client only
)

// Policy is this peer's part in the founding and the membership of the group.
type Policy struct {
	Members Members
	Client  bool // this peer never becomes a member
	// Founds says, in a network without founders, that this peer may found the group: it knows no way to other peers.
	Founds bool
	// Settle is the wait for neighbours that may found too. The lowest of them founds.
	Settle time.Duration
	Reach  Reach
}

// roster decides which peers may be members of the group, and whose word on it counts.
type roster struct {
	config     *Config
	self       peer.ID
	view       *groupView
	candidates candidates
	// founded returns the initial membership of the group, if it is known.
	founded func() (bootstrap.Membership, bool)
}

// joins reports whether this peer may be a member, so that it needs a disk. A member of the past goes on: only the
// group removes it.
func (r *roster) joins() bool {
	policy := r.config.Policy
	if policy.Client || policy.Members == NoMembers {
		return false
	}
	_, err := r.config.FS.Stat(filepath.Join(r.config.Dir, "raft", "log"))
	return err == nil || r.founds() || policy.Members == TrustedMembers || r.lists(r.self)
}

// founds reports whether this peer takes part in the bootstrap.
func (r *roster) founds() bool {
	policy, n := r.config.Policy, r.config.Network
	if policy.Client || policy.Members == NoMembers {
		return false
	}
	return n.Mode == Unlisted && policy.Founds || slices.Contains(n.Founders, r.self)
}

// lists reports whether the configuration names a peer as a possible member.
func (r *roster) lists(id peer.ID) bool {
	return slices.Contains(r.config.Network.Founders, id) || slices.Contains(r.config.Access.Allow, id.String())
}

// keeps reports whether a member may stay one. Without a list of founders, the first voters may.
func (r *roster) keeps(id peer.ID) bool {
	if r.config.Policy.Members == TrustedMembers || r.lists(id) {
		return true
	}
	c, ok := r.founded()
	_, first := c.Voter(id)
	return ok && first && r.config.Network.Mode == Unlisted
}

// admits reports whether a peer may become a member.
func (r *roster) admits(ctx context.Context, id peer.ID) bool {
	return r.keeps(id) && (r.lists(id) || r.trusts(ctx, id) == nil)
}

// trusts returns nil if a peer's word on the group counts: it is a founder or a member, or Access.Trusts says so.
func (r *roster) trusts(ctx context.Context, id peer.ID) error {
	switch a := r.config.Access; {
	case slices.Contains(r.config.Network.Founders, id), r.view.names(id):
		return nil
	case a.Trusts != nil:
		return a.Trusts(ctx, id)
	case a.Open:
		return nil
	}
	return fault.New("coordination.trusts", fault.Forbidden, "peer %s is neither a founder nor a member of the group", id)
}

// standsBy reports whether the group needs this peer as a client only.
func (r *roster) standsBy() bool { return r.view.full(r.config.Voters) && !r.view.names(r.self) }

// offerOf returns the raft id under which this peer offers itself as a member; 0: it does not.
func offerOf(p *Plane) uint64 {
	if !p.roster.serves() {
		return 0
	}
	return p.disk.Member()
}

// serves reports whether others can rely on this peer as a member.
func (r *roster) serves() bool {
	return r.config.Policy.Reach.Serves == nil || r.lists(r.self) || r.config.Policy.Reach.Serves()
}

// lacks names the condition of a peer without a leader.
func (r *roster) lacks() condition.Name {
	if _, known := r.founded(); !known && !r.founds() {
		return condition.NoGroup
	}
	return condition.NoQuorum
}

// compare tells the operator that the configured founders are not those of this peer's group.
func (r *roster) compare() {
	c, known := r.founded()
	n := r.config.Network
	if !known || n.Mode == Unlisted || c.Network == n.ID() {
		return
	}
	without := func(all, some []peer.ID) []peer.ID {
		return slices.DeleteFunc(slices.Clone(all), func(id peer.ID) bool { return slices.Contains(some, id) })
	}
	r.config.Logger.Warn("coordination.founders differs from the founders of this peer's group, which stays as it is: "+
		"an added peer becomes a candidate for membership, and a removed member leaves as coordination.members says",
		"group", c.GroupID(), "added", without(n.Founders, c.Founders()), "removed", without(c.Founders(), n.Founders))
}
