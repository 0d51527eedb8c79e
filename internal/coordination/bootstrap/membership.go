package bootstrap

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// GroupID is the SHA-256 of a group's initial membership.
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

// Membership is the initial membership of a group.
type Membership struct {
	Network NetworkID
	Voters  []Voter // 1 to MaxFounders, ascending by peer id
	Nonce   []byte  // 16 bytes of a peer that founded alone; none with listed founders
}

const nonceBytes = 16

// Membership returns the initial membership of listed founders, which every peer derives alike.
func (n Network) Membership() Membership {
	m := Membership{Network: n.ID()}
	for _, p := range n.founders() {
		m.Voters = append(m.Voters, Voter{Peer: p, RaftID: raftID(m.Network, p)})
	}
	return m
}

// Alone returns the membership of a peer that founds a group of one.
func (n Network) Alone(self Voter) Membership {
	nonce := make([]byte, nonceBytes)
	_, _ = rand.Read(nonce) // never fails
	return Membership{Network: n.ID(), Voters: []Voter{self}, Nonce: nonce}
}

// raftID returns the raft id of a listed founder with its first disk: a number that raft and its log accept.
func raftID(n NetworkID, p peer.ID) uint64 {
	h := sha256.New()
	h.Write([]byte("bh-raft-id"))
	h.Write(n[:])
	h.Write([]byte(p))
	return max(binary.BigEndian.Uint64(h.Sum(nil))>>1, 1)
}

// Listed reports whether the group has listed founders.
func (m Membership) Listed() bool { return len(m.Nonce) == 0 }

// founder returns the peer of a group that is not listed.
func (m Membership) founder() peer.ID { return m.Voters[0].Peer }

// Founders returns the peers of the voters.
func (m Membership) Founders() []peer.ID {
	all := make([]peer.ID, len(m.Voters))
	for i, v := range m.Voters {
		all[i] = v.Peer
	}
	return all
}

// GroupID returns the id of the group.
func (m Membership) GroupID() GroupID { return sha256.Sum256(m.Encode()) }

// Voter returns p's entry among the voters.
func (m Membership) Voter(p peer.ID) (Voter, bool) {
	i := slices.IndexFunc(m.Voters, func(v Voter) bool { return v.Peer == p })
	if i < 0 {
		return Voter{}, false
	}
	return m.Voters[i], true
}

// Encode returns the canonical encoding: a groupv1.InitialMembership, written by hand, because the protobuf
// library guarantees no stable bytes.
func (m Membership) Encode() []byte {
	b := appendBytes(nil, 1, m.Network[:])
	for _, v := range m.Voters {
		b = appendBytes(b, 2, protowire.AppendVarint(protowire.AppendTag(appendBytes(nil, 1, []byte(v.Peer)), 2, protowire.VarintType), v.RaftID))
	}
	if len(m.Nonce) > 0 {
		b = appendBytes(b, 3, m.Nonce)
	}
	return b
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// MaxMembershipBytes bounds an encoded membership.
const MaxMembershipBytes = 1 << 10

// DecodeMembership decodes the canonical encoding only. It says nothing about the right of the voters: see Recognize.
//
// Errors: TooLarge; Invalid.
func DecodeMembership(b []byte) (Membership, error) {
	const op = "bootstrap.DecodeMembership"
	var m Membership
	if len(b) > MaxMembershipBytes {
		return m, fault.New(op, fault.TooLarge, "membership has %d bytes, at most %d", len(b), MaxMembershipBytes)
	}
	w := new(groupv1.InitialMembership)
	if err := proto.Unmarshal(b, w); err != nil {
		return m, fault.New(op, fault.Invalid, "membership: %v", err)
	}
	copy(m.Network[:], w.GetNetwork())
	m.Nonce = w.GetNonce()
	for _, v := range w.GetVoters() {
		m.Voters = append(m.Voters, Voter{Peer: peer.ID(v.GetPeer()), RaftID: v.GetRaftId()})
	}
	if !bytes.Equal(m.Encode(), b) {
		return Membership{}, fault.New(op, fault.Invalid, "membership is not in canonical encoding")
	}
	return m, nil
}

// Open decodes a membership of any origin: the one that the settings of this peer list.
//
// Errors: as Recognize; Unauthentic for a membership of other founders, or of none.
func (n Network) Open(encoded []byte) (Membership, error) {
	m, err := n.Recognize(encoded)
	if err == nil && (!n.Listed() || m.GroupID() != n.Membership().GroupID()) {
		return Membership{}, fault.New("bootstrap.Open", fault.Unauthentic, "not the membership of the listed founders, and no trusted peer shows it")
	}
	return m, err
}

// Recognize decodes a membership that a trusted peer of the network shows. Its founders may differ from those of n.
//
// Errors: TooLarge and Invalid for anything but a membership of the network.
func (n Network) Recognize(encoded []byte) (Membership, error) {
	m, err := DecodeMembership(encoded)
	if err == nil {
		err = n.recognize(m)
	}
	return m, fault.Wrap("bootstrap.Recognize", err)
}

// recognize checks a membership against the name of the network.
func (n Network) recognize(m Membership) error {
	if len(m.Voters) == 0 {
		return fault.Invalidf("membership.voters", 0, "are missing")
	}
	if !m.Listed() {
		switch alone := (Network{Name: n.Name}).ID(); {
		case m.Network != alone:
			return fault.Invalidf("membership.network", m.Network.String(), "another network than ours, %s", alone)
		case len(m.Nonce) != nonceBytes:
			return fault.Invalidf("membership.nonce", len(m.Nonce), "must have %d bytes", nonceBytes)
		case len(m.Voters) != 1 || m.Voters[0].RaftID == 0:
			return fault.Invalidf("membership.voters", len(m.Voters), "must be one: nobody founds with others without a list")
		}
		if _, ok := publicKey(m.Voters[0].Peer); !ok {
			return fault.Invalidf("membership.voters", m.Voters[0].Peer.String(), "not the id of an Ed25519 key")
		}
		return nil
	}
	by := Network{Name: n.Name, Founders: m.Founders()}
	if err := by.Validate(); err != nil {
		return fault.In("membership", err)
	}
	if !slices.EqualFunc(by.Membership().Voters, m.Voters, func(a, b Voter) bool { return a == b }) || by.ID() != m.Network {
		return fault.Invalidf("membership.network", m.Network.String(), "not the membership of its founders in network %q", n.Name)
	}
	return nil
}
