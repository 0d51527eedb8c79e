package bootstrap

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// GroupID is the SHA-256 of a group's initial membership. Signers do not enter, so all certificates of one
// membership name one group.
type GroupID [sha256.Size]byte

// String returns the id in hex.
func (id GroupID) String() string { return hex.EncodeToString(id[:]) }

// LogValue shows the id in hex in every form of the log.
func (id GroupID) LogValue() slog.Value { return slog.StringValue(id.String()) }

// IsZero reports the absence of a group.
func (id GroupID) IsZero() bool { return id == GroupID{} }

// Voter is a voting peer with the raft id of its data directory.
type Voter struct {
	Peer   peer.ID
	RaftID uint64 // never 0
}

// Membership is the initial membership of a group, the outcome of its bootstrap.
type Membership struct {
	Network  NetworkID
	Eligible int      // E of the network
	Voters   []Voter  // 1 to MaxVoters, ascending by peer id, distinct in both fields
	Nonce    [16]byte // distinguishes otherwise equal memberships
	Proposer peer.ID  // of this membership

	// Founders are the eligible peers of the mode Listed, ascending; none in the mode Unlisted. With them every peer
	// of the network can check a certificate, whatever its own definition of the network.
	Founders []peer.ID
}

// ID returns the id of the group.
func (c Membership) ID() GroupID { return sha256.Sum256(c.Encode()) }

// Voter returns p's entry among the voters.
func (c Membership) Voter(p peer.ID) (Voter, bool) {
	for _, v := range c.Voters {
		if v.Peer == p {
			return v, true
		}
	}
	return Voter{}, false
}

// Encode returns the canonical encoding: a groupv1.InitialMembership, written by hand, because the protobuf
// library guarantees no stable bytes.
func (c Membership) Encode() []byte {
	b := appendBytes(nil, 1, c.Network[:])
	b = appendUint(b, 2, uint64(c.Eligible))
	for _, v := range c.Voters {
		b = appendBytes(b, 3, appendUint(appendBytes(nil, 1, []byte(v.Peer)), 2, v.RaftID))
	}
	b = appendBytes(b, 4, c.Nonce[:])
	b = appendBytes(b, 5, []byte(c.Proposer))
	for _, p := range c.Founders {
		b = appendBytes(b, 6, []byte(p))
	}
	return b
}

// decodeMembership decodes the canonical encoding only. Network.checkMembership checks the content.
func decodeMembership(b []byte) (Membership, error) {
	var c Membership
	if len(b) > maxMembershipBytes {
		return c, fault.New("", fault.TooLarge, "membership has %d bytes, at most %d", len(b), maxMembershipBytes)
	}
	m := new(groupv1.InitialMembership)
	if err := proto.Unmarshal(b, m); err != nil {
		return c, fault.New("", fault.Invalid, "membership: %v", err)
	}
	copy(c.Network[:], m.GetNetwork())
	copy(c.Nonce[:], m.GetNonce())
	c.Eligible = int(m.GetEligible())
	c.Proposer = peer.ID(m.GetProposer())
	for _, v := range m.GetVoters() {
		c.Voters = append(c.Voters, Voter{Peer: peer.ID(v.GetPeer()), RaftID: v.GetRaftId()})
	}
	for _, p := range m.GetFounders() {
		c.Founders = append(c.Founders, peer.ID(p))
	}
	if !bytes.Equal(c.Encode(), b) {
		return Membership{}, fault.New("", fault.Invalid, "membership is not in canonical encoding")
	}
	return c, nil
}

const maxMembershipBytes = 4 << 10

// checkMembership returns the reason for which no peer of the network may accept c; nil if all may.
func (n Network) checkMembership(c Membership) error {
	if c.Network != n.ID() {
		return fault.Invalidf("membership.network", c.Network.String(), "another network than ours, %s", n.ID())
	}
	if c.Eligible != n.Size() {
		return fault.Invalidf("membership.eligible", c.Eligible, "must be %d", n.Size())
	}
	if !slices.Equal(c.Founders, n.founders()) {
		return fault.Invalidf("membership.founders", len(c.Founders), "must be the %d founders of the network, ascending", len(n.founders()))
	}
	if len(c.Voters) == 0 || len(c.Voters) > min(MaxVoters, n.Size()) {
		return fault.Invalidf("membership.voters", len(c.Voters), "must be 1 to %d", min(MaxVoters, n.Size()))
	}
	if !n.Eligible(c.Proposer) {
		return fault.Invalidf("membership.proposer", c.Proposer.String(), "not eligible")
	}
	ids := make(map[uint64]bool, len(c.Voters))
	for i, v := range c.Voters {
		switch {
		case !n.Eligible(v.Peer):
			return fault.Invalidf("membership.voters", v.Peer.String(), "not eligible")
		case i > 0 && v.Peer <= c.Voters[i-1].Peer:
			return fault.Invalidf("membership.voters", v.Peer.String(), "not in ascending order")
		case v.RaftID == 0 || ids[v.RaftID]:
			return fault.Invalidf("membership.voters", v.RaftID, "raft ids must be distinct and above 0")
		}
		ids[v.RaftID] = true
	}
	return nil
}

// appendBytes and appendUint omit zero values, like proto3.
func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendUint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}
