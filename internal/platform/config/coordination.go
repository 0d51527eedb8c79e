package config

import (
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Values of coordination.members.
const (
	AutoMembers   = auto
	ListedMembers = listed
	NoMembers     = "none"
)

const (
	auto   = "auto"
	listed = "listed"
	byKey  = "key"
)

// maxFounders bounds the initial voters of a group.
const maxFounders = 9

func (c *Coordination) validate() error {
	return firstError(
		oneOf("coordination.enabled", c.Enabled, auto, "true", "false"),
		c.validateMembers(),
		peers("coordination.founders", c.Founders),
		between("coordination.expect", c.Expect, 0, maxFounders),
		oneOf("coordination.voters", c.Voters, 1, 3, 5),
		oneOf("coordination.clients", c.Clients, auto, "network", byKey, listed),
		peers("coordination.allow", c.Allow),
		between("coordination.replace", c.Replace, 5*time.Second, 72*time.Hour),
		c.Limits.validate(),
		c.fewFounders(),
	)
}

func (l *GroupLimits) validate() error {
	const many, large = 10_000_000, 1 << 40
	return firstError(
		between("coordination.limits.leases", l.Leases, 0, many),
		between("coordination.limits.clients", l.Clients, 0, many),
		between("coordination.limits.keys", l.Keys, 0, many),
		between("coordination.limits.bytes", l.Bytes, 0, large),
		between("coordination.limits.queue", l.Queue, 0, 1_000_000),
		between("coordination.limits.leases_per_owner", l.LeasesPerOwner, 0, many),
		between("coordination.limits.claims_per_owner", l.ClaimsPerOwner, 0, many),
		between("coordination.limits.bytes_per_owner", l.BytesPerOwner, 0, large),
		between("coordination.limits.unleased_keys_per_owner", l.UnleasedKeysPerOwner, 0, many),
		between("coordination.limits.unleased_bytes_per_owner", l.UnleasedBytesPerOwner, 0, large),
		between("coordination.limits.clients_per_owner", l.ClientsPerOwner, 0, many),
		between("coordination.limits.reserved_percent", l.ReservedPercent, 0, 90),
		between("coordination.limits.history_events", l.HistoryEvents, 0, many),
		between("coordination.limits.history_bytes", l.HistoryBytes, 0, large),
	)
}

func (c *Coordination) fewFounders() error {
	if len(c.Founders) > maxFounders {
		return fault.Invalidf("coordination.founders", len(c.Founders), "must be at most %d", maxFounders)
	}
	if len(c.Founders) > 0 && c.Expect > 0 {
		return fault.Invalidf("coordination.expect", c.Expect, "needs no founders: coordination.founders names them")
	}
	return nil
}

func (c *Coordination) validateMembers() error {
	if c.Members == "" {
		return nil
	}
	return oneOf("coordination.members", c.Members, AutoMembers, ListedMembers, NoMembers)
}

// MemberPolicy returns the policy of a peer with this profile.
func (c *Coordination) MemberPolicy(profile string) string {
	switch {
	case c.Members != "":
		return c.Members
	case profile == "public":
		return ListedMembers
	}
	return AutoMembers
}

// On reports whether a peer with this profile takes part in coordination, with or without the key of the network.
func (c *Coordination) On(profile string, key bool) bool {
	if c.Enabled == auto {
		return profile != "public" || key || len(c.Founders) > 0
	}
	return c.Enabled == "true"
}

// ByKey reports whether a peer that proves the key of the network may be a client.
func (c *Coordination) ByKey(profile string, auth bool) bool {
	return c.Clients == byKey || c.Clients == auto && !c.Open(profile, auth)
}

// Open reports whether any peer of the network may be a client. Where callers authenticate, a user of the host must not
// get around that with a peer of his own.
func (c *Coordination) Open(profile string, auth bool) bool {
	if c.Clients == auto {
		return profile == "dev" && !auth
	}
	return c.Clients == "network"
}

// peers requires valid peer ids without duplicates.
func peers(key string, ids []string) error {
	seen := map[peer.ID]bool{}
	for _, s := range ids {
		id, err := peer.Decode(s)
		if err != nil {
			return fault.Invalidf(key, s, "is not a peer id: %v", err)
		}
		if seen[id] {
			return fault.Invalidf(key, s, "is listed twice")
		}
		seen[id] = true
	}
	return nil
}
