package bootstrap

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// MaxCertificateBytes bounds an encoded certificate.
const MaxCertificateBytes = 16 << 10

// Ballot is the number of a Paxos proposal. The zero ballot precedes all others.
type Ballot struct {
	Round uint64
	Peer  peer.ID // the proposer, which makes the ballot unique
}

// Compare orders ballots by round, then by peer.
func (b Ballot) Compare(other Ballot) int {
	return cmp.Or(cmp.Compare(b.Round, other.Round), strings.Compare(string(b.Peer), string(other.Peer)))
}

// IsZero reports the absence of a ballot.
func (b Ballot) IsZero() bool { return b == Ballot{} }

// digest returns the signed bytes of an acceptance. The parts after the domain have fixed lengths.
func (n Network) digest(b Ballot, id NetworkID, group GroupID) []byte {
	h := sha256.New()
	h.Write([]byte(n.Name.Domain("acceptance")))
	h.Write(id[:])
	h.Write(binary.BigEndian.AppendUint64(nil, b.Round))
	h.Write([]byte(b.Peer))
	h.Write(group[:])
	return h.Sum(nil)
}

// Signature is a peer's acceptance of a membership at a ballot.
type Signature struct {
	Peer  peer.ID
	Bytes []byte // Ed25519, over the hash of the domain "acceptance", network id, ballot and group id
}

// Certificate proves the choice of an initial membership.
type Certificate struct {
	Membership Membership
	Ballot     Ballot      // of all signatures
	Signatures []Signature // a majority of E or more, ascending by peer id
}

// GroupID returns the id of the certified group.
func (c Certificate) GroupID() GroupID { return c.Membership.ID() }

// Encode returns the canonical encoding: a groupv1.Certificate.
func (c Certificate) Encode() []byte {
	b := appendBytes(nil, 1, c.Membership.Encode())
	b = appendBytes(b, 2, appendBytes(appendUint(nil, 1, c.Ballot.Round), 2, []byte(c.Ballot.Peer)))
	for _, s := range c.Signatures {
		b = appendBytes(b, 3, appendBytes(appendBytes(nil, 1, []byte(s.Peer)), 2, s.Bytes))
	}
	return b
}

// decodeCertificate decodes the canonical encoding only. It verifies nothing.
func decodeCertificate(b []byte) (Certificate, error) {
	var c Certificate
	if len(b) > MaxCertificateBytes {
		return c, fault.New("", fault.TooLarge, "certificate has %d bytes, at most %d", len(b), MaxCertificateBytes)
	}
	m := new(groupv1.Certificate)
	if err := proto.Unmarshal(b, m); err != nil {
		return c, fault.New("", fault.Invalid, "certificate: %v", err)
	}
	var err error
	if c.Membership, err = decodeMembership(m.GetMembership()); err != nil {
		return Certificate{}, err
	}
	c.Ballot = Ballot{Round: m.GetBallot().GetRound(), Peer: peer.ID(m.GetBallot().GetPeer())}
	for _, s := range m.GetSignatures() {
		c.Signatures = append(c.Signatures, Signature{Peer: peer.ID(s.GetPeer()), Bytes: s.GetSignature()})
	}
	if !bytes.Equal(c.Encode(), b) {
		return Certificate{}, fault.New("", fault.Invalid, "certificate is not in canonical encoding")
	}
	return c, nil
}

// Open decodes and verifies a certificate of any origin.
//
// Errors: TooLarge and Invalid for anything but a certificate of this network, Unauthentic for a certificate
// without proof.
func (n Network) Open(encoded []byte) (Certificate, error) {
	const op = "bootstrap.Open"
	c, err := decodeCertificate(encoded)
	if err != nil {
		return Certificate{}, fault.Wrap(op, err)
	}
	if err := n.Verify(c); err != nil {
		return Certificate{}, fault.Wrap(op, err)
	}
	return c, nil
}

// Recognize decodes a certificate that a trusted peer of the network shows, and checks that it proves itself: its own
// founders signed it. They may differ from those of n.
//
// Errors: as Open.
func (n Network) Recognize(encoded []byte) (Certificate, error) {
	const op = "bootstrap.Recognize"
	c, err := decodeCertificate(encoded)
	if err != nil {
		return Certificate{}, fault.Wrap(op, err)
	}
	if err := n.recognize(c); err != nil {
		return Certificate{}, fault.Wrap(op, err)
	}
	return c, nil
}

// recognize is Verify for the founders that c names.
func (n Network) recognize(c Certificate) error {
	by := Network{Name: n.Name, Mode: Listed, Founders: c.Membership.Founders}
	if len(by.Founders) == 0 {
		by = Network{Name: n.Name, Mode: Unlisted, Expect: c.Membership.Eligible}
	}
	if err := by.Validate(); err != nil {
		return err
	}
	return by.Verify(c)
}

// Verify checks that c proves the choice of its membership: one that this network allows, signed at one ballot
// by a majority of E distinct eligible peers.
//
// Errors: Invalid for a membership or ballot that this network does not allow, Unauthentic for missing,
// doubled, ineligible or false signatures.
func (n Network) Verify(c Certificate) error {
	if err := n.checkMembership(c.Membership); err != nil {
		return err
	}
	if c.Ballot.Round == 0 || !n.Eligible(c.Ballot.Peer) {
		return fault.Invalidf("ballot", c.Ballot, "not a ballot of an eligible peer")
	}
	if len(c.Signatures) < n.Quorum() || len(c.Signatures) > n.Size() {
		return unauthentic(len(c.Signatures), "a certificate has %d to %d signatures", n.Quorum(), n.Size())
	}
	digest := n.digest(c.Ballot, c.Membership.Network, c.GroupID())
	for i, s := range c.Signatures {
		if i > 0 && s.Peer <= c.Signatures[i-1].Peer {
			return unauthentic(s.Peer.String(), "signers must be distinct and in ascending order")
		}
		if !n.signed(s, digest) {
			return unauthentic(s.Peer.String(), "not the signature of an eligible peer")
		}
	}
	return nil
}

// signedBy reports whether s is an eligible peer's signature of digest.
func (n Network) signed(s Signature, digest []byte) bool {
	key, ok := publicKey(s.Peer)
	return ok && n.Eligible(s.Peer) && ed25519.Verify(key, digest, s.Bytes)
}

func unauthentic(value any, format string, args ...any) error {
	e := fault.Invalidf("signatures", value, format, args...)
	e.Kind = fault.Unauthentic
	return e
}

// Conflict holds valid certificates of two groups of one network. They prove a broken rule: more than E peers
// voted, or a voter lied or lost its state.
type Conflict struct {
	Ours   Certificate // known first
	Theirs Certificate
}

// Compare returns the conflict of two certificates; false if either is invalid, or both certify the same
// group.
func (n Network) Compare(ours, theirs Certificate) (Conflict, bool) {
	if ours.GroupID() == theirs.GroupID() || n.recognize(ours) != nil || n.recognize(theirs) != nil {
		return Conflict{}, false
	}
	return Conflict{Ours: ours, Theirs: theirs}, true
}

// Suspects returns the signers of both certificates, in ascending order: one of them, or a proposer of the two
// ballots, broke the rules. It is empty if more than E peers voted.
func (r Conflict) Suspects() []peer.ID {
	var both []peer.ID
	for _, a := range r.Ours.Signatures {
		for _, b := range r.Theirs.Signatures {
			if a.Peer == b.Peer {
				both = append(both, a.Peer)
			}
		}
	}
	return both
}
