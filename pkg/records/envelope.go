package records

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
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
	part    = "service-record" // of domains and payload types
	major   = 1                // version of the format
	version = "1"              // major as text

	ed25519Prefix = "\x08\x01\x12\x20" // libp2p PublicKey message: type Ed25519, then 32 bytes of data
	publicKeySize = len(ed25519Prefix) + 32
	signatureSize = 64
)

// payload is the content of a libp2p envelope: the bytes of a service record of a network. The
// domain of the signature and the payload type carry the network's name.
type payload struct {
	network network.Name
	data    []byte
}

var _ record.Record = (*payload)(nil)

func (p *payload) Domain() string { return p.network.Domain(part) }

func (p *payload) Codec() []byte { return []byte(p.network.Protocol(part, version)) }

func (p *payload) MarshalRecord() ([]byte, error) { return p.data, nil }

// UnmarshalRecord keeps the bytes. Verify decodes them after the signature.
func (p *payload) UnmarshalRecord(data []byte) error {
	p.data = data
	return nil
}

// codec is the payload type of an envelope: /blackhole/NETWORK/service-record/MAJOR.
type codec struct {
	network network.Name
	major   uint64
}

// parseCodec parses the payload type of a service record of any network and version.
func parseCodec(s string) (c codec, ok bool) {
	at := strings.LastIndexByte(s, '/')
	if at < 0 {
		return codec{}, false
	}
	name, ok := strings.CutPrefix(s[:at], "/blackhole/")
	if !ok {
		return codec{}, false
	}
	name, ok = strings.CutSuffix(name, "/"+part)
	c.network = network.Name(name)
	var err error
	c.major, err = strconv.ParseUint(s[at+1:], 10, 32)
	return c, ok && c.network.Validate() == nil && err == nil && c.major > 0 && strconv.FormatUint(c.major, 10) == s[at+1:]
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

// Open verifies and decodes an envelope of a network; an empty name stands for the network that the envelope names. It keeps a copy
// of the argument. Errors:
//
//   - TooLarge: above MaxSize;
//   - Unauthentic: forged, that is not canonical, or not signed by the key of its provider_id.
//     Honest peers neither make nor forward such bytes;
//   - Unsupported: a later major version, or a key that is not Ed25519. Later versions of the
//     program may make and forward it. With the field "network": a record of another network;
//   - Invalid: signed content against the rules of this version, with the field. Later versions
//     may have other rules;
//   - Conflict: authentic and valid, but expired, or issued more than ClockSkew ahead. Honest
//     peers may forward such bytes.
//
// Fields outside the schema are no error: the envelope keeps them. See Record.Needs.
func Open(n network.Name, envelope []byte, now time.Time) (*Record, error) {
	const op = "records.Open"
	if n == "" {
		n, _ = networkOf(envelope)
	}
	r, err := verify(n, envelope)
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

// Blameless reports whether an honest peer may have sent an envelope that Open refused with err:
// by its clock or its version of the program, the record may be valid.
func Blameless(err error) bool {
	switch fault.KindOf(err) {
	case fault.Conflict, fault.Unsupported, fault.Invalid:
		return true
	}
	return false
}

// OfOtherNetwork reports whether Open refused a record with err because of its network.
func OfOtherNetwork(err error) bool {
	return fault.KindOf(err) == fault.Unsupported && fault.FieldOf(err) == "network"
}

// verify makes all checks of Open that do not depend on the time. Cheap checks precede the
// signature. All other checks follow it, so that Unauthentic means nothing but a forgery.
func verify(n network.Name, envelope []byte) (*Record, error) {
	if len(envelope) > MaxSize {
		return nil, fault.New("", fault.TooLarge, "a record of %d bytes exceeds the limit of %d", len(envelope), MaxSize)
	}
	f, ok := split(envelope)
	switch {
	case !ok:
		return nil, unauthentic("not a canonical envelope")
	case len(f.key) != publicKeySize || string(f.key[:len(ed25519Prefix)]) != ed25519Prefix:
		return nil, fault.New("", fault.Unsupported, "the signer's key is not Ed25519: this version cannot verify it")
	}
	c, known := parseCodec(string(f.codec))
	if !known {
		c.network = n
	}
	env, err := record.ConsumeTypedEnvelope(envelope, &payload{network: c.network})
	switch {
	case err != nil:
		return nil, fault.As("", fault.Unauthentic, err)
	case !known:
		return nil, fault.New("", fault.Invalid, "not a service record but another type of payload")
	case c.network != n:
		return nil, &fault.Error{Kind: fault.Unsupported, Field: "network", Value: c.network.String(),
			Err: fmt.Errorf("the record is of the network %s, and this peer belongs to %s", c.network, n)}
	case c.major != major:
		return nil, fault.New("", fault.Unsupported, "the record has version %d of the format, and this program reads version %d: a newer version reads it", c.major, major)
	}
	signer, err := peer.IDFromPublicKey(env.PublicKey)
	if err != nil {
		return nil, fault.As("", fault.Unauthentic, err)
	}
	s := new(pb.ServiceRecord)
	if err := proto.Unmarshal(f.payload, s); err != nil {
		return nil, fault.As("", fault.Invalid, err)
	}
	if s.ProviderId != signer.String() {
		return nil, &fault.Error{Kind: fault.Unauthentic, Field: "provider_id", Value: s.ProviderId, Err: errors.New("is not the signer's")}
	}
	if err := validate(s); err != nil {
		return nil, err
	}
	r := recordOf(s, signer)
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
	precision = cmp.Or(precision, DefaultPrecision)
	return &Record{
		name:      Name{Provider: signer, ID: s.Id},
		kind:      intern(s.Metadata.Type),
		subtype:   intern(s.Metadata.Subtype),
		sequence:  s.Sequence,
		withdrawn: s.Withdrawn,
		needs:     needs(s),
		precision: uint8(precision), // at most MaxPrecision
		issued:    s.UpdatedAt.AsTime(),
		expires:   s.ExpiresAt.AsTime(),
		facts:     factsOf(s),
		paused:    pauseOf(s.Paused),
	}
}
