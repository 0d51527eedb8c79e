// Package announce publishes the coordination group in the DHT, for peers of its network that have no peer to ask.
// The leader writes changes at once, and repeats itself from time to time. An announcement carries the group's
// membership and the leader's signature. It is as good as the signer's answer to a question, no better.
package announce

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	maxMessage = bootstrap.MaxMembershipBytes + 16<<10 // a membership and 64 members
	// window bounds how far the clock of an announcer may be ahead.
	window = 10 * time.Minute
)

// verified is a verified announcement.
type verified struct {
	from     peer.ID
	sequence uint64
	info     *groupv1.GroupInfo
}

// at returns its time, by its signer's clock.
func (h verified) at() time.Time { return time.UnixMilli(int64(h.sequence)) }

// verify verifies an announcement of any origin: an eligible peer must have signed it, and its
// membership must be the one of its group.
//
// Errors: TooLarge; Invalid; Unauthentic; Forbidden for the valid announcement of a peer that is not eligible: a
// member that is no founder, or a peer of which the forwarding peer knows more.
func verify(n bootstrap.Network, data []byte) (verified, error) {
	if len(data) > maxMessage {
		return verified{}, fault.New("", fault.TooLarge, "an announcement has %d bytes, at most %d", len(data), maxMessage)
	}
	a := new(groupv1.Announcement)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, a); err != nil || proto.Size(a) != len(data) {
		return verified{}, fault.New("", fault.Invalid, "not an announcement")
	}
	from := peer.ID(a.GetPeer())
	if !signed(from, digest(n, a), a.GetSignature()) {
		return verified{}, fault.New("", fault.Unauthentic, "not the signature of the peer that it names")
	}
	if !n.Eligible(from) {
		return verified{}, fault.New("", fault.Forbidden, "the signer is not eligible")
	}
	info := new(groupv1.GroupInfo)
	if err := proto.Unmarshal(a.GetInfo(), info); err != nil {
		return verified{}, fault.New("", fault.Invalid, "tells nothing of a group")
	}
	m, err := n.Recognize(info.GetMembership()) // the eligible signer vouches for it
	if err != nil {
		return verified{}, err
	}
	if id := m.GroupID(); !bytes.Equal(id[:], info.GetGroupId()) {
		return verified{}, fault.New("", fault.Unauthentic, "the membership founds another group")
	}
	return verified{from, a.GetSequence(), info}, nil
}

// sequence numbers the announcements of this peer by its clock. It is safe for concurrent use.
type sequence struct {
	mu   sync.Mutex
	last uint64
}

func (s *sequence) next(now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last+1, uint64(now.UnixMilli()))
	return s.last
}

// digest returns the signed bytes of an announcement.
func digest(n bootstrap.Network, a *groupv1.Announcement) []byte {
	h, id := sha256.New(), n.ID()
	h.Write([]byte(n.Name.Domain("announcement")))
	h.Write(id[:])
	h.Write(binary.BigEndian.AppendUint64(nil, a.GetSequence()))
	h.Write(a.GetInfo())
	return h.Sum(nil)
}

func signed(p peer.ID, digest, signature []byte) bool {
	key, err := p.ExtractPublicKey()
	if err != nil {
		return false
	}
	ok, err := key.Verify(digest, signature)
	return err == nil && ok
}

// sign encodes and signs a leader's announcement.
func sign(key crypto.PrivKey, n bootstrap.Network, sequence uint64, info *groupv1.GroupInfo) ([]byte, error) {
	const op = "announce.sign"
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(info)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	a := &groupv1.Announcement{Info: b, Peer: []byte(self), Sequence: sequence}
	if a.Signature, err = key.Sign(digest(n, a)); err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	b, err = proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err == nil && len(b) > maxMessage {
		err = fault.New("", fault.TooLarge, "has %d bytes, at most %d", len(b), maxMessage)
	}
	return b, fault.As(op, fault.Internal, err)
}
