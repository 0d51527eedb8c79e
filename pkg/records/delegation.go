package records

import (
	"encoding/base64"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// A provider with more than MaxPerProvider offers has delegates: peers with keys of their own that offer for it. It says so in a signed
// statement, which each record of the delegate carries. The name of an offer stays that of its signer.

const (
	// MaxDelegates bounds the delegates of a provider that keepers count: a constant of the network.
	MaxDelegates = 32
	// MaxDelegation bounds the life of a statement.
	MaxDelegation = 366 * 24 * time.Hour

	maxDelegation = 512 // bytes of a statement
	keySize       = 32  // bytes of a key in the list of a manifest
)

// Delegation is the verified statement of a provider that the key of another peer offers for it. It is immutable.
type Delegation struct {
	Provider peer.ID
	Delegate peer.ID
	Issued   time.Time
	Expires  time.Time
	message  *pb.Delegation
}

// SignDelegation states, in a network, that delegate offers for the owner of the key. The error is Invalid and names "delegate" or "for".
func SignDelegation(n network.Name, key crypto.PrivKey, delegate peer.ID, issued time.Time, life time.Duration) (*Delegation, error) {
	const op = "records.SignDelegation"
	if life <= 0 || life > MaxDelegation {
		return nil, fault.Wrap(op, fault.Invalidf("for", life, "must be positive and at most %v", MaxDelegation))
	}
	by, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pb.DelegationStatement{
		Delegate: []byte(delegate), IssuedMs: uint64(issued.UnixMilli()), ExpiresMs: uint64(issued.Add(life).UnixMilli()),
	})
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	signature, err := key.Sign(append(delegationDomain(n), content...))
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	d, err := openDelegation(n, &pb.Delegation{Statement: content, By: []byte(by), Signature: signature})
	return d, fault.Wrap(op, err)
}

// ParseDelegation reads and verifies the text of a statement in a network. Errors are Invalid.
func ParseDelegation(n network.Name, text string) (*Delegation, error) {
	m := new(pb.Delegation)
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) > maxDelegation || proto.Unmarshal(data, m) != nil {
		return nil, fault.Invalidf("", nil, "is damaged: copy the whole line of blackholed offer delegate")
	}
	return openDelegation(n, m)
}

// Text returns the statement as one word, for ParseDelegation.
func (d *Delegation) Text() string {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(d.message)
	if err != nil {
		panic("records: a verified statement does not encode: " + err.Error()) // impossible: it was decoded
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// delegationDomain is what the signatures of statements begin with.
func delegationDomain(n network.Name) []byte { return []byte(n.Domain("delegation") + ":") }

// openDelegation verifies a statement, without regard to the time.
func openDelegation(n network.Name, m *pb.Delegation) (*Delegation, error) {
	content := new(pb.DelegationStatement)
	by, delegate := peer.ID(m.By), peer.ID("")
	if proto.Size(m) > maxDelegation || proto.Unmarshal(m.Statement, content) != nil || !isEd25519(by) {
		return nil, fault.Invalidf("", nil, "is no statement of a provider with an Ed25519 key")
	}
	key, err := by.ExtractPublicKey()
	if err != nil {
		return nil, fault.As("", fault.Invalid, err)
	}
	if ok, err := key.Verify(append(delegationDomain(n), m.Statement...), m.Signature); err != nil || !ok {
		return nil, fault.Invalidf("", nil, "is not signed by %s for the network %s", by, n)
	}
	delegate = peer.ID(content.Delegate)
	const latest = 1 << 47 // milliseconds: the year 6429
	issued, expires := content.IssuedMs, content.ExpiresMs
	switch {
	case !isEd25519(delegate):
		return nil, fault.Invalidf("delegate", nil, "must be the peer id of an Ed25519 key")
	case delegate == by:
		return nil, fault.Invalidf("delegate", delegate.String(), "must be another peer than the provider")
	case expires > latest || issued >= expires || expires-issued > uint64(MaxDelegation.Milliseconds()):
		return nil, fault.Invalidf("expires_ms", expires, "must be at most %v after issued_ms", MaxDelegation)
	}
	return &Delegation{
		Provider: by, Delegate: delegate, Issued: time.UnixMilli(int64(issued)).UTC(), Expires: time.UnixMilli(int64(expires)).UTC(), message: m,
	}, nil
}

// Valid requires the statement to be for a delegate and to hold from one time to another. The error is Invalid and says why it does not.
func (d *Delegation) Valid(delegate peer.ID, from, to time.Time) error {
	switch {
	case d.Delegate != delegate:
		return fault.Invalidf("", d.Delegate.String(), "is for the delegate %s, not for %s", d.Delegate, delegate)
	case d.Issued.After(from.Add(ClockSkew)):
		return fault.Invalidf("", d.Issued, "begins in the future, at %s: check the clocks", d.Issued.Format(time.RFC3339))
	case d.Expires.Before(to):
		return fault.Invalidf("", d.Expires, "ended at %s: ask %s for a new one", d.Expires.Format(time.RFC3339), d.Provider)
	}
	return nil
}

// checkOfferedFor verifies the statement of a validated message.
func checkOfferedFor(n network.Name, s *pb.ServiceRecord, signer peer.ID) (by peer.ID, err error) {
	if s.OfferedFor == nil {
		return "", nil
	}
	d, err := openDelegation(n, s.OfferedFor)
	if err == nil {
		err = d.Valid(signer, s.UpdatedAt.AsTime(), s.ExpiresAt.AsTime())
	}
	if err != nil {
		return "", fault.In("offered_for", err)
	}
	return peer.ID(intern(string(d.Provider))), nil
}

// OfferedFor returns the provider for whom the signer offers the service, by that provider's statement; "" for an offer of its own.
func (r *Record) OfferedFor() peer.ID { return r.offeredFor }

// Of reports whether a record is an offer of a provider or of one of its delegates.
func (r *Record) Of(provider peer.ID) bool {
	return r.name.Provider == provider || r.offeredFor == provider && provider != ""
}

// Delegates returns the delegates that a manifest names; none for another record.
func (r *Record) Delegates() (ids []peer.ID) {
	if r.needs != manifest || !r.name.IsManifest() {
		return nil
	}
	for key := range slices.Chunk(inner(inner(r.Payload(), 16), 2), keySize) {
		ids = append(ids, peer.ID(ed25519ID+string(key)))
	}
	return ids
}
