package herald

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/group/founding"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	maxMessage = founding.MaxCertificateBytes + 16<<10 // a certificate and 64 members
	perSecond  = 1                                     // announcements of one peer
	burst      = 10
	maxSigners = 256
	// window is how far the clock of who announces may be from ours. What is older is no news.
	window = 10 * time.Minute
)

// heard is an announcement that holds.
type heard struct {
	from peer.ID
	info *groupv1.GroupInfo
}

// judge tells announcements that hold from others. It is safe for concurrent use.
type judge struct {
	network founding.Network
	id      founding.NetworkID
	now     func() time.Time

	mu      sync.Mutex // guards what follows; not held while signatures are verified
	signers *lru.LRU[peer.ID, *signer]
	proof   []byte // the last certificate that was found good
	group   founding.GroupID
}

// signer is the account of one who announces.
type signer struct {
	last  uint64
	rates *rate.Limiter
}

func newJudge(n founding.Network, now func() time.Time) *judge {
	signers, err := lru.NewLRU[peer.ID, *signer](maxSigners, nil)
	if err != nil {
		panic("herald: " + err.Error()) // impossible: the size is a positive constant
	}
	return &judge{network: n, id: n.ID(), now: now, signers: signers}
}

// weigh judges a message: Reject what no honest peer forwards, Ignore what is no news.
func (j *judge) weigh(m *pubsub.Message) (heard, pubsub.ValidationResult) {
	data := m.GetData()
	if len(data) > maxMessage || len(m.ProtoReflect().GetUnknown()) > 0 {
		return heard{}, pubsub.ValidationReject
	}
	a := new(groupv1.Announcement)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, a); err != nil || proto.Size(a) != len(data) {
		return heard{}, pubsub.ValidationReject
	}
	from := peer.ID(a.GetPeer())
	if !j.network.Eligible(from) || !signed(from, digest(j.id, a), a.GetSignature()) {
		return heard{}, pubsub.ValidationReject
	}
	info := new(groupv1.GroupInfo)
	if proto.Unmarshal(a.GetInfo(), info) != nil || !j.proves(info) {
		return heard{}, pubsub.ValidationReject
	}
	if !j.admits(from, a.GetSequence()) {
		return heard{}, pubsub.ValidationIgnore
	}
	return heard{from, info}, pubsub.ValidationAccept
}

// proves reports whether the certificate in the information founds the group that it is about.
func (j *judge) proves(info *groupv1.GroupInfo) bool {
	j.mu.Lock()
	known, group := bytes.Equal(j.proof, info.GetCertificate()) && len(j.proof) > 0, j.group
	j.mu.Unlock()
	if !known {
		c, err := j.network.Open(info.GetCertificate())
		if err != nil {
			return false
		}
		group = c.GroupID()
		j.mu.Lock()
		j.proof, j.group = info.GetCertificate(), group
		j.mu.Unlock()
	}
	return bytes.Equal(group[:], info.GetGroupId())
}

// admits reports whether an announcement is news, and not too many of one peer.
func (j *judge) admits(from peer.ID, sequence uint64) bool {
	now := j.now()
	if at := time.UnixMilli(int64(sequence)); at.Before(now.Add(-window)) || at.After(now.Add(window)) {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s, ok := j.signers.Get(from)
	if !ok {
		s = &signer{rates: rate.NewLimiter(perSecond, burst)}
		j.signers.Add(from, s)
	}
	if sequence <= s.last || !s.rates.AllowN(now, 1) {
		return false
	}
	s.last = sequence
	return true
}

// digest is what who announces signs.
func digest(network founding.NetworkID, a *groupv1.Announcement) []byte {
	h := sha256.New()
	h.Write([]byte("bh-announce"))
	h.Write(network[:])
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

// announcement makes the message of one who leads.
func announcement(key crypto.PrivKey, network founding.NetworkID, sequence uint64, info *groupv1.GroupInfo) ([]byte, error) {
	const op = "herald.announcement"
	self, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(info)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	a := &groupv1.Announcement{Info: b, Peer: []byte(self), Sequence: sequence}
	if a.Signature, err = key.Sign(digest(network, a)); err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	b, err = proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err == nil && len(b) > maxMessage {
		err = fault.New("", fault.TooLarge, "has %d bytes, at most %d", len(b), maxMessage)
	}
	return b, fault.As(op, fault.Internal, err)
}
