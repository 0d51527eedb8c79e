package records

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

const (
	// MaxSize limits an envelope, in bytes.
	MaxSize = 4 << 10
	// MaxTTL limits the time from a record's issue to its expiry.
	MaxTTL = 48 * time.Hour
	// ClockSkew is the tolerated lead of a provider's clock over this peer's clock.
	ClockSkew = 2 * time.Minute
)

const (
	domain = "blackhole-service-record"
	codec  = "/blackhole/service-record/1"

	ed25519Prefix = "\x08\x01\x12\x20" // libp2p PublicKey message: type Ed25519, then 32 bytes of data
	publicKeySize = len(ed25519Prefix) + 32
	signatureSize = 64
)

// payload makes a service record the content of a libp2p envelope.
type payload struct{ service *pb.ServiceRecord }

var _ record.Record = (*payload)(nil)

func (*payload) Domain() string { return domain }

func (*payload) Codec() []byte { return []byte(codec) }

func (p *payload) MarshalRecord() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(p.service)
}

// UnmarshalRecord refuses fields outside the schema, because they cannot be validated.
func (p *payload) UnmarshalRecord(data []byte) error {
	s := new(pb.ServiceRecord)
	if err := proto.Unmarshal(data, s); err != nil {
		return err
	}
	if hasUnknown(s.ProtoReflect()) {
		return errors.New("payload has unknown fields")
	}
	p.service = s
	return nil
}

// hasUnknown reports whether m or a nested message has fields outside its schema. The decoder
// drops such fields within map entries, so they remain invisible and harmless.
func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap(): // the schema has maps of scalars only
		case f.IsList():
			list := v.List()
			for i := 0; i < list.Len() && !found; i++ {
				found = hasUnknown(list.Get(i).Message())
			}
		default:
			found = hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

// frame is an envelope in its canonical encoding: every field once, in the order of numbers,
// lengths in the shortest form. Libp2p's decoder is lax: without this check a stranger could
// make many byte strings with one signature.
type frame struct{ key, codec, payload, signature []byte }

// split returns the parts of a canonical envelope, which alias the envelope.
func split(envelope []byte) (f frame, ok bool) {
	rest := envelope
	for _, part := range [...]struct {
		number protowire.Number
		to     *[]byte
	}{{1, &f.key}, {2, &f.codec}, {3, &f.payload}, {5, &f.signature}} {
		if *part.to, rest, ok = cut(rest, part.number); !ok {
			return frame{}, false
		}
	}
	return f, len(rest) == 0
}

// cut removes one length-delimited field of the given number (at most 15) from b.
func cut(b []byte, number protowire.Number) (value, rest []byte, ok bool) {
	if len(b) == 0 || uint64(b[0]) != protowire.EncodeTag(number, protowire.BytesType) {
		return nil, nil, false
	}
	b = b[1:]
	size, n := protowire.ConsumeVarint(b)
	if n < 0 || n != protowire.SizeVarint(size) || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	b = b[n:]
	return b[:size:size], b[size:], true
}

// signatureOf returns the signature of a verified envelope: its last field, of Ed25519's size.
func signatureOf(envelope []byte) []byte {
	return bytes.Clone(envelope[len(envelope)-signatureSize:])
}

// Open verifies and decodes an envelope. It keeps a copy of the argument. Errors:
//
//   - TooLarge: above MaxSize;
//   - Unauthentic: not canonical, of another type, not signed by the Ed25519 key of its
//     provider_id, or with unknown fields. Honest peers neither make nor forward such bytes;
//   - Invalid: content against the rules, with the field. Honest peers neither make nor forward
//     it;
//   - Conflict: authentic and valid, but expired, or issued more than ClockSkew ahead. Honest
//     peers may forward such bytes.
func Open(envelope []byte, now time.Time) (*Record, error) {
	const op = "records.Open"
	r, err := verify(envelope)
	if err == nil {
		err = r.current(now)
	}
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	return r, nil
}

// current refuses an expired record, or one from the future.
func (r *Record) current(now time.Time) error {
	if r.Expired(now) {
		return &fault.Error{Kind: fault.Conflict, Field: "expires_at", Value: r.expires, Err: errors.New("the record has expired")}
	}
	if r.issued.After(now.Add(ClockSkew)) {
		return &fault.Error{Kind: fault.Conflict, Field: "updated_at", Value: r.issued, Err: errors.New("the record is from the future")}
	}
	return nil
}

// verify makes all checks of Open that do not depend on the time. Cheap checks precede the
// signature.
func verify(envelope []byte) (*Record, error) {
	if len(envelope) > MaxSize {
		return nil, fault.New("", fault.TooLarge, "a record of %d bytes exceeds the limit of %d", len(envelope), MaxSize)
	}
	f, ok := split(envelope)
	switch {
	case !ok:
		return nil, unauthentic("not a canonical envelope")
	case string(f.codec) != codec:
		return nil, unauthentic("not a service record but another type of payload")
	case len(f.key) != publicKeySize || string(f.key[:len(ed25519Prefix)]) != ed25519Prefix:
		return nil, unauthentic("the signer's key is not Ed25519")
	}
	var p payload
	env, err := record.ConsumeTypedEnvelope(envelope, &p)
	if err != nil {
		return nil, fault.As("", fault.Unauthentic, err)
	}
	signer, err := peer.IDFromPublicKey(env.PublicKey)
	if err != nil {
		return nil, fault.As("", fault.Unauthentic, err)
	}
	if p.service.ProviderId != signer.String() {
		return nil, &fault.Error{Kind: fault.Unauthentic, Field: "provider_id", Value: p.service.ProviderId, Err: errors.New("is not the signer's")}
	}
	if err := validate(p.service); err != nil {
		return nil, err
	}
	r := recordOf(p.service, signer)
	r.digest = sha256.Sum256(f.payload)
	r.envelope = bytes.Clone(envelope)
	return r, nil
}

func unauthentic(message string) error {
	return &fault.Error{Kind: fault.Unauthentic, Err: errors.New(message)}
}

// recordOf copies the indexed values of a validated message and drops the rest.
func recordOf(s *pb.ServiceRecord, signer peer.ID) *Record {
	precision := s.GetLocation().GetPrecision()
	if precision == 0 {
		precision = DefaultPrecision
	}
	return &Record{
		name:      Name{Provider: signer, ID: s.Id},
		kind:      intern(s.Metadata.Type),
		subtype:   intern(s.Metadata.Subtype),
		sequence:  s.Sequence,
		withdrawn: s.Withdrawn,
		precision: uint8(precision), // at most MaxPrecision
		issued:    s.UpdatedAt.AsTime(),
		expires:   s.ExpiresAt.AsTime(),
		facts:     factsOf(s),
	}
}
