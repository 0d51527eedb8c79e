package records_test

import (
	"crypto/rand"
	"strconv"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// gpuMessage returns a valid record with a list of messages.
func gpuMessage(t testing.TB) *pb.ServiceRecord {
	s := message(t)
	s.Metadata.Type = "compute"
	s.Capabilities = &pb.ServiceCapabilities{Compute: &pb.ComputeCapabilities{Gpus: []*pb.GPUInfo{{Model: "a"}, {Model: "b"}}}}
	return s
}

// A record of a later version is a record like any other: its known fields count, and its bytes stay.
func TestUnknownFieldsStay(t *testing.T) {
	for name, s := range map[string]*pb.ServiceRecord{"storage": message(t), "compute": gpuMessage(t)} {
		t.Run(name, func(t *testing.T) {
			plain, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
			require.NoError(t, err)
			later := proto.CloneOf(s)
			recordstest.Extend(later, recordstest.Additions())
			envelope := recordstest.Sign(t, "test", key(t, 1), later)
			r, err := records.Open("test", envelope, t0())
			require.NoError(t, err)
			require.Equal(t, envelope, r.Envelope())
			require.Equal(t, plain.Facts(), r.Facts())
			require.Equal(t, plain.Key(), r.Key())
			require.Empty(t, r.Needs())
			again := r.Service()
			again.Signature = nil
			require.True(t, proto.Equal(later, again), "the message for applications has the fields too")
			alike(t, r)
		})
	}
}

// Fields after the known ones cost no second decoding, except in times.
func TestAppendJSONSkipsUnknownFields(t *testing.T) {
	s := gpuMessage(t)
	for _, m := range []proto.Message{s, s.Metadata, s.Capabilities, s.Capabilities.Compute, s.Capabilities.Compute.Gpus[0], s.Location, s.Pricing, s.Health} {
		m.ProtoReflect().SetUnknown(recordstest.Additions())
	}
	r, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
	require.NoError(t, err)
	alike(t, r)
	direct(t, r)
}

func TestUnknownFieldsCountTowardsTheLimit(t *testing.T) {
	s := message(t)
	s.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, records.MaxSize)))
	_, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
	require.ErrorIs(t, err, fault.TooLarge)
}

func TestCriticalFeatures(t *testing.T) {
	s := message(t)
	s.Critical = []string{"auction.v2", "x"}
	r, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
	require.NoError(t, err)
	require.Equal(t, "auction.v2, x", r.Needs())
	require.Len(t, r.Cells(), 15, "the core is known")
	alike(t, r)
	direct(t, r)
	require.Equal(t, s.Critical, r.View().Critical)

	for name, critical := range map[string][]string{
		"too many": make([]string, 9), "empty": {""}, "too long": {strings.Repeat("x", 33)}, "no token": {"a b"},
	} {
		s.Critical = critical
		_, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
		require.ErrorIs(t, err, fault.Invalid, name)
		require.True(t, strings.HasPrefix(fault.FieldOf(err), "critical"), name)
	}
}

// A withdrawal counts whatever else its provider says.
func TestTombstonesOfLaterVersions(t *testing.T) {
	s := message(t)
	s.Metadata = &pb.ServiceMetadata{Type: "storage", Subtype: "ssd"}
	s.Capabilities, s.Pricing, s.Health = nil, nil, nil
	s.Location = &pb.GeoLocation{Latitude: s.Location.Latitude, Longitude: s.Location.Longitude}
	s.Withdrawn, s.Critical = true, []string{"auction.v2"}
	recordstest.Extend(s, recordstest.Additions())
	r, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
	require.NoError(t, err)
	require.True(t, r.Withdrawn())
	require.Empty(t, r.Needs())
	alike(t, r)

	s = message(t)
	s.Critical = []string{"auction.v2"}
	recordstest.Extend(s, recordstest.Additions())
	live, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
	require.NoError(t, err)
	gone, err := records.Tombstone(key(t, 1), live, records.Stamp{Sequence: live.Sequence() + 1, Issued: t0(), Expires: live.Expires()})
	require.NoError(t, err, "this version withdraws what a later one registered")
	require.Equal(t, live.Cells(), gone.Cells())
}

func TestUnknownStatus(t *testing.T) {
	s := message(t)
	s.Health.Status = 9
	r, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
	require.NoError(t, err)
	require.Equal(t, pb.HealthStatus_UNKNOWN, r.Facts().Status)
	require.Equal(t, "UNKNOWN", r.View().Health.Status)
	require.Equal(t, pb.HealthStatus_Status(9), r.Service().Health.Status)
	alike(t, r)
	direct(t, r)
}

// A peer signs nothing that it does not understand.
func TestSealRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*pb.ServiceRecord)
		field string
	}{
		"feature":      {func(s *pb.ServiceRecord) { s.Critical = []string{"auction.v2"} }, "critical"},
		"status":       {func(s *pb.ServiceRecord) { s.Health.Status = 9 }, "health.status"},
		"field":        {func(s *pb.ServiceRecord) { s.ProtoReflect().SetUnknown(recordstest.Additions()) }, ""},
		"nested field": {func(s *pb.ServiceRecord) { s.Location.ProtoReflect().SetUnknown(recordstest.Additions()) }, ""},
	} {
		s := message(t)
		tt.spoil(s)
		_, err := records.Seal("test", key(t, 1), s)
		require.ErrorIs(t, err, fault.Invalid, name)
		require.Equal(t, tt.field, fault.FieldOf(err), name)
	}
}

// Signed content that this version does not read is no forgery.
func TestOpenBlamesOnlyForgers(t *testing.T) {
	rsa, _, err := crypto.GenerateRSAKeyPair(2048, rand.Reader)
	require.NoError(t, err)
	secp, _, err := crypto.GenerateSecp256k1Key(rand.Reader)
	require.NoError(t, err)
	k, payload := key(t, 1), payloadOf(t, sign(t, key(t, 1), storage(), stamp()).Envelope())
	long := message(t)
	long.Id = strings.Repeat("x", 65)
	for name, tt := range map[string]struct {
		envelope []byte
		kind     fault.Kind
	}{
		"later major version":    {recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: "/blackhole/test/service-record/2", Payload: []byte("?")}), fault.Unsupported},
		"much later version":     {recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: "/blackhole/test/service-record/4294967295", Payload: payload}), fault.Unsupported},
		"version 0":              {recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: "/blackhole/test/service-record/0", Payload: payload}), fault.Invalid},
		"version 02":             {recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: "/blackhole/test/service-record/02", Payload: payload}), fault.Invalid},
		"other type":             {recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: "/blackhole/test/group/1", Payload: payload}), fault.Invalid},
		"RSA key":                {recordstest.Seal(t, rsa, recordstest.Content{Of: domain, Type: codec, Payload: payload}), fault.Unsupported},
		"secp256k1 key":          {recordstest.Seal(t, secp, recordstest.Content{Of: domain, Type: codec, Payload: payload}), fault.Unsupported},
		"payload is no protobuf": {recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: codec, Payload: []byte{0xff}}), fault.Invalid},
		"longer id":              {recordstest.Sign(t, "test", k, long), fault.Invalid},
	} {
		_, err := records.Open("test", tt.envelope, t0())
		require.ErrorIs(t, err, tt.kind, name)
		require.True(t, records.Blameless(err), name)
	}
	_, err = records.Open("test", recordstest.Seal(t, key(t, 2), recordstest.Content{Of: domain, Type: "/blackhole/test/service-record/2", Payload: payload}), t0())
	require.ErrorIs(t, err, fault.Unsupported, "the signer of a later version is its own affair")
	for _, err := range []error{nil, fault.New("", fault.Unauthentic, "forged"), fault.New("", fault.TooLarge, "large")} {
		require.False(t, records.Blameless(err))
	}
}

// A record of another network is named as such, by every entrance, and its signature still counts.
func TestRecordsOfOtherNetworks(t *testing.T) {
	r, err := records.Sign("other", key(t, 1), storage(), stamp())
	require.NoError(t, err)
	require.EqualValues(t, "other", r.Network())
	v, err := records.NewVerifier("test", 4)
	require.NoError(t, err)
	_, direct := records.Open("test", r.Envelope(), t0())
	_, cached := v.Open(r.Envelope(), t0())
	for _, err := range []error{direct, cached} {
		require.True(t, records.OfOtherNetwork(err))
		require.True(t, records.Blameless(err))
		require.ErrorContains(t, err, "the record is of the network other, and this peer belongs to test")
	}
	gone, err := records.Tombstone(key(t, 1), r, records.Stamp{Sequence: r.Sequence() + 1, Issued: t0(), Expires: r.Expires()})
	require.NoError(t, err)
	require.EqualValues(t, "other", gone.Network())

	forged := append([]byte(nil), r.Envelope()...)
	forged[len(forged)-1] ^= 1
	_, err = records.Open("test", forged, t0())
	require.ErrorIs(t, err, fault.Unauthentic)
	for _, n := range []network.Name{"", "a/b"} {
		_, err = records.Sign(n, key(t, 1), storage(), stamp())
		require.Equal(t, "network", fault.FieldOf(err))
		_, err = records.NewVerifier(n, 1)
		require.Equal(t, "network", fault.FieldOf(err))
	}
}

// FuzzFuture feeds the decoder what a later version may send: more fields at any level, other values of enumerations,
// critical features, later major versions.
func FuzzFuture(f *testing.F) {
	f.Add(recordstest.Additions(), uint32(1), int32(9), "auction.v2")
	f.Add([]byte{0xff}, uint32(2), int32(-1), "")
	f.Add([]byte{0x72, 1, 'x'}, uint32(1), int32(0), "")
	k := key(f, 1)
	f.Fuzz(func(t *testing.T, fields []byte, major uint32, status int32, feature string) {
		s := message(t)
		if len(fields)%2 == 1 {
			s = gpuMessage(t)
			s.Health = &pb.HealthStatus{}
		}
		s.Health.Status = pb.HealthStatus_Status(status)
		if feature != "" {
			s.Critical = []string{feature}
		}
		recordstest.Extend(s, fields)
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
		if err != nil {
			return
		}
		version := "/blackhole/test/service-record/" + strconv.FormatUint(uint64(major), 10)
		envelope := recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: version, Payload: payload})
		r, err := records.Open("test", envelope, t0())
		switch {
		case err != nil && len(envelope) > records.MaxSize:
			require.ErrorIs(t, err, fault.TooLarge)
		case fault.KindOf(err) == fault.Unauthentic && err != nil:
			require.Equal(t, "provider_id", fault.FieldOf(err)) // the fields repeat provider_id
		case err != nil:
			require.True(t, records.Blameless(err), err)
		default:
			require.Equal(t, envelope, r.Envelope())
			consistent(t, r)
		}
	})
}
