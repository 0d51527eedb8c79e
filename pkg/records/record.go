// Package records defines the unit of discovery: a provider's signed advertisement of one
// service, with its keys, its validity and its order among other versions.
//
// A Record is always verified: Seal makes one with the provider's key, Open makes one from
// untrusted bytes. It is immutable and keeps its signed bytes as received, from store to gossip
// to cache to API. Offer and View are its forms for people (JSON, YAML).
//
// The package is pure: time is an argument, and the package uses neither network nor disk.
package records

import (
	"bytes"
	"cmp"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"
	"github.com/multiformats/go-multihash"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Name identifies a service in the network. Services of different providers never collide.
type Name struct {
	Provider peer.ID
	ID       string
}

// String returns "provider/id".
func (n Name) String() string { return n.Provider.String() + "/" + n.ID }

// Compare orders names by provider, then id, both bytewise. Every ranking breaks ties with it.
func (n Name) Compare(m Name) int {
	if c := cmp.Compare(n.Provider, m.Provider); c != 0 {
		return c
	}
	return cmp.Compare(n.ID, m.ID)
}

// Record is one verified version of a service record. It is immutable and safe for concurrent
// use. Callers must not modify results of its methods, unless a method says otherwise.
type Record struct {
	name      Name
	kind      string // metadata.type
	subtype   string
	sequence  uint64
	withdrawn bool
	needs     string // see Needs
	precision uint8  // of the key's geohash, 4 to 12
	issued    time.Time
	expires   time.Time
	facts     Facts
	paused    *Pause   // nil: it is served
	digest    [32]byte // sha2-256 of the payload
	envelope  []byte
}

// Network returns the network of the record, which its signature proves.
func (r *Record) Network() network.Name {
	n, _ := networkOf(r.envelope)
	return n
}

// networkOf returns the network that an envelope names, verified or not; false for anything but a
// service record.
func networkOf(envelope []byte) (network.Name, bool) {
	f, _ := split(envelope)
	c, ok := parseCodec(string(f.codec))
	return c.network, ok
}

// Name returns the service's name.
func (r *Record) Name() Name { return r.name }

// Type returns the service type ("compute").
func (r *Record) Type() string { return r.kind }

// Subtype returns the specialisation within the type, or "".
func (r *Record) Subtype() string { return r.subtype }

// Sequence returns the version number. The larger version wins.
func (r *Record) Sequence() uint64 { return r.sequence }

// Withdrawn reports whether the record is a tombstone.
func (r *Record) Withdrawn() bool { return r.withdrawn }

// Needs names the critical features of the record that this version of the program lacks,
// separated by commas; "" for a record that it understands. Peers store and forward such a record
// like any other, but nothing of it is known beyond its core: name, type, subtype, place, times
// and sequence.
func (r *Record) Needs() string { return r.needs }

// Pause says that a provider does not serve an offer for now.
type Pause struct {
	Stopped bool      `json:"stopped,omitempty"` // the provider's peer stopped; false: the provider paused this offer
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"` // the provider serves again from then on; zero: it says when
}

// Reason says in words why an offer is not served.
func (p Pause) Reason() string {
	switch {
	case p.Stopped:
		return "stopped by its provider"
	case p.Until.IsZero():
		return "paused by its provider"
	default:
		return "paused by its provider until " + p.Until.UTC().Format(time.RFC3339)
	}
}

// Paused returns why and since when the provider does not serve the offer, or nil. Such a record claims to be UNHEALTHY.
func (r *Record) Paused() *Pause { return r.paused }

// Issued returns the time of the signature, by the provider's clock.
func (r *Record) Issued() time.Time { return r.issued }

// Expires returns the expiry of this version. A tombstone expires no earlier than the versions
// it withdraws.
func (r *Record) Expires() time.Time { return r.expires }

// Expired reports whether the record has expired at now, without tolerance for skew.
func (r *Record) Expired(now time.Time) bool { return !now.Before(r.expires) }

// Facts returns the values for filters and ranking.
func (r *Record) Facts() *Facts { return &r.facts }

// Envelope returns the canonical signed form. The caller must not modify it.
func (r *Record) Envelope() []byte { return r.envelope }

// Memory estimates the memory of r in bytes: the record, its envelope and its custom attributes.
func (r *Record) Memory() int {
	const fixed, attribute = 512, 2 * 16 // Record with the strings of its name; the headers of two strings
	n := fixed + len(r.envelope)
	for _, a := range r.facts.Attributes {
		n += attribute + len(a.Value)
	}
	return n
}

// Domain returns the domain that the service claims, or "".
func (r *Record) Domain() string { return string(inner(inner(r.Payload(), 3), 9)) } // of ServiceMetadata

// inner returns the value of a text or a message in a decoded message, nil without one.
func inner(b []byte, number protowire.Number) []byte {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeField(b)
		if size < 0 {
			return nil // impossible: Open decoded the payload
		}
		if n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[protowire.SizeTag(n):])
			return value
		}
		b = b[size:]
	}
	return nil
}

// Payload returns the signed bytes: the record in its wire form. The caller must not modify them.
func (r *Record) Payload() []byte {
	f, _ := split(r.envelope)
	return f.payload
}

// ContentID identifies this version in logs, explanations and digests: the CIDv1 (raw, sha2-256)
// of the payload, the signed bytes.
func (r *Record) ContentID() cid.Cid {
	sum, err := multihash.Encode(r.digest[:], multihash.SHA2_256)
	if err != nil {
		panic("records: no multihash of a digest: " + err.Error()) // impossible: Encode fails for no code of the table
	}
	return cid.NewCidV1(cid.Raw, sum)
}

// Digest returns the sha2-256 of the payload.
func (r *Record) Digest() [32]byte { return r.digest }

// Service decodes the record again, with the envelope's signature. The caller owns the result.
func (r *Record) Service() *pb.ServiceRecord {
	f, _ := split(r.envelope)
	s := new(pb.ServiceRecord)
	if err := proto.Unmarshal(f.payload, s); err != nil {
		panic("records: a verified payload does not decode: " + err.Error()) // impossible: Open decoded the payload
	}
	s.Signature = signatureOf(r.envelope)
	return s
}

// Key returns the record's own DHT key.
func (r *Record) Key() Key {
	return Key{Type: r.kind, Subtype: r.subtype, Cell: r.place(int(r.precision)), Name: r.name}
}

// Cells returns the cells of the record: for its subtype and for any subtype, each prefix length
// of its place, and global; then the cell of its provider. A record without subtype or place has
// fewer than 15.
func (r *Record) Cells() []CellKey {
	subtypes := []string{AnySubtype}
	if r.subtype != "" {
		subtypes = append(subtypes, r.subtype)
	}
	places := []geo.Cell{geo.Global}
	if p, ok := r.facts.Place(); ok {
		places = geo.IndexCells(p)
	}
	cells := make([]CellKey, 0, len(subtypes)*len(places)+1)
	for _, subtype := range subtypes {
		for _, place := range places {
			cells = append(cells, CellKey{Type: r.kind, Subtype: subtype, Cell: place})
		}
	}
	return append(cells, ProviderCell(r.name.Provider))
}

// In reports whether the record belongs to a cell.
func (r *Record) In(c CellKey) bool {
	if c.OfProvider() {
		return c.Provider == r.name.Provider
	}
	if c.Type != r.kind || (c.Subtype != AnySubtype && c.Subtype != r.subtype) {
		return false
	}
	if c.Cell == geo.Global {
		return true
	}
	p, ok := r.facts.Place()
	return ok && c.Cell.Contains(p)
}

// place returns the cell of the record's position, or Global without one.
func (r *Record) place(length int) geo.Cell {
	p, ok := r.facts.Place()
	if !ok {
		return geo.Global
	}
	return geo.CellOf(p, length)
}

// Compare orders versions of one service by freshness: first by sequence, then by the hash of
// the payload for equivocating versions. Only equal payloads compare as 0.
func Compare(a, b *Record) int {
	if c := cmp.Compare(a.sequence, b.sequence); c != 0 {
		return c
	}
	return bytes.Compare(a.digest[:], b.digest[:])
}

// Equivocates reports whether the provider signed different content as the same version.
func (r *Record) Equivocates(o *Record) bool {
	return r.name == o.name && r.sequence == o.sequence && r.digest != o.digest
}

// Seal validates a complete service record of a network and signs it with its provider's key. It keeps no
// reference to the message. A peer signs only what it understands: fields outside the schema and
// critical features that this version lacks are refused. Errors are Invalid and name the field.
func Seal(n network.Name, key crypto.PrivKey, s *pb.ServiceRecord) (*Record, error) {
	const op = "records.Seal"
	if err := n.Validate(); err != nil {
		return nil, fault.Wrap(op, fault.In("network", err))
	}
	if s == nil {
		return nil, fault.New(op, fault.Invalid, "there is no record")
	}
	s = proto.CloneOf(s)
	s.Signature = nil
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	if s.ProviderId != id.String() {
		return nil, fault.Wrap(op, fault.Invalidf("provider_id", s.ProviderId, "must be the signer's, %s", id))
	}
	if err := understood(s); err != nil {
		return nil, fault.Wrap(op, err)
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	env, err := record.Seal(&payload{network: n, data: content}, key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	raw, err := env.Marshal()
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	r, err := Open(n, raw, s.GetUpdatedAt().AsTime())
	return r, fault.Wrap(op, err)
}
