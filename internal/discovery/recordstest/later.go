// Package recordstest makes what a later version of the program may send: records with more fields, other values of
// enumerations and critical features. This version never signs them.
package recordstest

import (
	"fmt"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/record"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Content is a payload of any bytes and type for a libp2p envelope.
type Content struct {
	Of, Type string // domain and codec
	Payload  []byte
}

var _ record.Record = Content{}

// Record is a service record of any network and major version.
func Record(n network.Name, major uint32, payload []byte) Content {
	return Content{Of: n.Domain("service-record"), Type: fmt.Sprintf("%s/service-record/%d", n.Prefix(), major), Payload: payload}
}

// Domain returns the domain of the signature.
func (c Content) Domain() string { return c.Of }

// Codec returns the payload type.
func (c Content) Codec() []byte { return []byte(c.Type) }

// MarshalRecord returns the payload.
func (c Content) MarshalRecord() ([]byte, error) { return c.Payload, nil }

// UnmarshalRecord accepts anything.
func (c Content) UnmarshalRecord([]byte) error { return nil }

// Seal signs a payload without any check.
func Seal(t testing.TB, k crypto.PrivKey, c Content) []byte {
	t.Helper()
	env, err := record.Seal(c, k)
	require.NoError(t, err)
	raw, err := env.Marshal()
	require.NoError(t, err)
	return raw
}

// Sign signs a message as a service record of a network without any check.
func Sign(t testing.TB, n network.Name, k crypto.PrivKey, s *pb.ServiceRecord) []byte {
	t.Helper()
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	require.NoError(t, err)
	return Seal(t, k, Record(n, 1, raw))
}

// Later signs a record again, changed by edits and with unknown fields in all its messages, and opens it at its time of
// issue.
func Later(t testing.TB, k crypto.PrivKey, r *records.Record, edits ...func(*pb.ServiceRecord)) *records.Record {
	t.Helper()
	s := r.Service()
	s.Signature = nil
	for _, edit := range edits {
		edit(s)
	}
	Extend(s, Additions())
	later, err := records.Open(r.Network(), Sign(t, r.Network(), k, s), r.Issued())
	require.NoError(t, err)
	return later
}

// Needs returns an edit that makes a feature critical.
func Needs(feature string) func(*pb.ServiceRecord) {
	return func(s *pb.ServiceRecord) { s.Critical = append(s.Critical, feature) }
}

// Additions returns unknown fields, one of each wire type.
func Additions() []byte {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 101, protowire.VarintType), 7)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 102, protowire.Fixed64Type), 8)
	b = protowire.AppendString(protowire.AppendTag(b, 103, protowire.BytesType), "x")
	inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	b = protowire.AppendGroup(protowire.AppendTag(b, 104, protowire.StartGroupType), 104, inner)
	return protowire.AppendFixed32(protowire.AppendTag(b, 105, protowire.Fixed32Type), 9)
}

// Extend adds encoded fields to a message and to all messages in it.
func Extend(m proto.Message, fields []byte) { extend(m.ProtoReflect(), fields) }

func extend(m protoreflect.Message, fields []byte) {
	m.SetUnknown(append(append([]byte(nil), m.GetUnknown()...), fields...))
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				extend(v.List().Get(i).Message(), fields)
			}
		default:
			extend(v.Message(), fields)
		}
		return true
	})
}
