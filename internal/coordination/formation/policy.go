package formation

import (
	"context"
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
	// Founds says, in a network without founders, that this peer may found the group: it knows no way to other peers, or expects some.
	Founds bool
	Expect int // see bootstrap.Options
	// Settle is the wait for neighbours that may found too. The lowest of them founds.
	Settle time.Duration
	// Serves reports whether others can dial this peer, as far as it knows. Members dial each other, so unlisted peers offer
	// themselves only if it is true. nil means true.
	Serves func() bool
	// Dial returns nil if this peer can connect to another one, by a connection that this peer opens. A candidate that the
	// leader cannot dial must not vote. nil: it can.
	Dial func(context.Context, peer.ID) error
}

// Access defines the peers that may call this peer's member, besides the eligible ones of a list, and the peers that
// it believes.
type Access struct {
	Open  bool     // every peer
	Allow []string // peer ids
	// Proves returns nil for a connected peer that has the key of the network. It may ask the peer. Forbidden: the peer
	// has no key. nil: no peer is a client by its key.
	Proves func(context.Context, peer.ID) error
	// Trusts returns nil for a connected peer whose word on the group counts, besides founders and members. It may ask
	// the peer. nil: every peer's word counts if Open.
	Trusts func(context.Context, peer.ID) error
}

// Roster decides which peers may be members of the group, which may call its members, and whose word on it counts.
type Roster struct {
	Network bootstrap.Network
	Policy  Policy
	Access  Access
	Self    peer.ID
	Has     func(peer.ID) bool                  // whether a peer is a member, as far as this peer knows
	Group   func() (bootstrap.Membership, bool) // the initial membership of the group, if it is known
}

// Joins reports whether this peer may be a member, so that it needs a disk. A member of the past, with a log, goes on: only
// the group removes it.
func (r *Roster) Joins(hasLog bool) bool {
	return !r.isClient() && (hasLog || r.Founds() || r.Policy.Members == TrustedMembers || r.Lists(r.Self))
}

func (r *Roster) isClient() bool { return r.Policy.Client || r.Policy.Members == NoMembers }

// Founds reports whether this peer takes part in the bootstrap.
func (r *Roster) Founds() bool {
	return !r.isClient() && (!r.Network.Listed() && r.Policy.Founds || slices.Contains(r.Network.Founders, r.Self))
}

// Lists reports whether the configuration names a peer as a possible member.
func (r *Roster) Lists(id peer.ID) bool {
	return slices.Contains(r.Network.Founders, id) || slices.Contains(r.Access.Allow, id.String())
}

// Keeps reports whether a member may stay one. Without a list of founders, the first voters may.
func (r *Roster) Keeps(id peer.ID) bool {
	if r.Policy.Members == TrustedMembers || r.Lists(id) {
		return true
	}
	m, ok := r.Group()
	_, first := m.Voter(id)
	return ok && first && !r.Network.Listed()
}

// Admits reports whether a peer may become a member.
func (r *Roster) Admits(ctx context.Context, id peer.ID) bool {
	return r.Keeps(id) && (r.Lists(id) || r.Trusts(ctx, id) == nil)
}

// Trusts returns nil if a peer's word on the group counts: it is a founder or a member, or Access.Trusts says so.
// Errors: Forbidden; as Access.Trusts.
func (r *Roster) Trusts(ctx context.Context, id peer.ID) error {
	switch {
	case slices.Contains(r.Network.Founders, id), r.Has(id):
		return nil
	case r.Access.Trusts != nil:
		return r.Access.Trusts(ctx, id)
	case r.Access.Open:
		return nil
	}
	return fault.New("coordination.trusts", fault.Forbidden, "peer %s is neither a founder nor a member of the group", id)
}

// IsClient reports whether a peer may call the members of the group without a proof.
func (r *Roster) IsClient(p peer.ID) bool { return r.Access.Open || r.Lists(p) }

// Calls returns nil for a peer that may call this peer's member. Errors: Forbidden, field "peer"; as Access.Proves.
func (r *Roster) Calls(ctx context.Context, p peer.ID) error {
	if r.IsClient(p) {
		return nil
	}
	remedy := "add it to coordination.allow"
	if r.Access.Proves != nil {
		err := r.Access.Proves(ctx, p)
		if err == nil || fault.KindOf(err) != fault.Forbidden {
			return err
		}
		remedy = "it does not prove the key of the network; join it by an invitation, or add it to coordination.allow"
	}
	return &fault.Error{
		Kind: fault.Forbidden, Field: "peer", Value: p.String(), Err: fault.New("", fault.Forbidden, "not a client of this group: %s", remedy).Err,
	}
}

// Serves reports whether others can rely on this peer as a member.
func (r *Roster) Serves() bool { return r.Policy.Serves == nil || r.Lists(r.Self) || r.Policy.Serves() }

// Lacks names the condition of a peer without a leader.
func (r *Roster) Lacks() condition.Name {
	if _, known := r.Group(); !known && !r.Founds() {
		return condition.NoGroup
	}
	return condition.NoQuorum
}

// Changed returns the founders that the configuration adds to those of this peer's group, which stays as it is, and those that it
// lacks. False: they are the same.
func (r *Roster) Changed() (added, removed []peer.ID, changed bool) {
	m, known := r.Group()
	if !known || !r.Network.Listed() || m.Network == r.Network.ID() {
		return nil, nil, false
	}
	without := func(all, some []peer.ID) []peer.ID {
		return slices.DeleteFunc(slices.Clone(all), func(id peer.ID) bool { return slices.Contains(some, id) })
	}
	return without(r.Network.Founders, m.Founders()), without(m.Founders(), r.Network.Founders), true
}
