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

// Ballot is one try at a decision. The zero ballot comes before all.
type Ballot struct {
	Round uint64
	Peer  peer.ID // the proposer, so that no two share a ballot
}

// Compare orders ballots by round, then by peer.
func (b Ballot) Compare(other Ballot) int {
	return cmp.Or(cmp.Compare(b.Round, other.Round), strings.Compare(string(b.Peer), string(other.Peer)))
}

// IsZero reports whether b is no ballot.
func (b Ballot) IsZero() bool { return b == Ballot{} }

// digest is what an acceptor signs. Every part has a fixed length.
func (b Ballot) digest(network NetworkID, group GroupID) []byte {
	h := sha256.New()
	h.Write([]byte("bh-found"))
	h.Write(network[:])
	h.Write(binary.BigEndian.AppendUint64(nil, b.Round))
	h.Write([]byte(b.Peer))
	h.Write(group[:])
	return h.Sum(nil)
}

// Signature is one peer's word that it accepted a charter at a ballot.
type Signature struct {
	Peer  peer.ID
	Bytes []byte // Ed25519, over the hash of "bh-found", network, ballot and group id
}

// Certificate proves that a charter was chosen.
type Certificate struct {
	Membership Membership
	Ballot     Ballot      // at which all signed
	Signatures []Signature // a majority of E or more, ascending by peer id
}

// GroupID is the id of the group that the certificate founds.
func (c Certificate) GroupID() GroupID { return c.Membership.ID() }

// Encode gives the one encoding of the certificate: a groupv1.Certificate.
func (c Certificate) Encode() []byte {
	b := appendBytes(nil, 1, c.Membership.Encode())
	b = appendBytes(b, 2, appendBytes(appendUint(nil, 1, c.Ballot.Round), 2, []byte(c.Ballot.Peer)))
	for _, s := range c.Signatures {
		b = appendBytes(b, 3, appendBytes(appendBytes(nil, 1, []byte(s.Peer)), 2, s.Bytes))
	}
	return b
}

// decodeCertificate reads what Encode wrote and nothing else, and proves nothing.
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

// Open decodes and verifies a certificate that came from anywhere.
//
// Errors: TooLarge and Invalid for what is no certificate of this network,
// Unauthentic for one that proves nothing.
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

// Verify checks that c proves its charter chosen: a charter that this network may
// have, signed at one ballot by a majority of E distinct eligible peers.
//
// Errors: Invalid for a charter or ballot that this network cannot have,
// Unauthentic for signatures that are too few, doubled, not eligible or false.
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
	digest := c.Ballot.digest(c.Membership.Network, c.GroupID())
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

// signedBy reports whether s is an eligible peer's signature over digest.
func (n Network) signed(s Signature, digest []byte) bool {
	key, ok := publicKey(s.Peer)
	return ok && n.Eligible(s.Peer) && ed25519.Verify(key, digest, s.Bytes)
}

func unauthentic(value any, format string, args ...any) error {
	e := fault.Invalidf("signatures", value, format, args...)
	e.Kind = fault.Unauthentic
	return e
}

// Conflict are valid certificates of two groups of one network. They prove by
// themselves that the network's rules were broken: more peers voted than E
// allows, or one that voted lied or forgot.
type Conflict struct {
	Ours   Certificate // known first
	Theirs Certificate
}

// Compare finds out whether two certificates are rivals. It is false when either
// does not verify and when both found the same group.
func (n Network) Compare(ours, theirs Certificate) (Conflict, bool) {
	if ours.GroupID() == theirs.GroupID() || n.Verify(ours) != nil || n.Verify(theirs) != nil {
		return Conflict{}, false
	}
	return Conflict{Ours: ours, Theirs: theirs}, true
}

// Suspects are the peers that signed both, in ascending order: one of them, or a
// proposer of the two ballots, broke the rules. There is none when more than E
// peers voted.
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
