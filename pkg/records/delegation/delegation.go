// Package delegation has the signed word of a provider that another key offers for it. A provider with more than
// records.MaxPerProvider offers has delegates: peers with keys of their own. Each record of a delegate carries the delegation. The name of
// an offer stays that of its signer.
package delegation

import (
	"encoding/base64"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// MaxLife bounds the life of a delegation.
const MaxLife = 366 * 24 * time.Hour

// Signed is a verified delegation. It is immutable.
type Signed struct {
	Provider peer.ID
	Delegate peer.ID
	Issued   time.Time
	Expires  time.Time
	message  *pb.Delegation
}

// Sign states, in a network, that delegate offers for the owner of the key. The error is Invalid and names "delegate" or "for".
func Sign(n network.Name, key crypto.PrivKey, delegate peer.ID, issued time.Time, life time.Duration) (*Signed, error) {
	const op = "delegation.Sign"
	if life <= 0 || life > MaxLife {
		return nil, fault.Wrap(op, fault.Invalidf("for", life, "must be positive and at most %v", MaxLife))
	}
	by, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pb.DelegationTerms{
		Delegate: []byte(delegate), IssuedMs: uint64(issued.UnixMilli()), ExpiresMs: uint64(issued.Add(life).UnixMilli()),
	})
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	signature, err := key.Sign(append(domain(n), content...))
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	s, err := Open(n, &pb.Delegation{Terms: content, By: []byte(by), Signature: signature})
	return s, fault.Wrap(op, err)
}

// Parse reads and verifies the text of a delegation of a network. Errors are Invalid.
func Parse(n network.Name, text string) (*Signed, error) {
	m := new(pb.Delegation)
	data, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || proto.Unmarshal(data, m) != nil {
		return nil, fault.Invalidf("", nil, "is damaged: copy the whole line of blackholed offer delegate")
	}
	return Open(n, m)
}

// Text returns the delegation as one word, for Parse.
func (s *Signed) Text() string {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.message)
	if err != nil {
		panic("delegation: a verified delegation does not encode: " + err.Error()) // impossible: it was decoded
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// Message returns the delegation as signed. The caller must not modify it.
func (s *Signed) Message() *pb.Delegation { return s.message }

// domain is what the signatures of delegations begin with.
func domain(n network.Name) []byte { return []byte(n.Domain("delegation") + ":") }

// Open verifies a delegation of a network, without regard to the time. Errors are Invalid.
func Open(n network.Name, m *pb.Delegation) (*Signed, error) {
	content := new(pb.DelegationTerms)
	by := peer.ID(m.By)
	key := keyOf(by)
	if key == nil || proto.Unmarshal(m.Terms, content) != nil {
		return nil, fault.Invalidf("", nil, "is no delegation of a provider with an Ed25519 key")
	}
	if ok, err := key.Verify(append(domain(n), m.Terms...), m.Signature); err != nil || !ok {
		return nil, fault.Invalidf("", nil, "was not signed by %s for the network %s, or is damaged: let blackholed offer delegate sign with the settings of that network, and copy the whole line", by, n)
	}
	const latest = 1 << 47 // milliseconds: the year 6429
	delegate, issued, expires := peer.ID(content.Delegate), content.IssuedMs, content.ExpiresMs
	switch {
	case keyOf(delegate) == nil:
		return nil, fault.Invalidf("delegate", nil, "must be the peer id of an Ed25519 key")
	case delegate == by:
		return nil, fault.Invalidf("delegate", delegate.String(), "must be another peer than the provider")
	case expires > latest || issued >= expires || expires-issued > uint64(MaxLife.Milliseconds()):
		return nil, fault.Invalidf("expires_ms", expires, "must be at most %v after issued_ms", MaxLife)
	}
	return &Signed{
		Provider: by, Delegate: delegate, Issued: time.UnixMilli(int64(issued)).UTC(), Expires: time.UnixMilli(int64(expires)).UTC(), message: m,
	}, nil
}

// keyOf returns the Ed25519 key in a peer id; nil without one.
func keyOf(id peer.ID) crypto.PubKey {
	key, err := id.ExtractPublicKey()
	if err != nil || key.Type() != crypto.Ed25519 {
		return nil
	}
	return key
}

// Valid requires the delegation to be for a delegate, and to hold from one time to another. The error is Invalid.
func (s *Signed) Valid(delegate peer.ID, from, to time.Time) error {
	switch {
	case s.Delegate != delegate:
		return fault.Invalidf("", s.Delegate.String(), "is for the delegate %s, not for %s", s.Delegate, delegate)
	case s.Issued.After(from):
		return fault.Invalidf("", s.Issued, "begins in the future, at %s: check the clocks", s.Issued.Format(time.RFC3339))
	case s.Expires.Before(to):
		return fault.Invalidf("", s.Expires, "ended at %s: ask %s for a new one", s.Expires.Format(time.RFC3339), s.Provider)
	}
	return nil
}
