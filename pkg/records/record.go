// Package records is the unit of discovery: a provider's signed advertisement of one
// service, its keys, its validity and its order against other versions of itself.
//
// A Record exists only verified: Seal makes one with the provider's key, Open makes one
// from bytes of a stranger. It is immutable, and its signed bytes are kept as they were
// received, from store to gossip to cache to API; nothing is ever marshalled again.
// Offer and View are its forms for people (JSON, YAML).
//
// The package is pure: time is an argument, and it touches neither network nor disk.
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
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Name identifies a service in the network: services of different providers never collide.
type Name struct {
	Provider peer.ID
	ID       string
}

// String gives "provider/id".
func (n Name) String() string { return n.Provider.String() + "/" + n.ID }

// Compare orders names by provider and id, both bytewise: the tie-break of every ranking.
func (n Name) Compare(m Name) int {
	if c := cmp.Compare(n.Provider, m.Provider); c != 0 {
		return c
	}
	return cmp.Compare(n.ID, m.ID)
}

// Record is one verified version of a service record. It is immutable and safe for
// concurrent use; what its methods return must not be modified unless they say so.
type Record struct {
	name      Name
	kind      string // metadata.type
	subtype   string
	sequence  uint64
	withdrawn bool
	precision uint8 // of the key's geohash, 4 to 12
	issued    time.Time
	expires   time.Time
	facts     Facts
	digest    [32]byte // sha2-256 of the payload
	envelope  []byte
}

// Name identifies the service.
func (r *Record) Name() Name { return r.name }

// Type is the service type ("compute").
func (r *Record) Type() string { return r.kind }

// Subtype is the specialisation within the type, or "".
func (r *Record) Subtype() string { return r.subtype }

// Sequence is the version: larger wins.
func (r *Record) Sequence() uint64 { return r.sequence }

// Withdrawn reports whether this is a tombstone.
func (r *Record) Withdrawn() bool { return r.withdrawn }

// Issued is when this version was signed, by the provider's clock.
func (r *Record) Issued() time.Time { return r.issued }

// Expires is when this version lapses. A tombstone's is not before that of any version it ends.
func (r *Record) Expires() time.Time { return r.expires }

// Expired reports whether the record has lapsed at now, skew not counted.
func (r *Record) Expired(now time.Time) bool { return !now.Before(r.expires) }

// Facts are the values that queries filter and rank by.
func (r *Record) Facts() *Facts { return &r.facts }

// Envelope is the canonical signed form. The caller must not modify it.
func (r *Record) Envelope() []byte { return r.envelope }

// ContentID names this version in logs, explanations and digests: the CIDv1 (raw,
// sha2-256) of the payload, the bytes that were signed.
func (r *Record) ContentID() cid.Cid {
	mh, err := multihash.Encode(r.digest[:], multihash.SHA2_256)
	if err != nil {
		panic("records: sha2-256 of 32 bytes does not encode: " + err.Error()) // impossible: both are constants
	}
	return cid.NewCidV1(cid.Raw, mh)
}

// Digest is the sha2-256 of the payload.
func (r *Record) Digest() [32]byte { return r.digest }

// Service decodes the record anew, with the envelope's signature filled in. The caller owns the result.
func (r *Record) Service() *pb.ServiceRecord {
	f, _ := split(r.envelope)
	s := new(pb.ServiceRecord)
	if err := proto.Unmarshal(f.payload, s); err != nil {
		panic("records: a verified payload does not decode: " + err.Error()) // impossible: Open decoded it
	}
	s.Signature = signatureOf(r.envelope)
	return s
}

// Key is the record's own DHT key.
func (r *Record) Key() Key {
	return Key{Type: r.kind, Subtype: r.subtype, Cell: r.place(int(r.precision)), Name: r.name}
}

// Cells are the cells that the record lives in: for its subtype and for any subtype, each
// prefix length of its place and global. A record without subtype or place lives in fewer than 12.
func (r *Record) Cells() []CellKey {
	subtypes := []string{AnySubtype}
	if r.subtype != "" {
		subtypes = append(subtypes, r.subtype)
	}
	places := []geo.Cell{geo.Global}
	if p, ok := r.facts.Place(); ok {
		places = geo.IndexCells(p)
	}
	cells := make([]CellKey, 0, len(subtypes)*len(places))
	for _, subtype := range subtypes {
		for _, place := range places {
			cells = append(cells, CellKey{Type: r.kind, Subtype: subtype, Cell: place})
		}
	}
	return cells
}

// In reports whether the record belongs to a cell.
func (r *Record) In(c CellKey) bool {
	if c.Type != r.kind || (c.Subtype != AnySubtype && c.Subtype != r.subtype) {
		return false
	}
	if c.Cell == geo.Global {
		return true
	}
	p, ok := r.facts.Place()
	return ok && c.Cell.Contains(p)
}

// place is the cell of the record's position, or Global without one.
func (r *Record) place(length int) geo.Cell {
	p, ok := r.facts.Place()
	if !ok {
		return geo.Global
	}
	return geo.CellOf(p, length)
}

// Compare orders versions of one service by freshness: the higher sequence, and of
// equivocating versions (same sequence, other payload) the one with the higher hash.
// It is 0 only for the same payload.
func Compare(a, b *Record) int {
	if c := cmp.Compare(a.sequence, b.sequence); c != 0 {
		return c
	}
	return bytes.Compare(a.digest[:], b.digest[:])
}

// Equivocates reports whether the provider signed a and b as the same version with different content.
func Equivocates(a, b *Record) bool {
	return a.name == b.name && a.sequence == b.sequence && a.digest != b.digest
}

// Seal validates a complete service record and signs it with its provider's key. The
// message is not kept. It returns an Invalid error that names the field.
func Seal(key crypto.PrivKey, s *pb.ServiceRecord) (*Record, error) {
	const op = "records.Seal"
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
	env, err := record.Seal(&payload{service: s}, key)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	raw, err := env.Marshal()
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	r, err := Open(raw, s.GetUpdatedAt().AsTime())
	return r, fault.Wrap(op, err)
}
