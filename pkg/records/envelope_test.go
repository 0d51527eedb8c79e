package records_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/record"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// The protocol's constants. A change breaks the network.
const (
	domain = "blackhole:test:service-record"
	codec  = "/blackhole/test/service-record/1"
)

// message returns a valid record of key(1), for tests to change.
func message(tb testing.TB) *pb.ServiceRecord {
	tb.Helper()
	s := sign(tb, key(tb, 1), storage(), stamp()).Service()
	s.Signature = nil
	return s
}

func payloadOf(tb testing.TB, envelope []byte) []byte {
	tb.Helper()
	env, err := record.UnmarshalEnvelope(envelope)
	require.NoError(tb, err)
	return env.RawPayload
}

func unknownField(b []byte) []byte {
	return protowire.AppendString(protowire.AppendTag(b, 99, protowire.BytesType), "x")
}

// Forged is a signature that does not prove the bytes, and nothing else.
func TestOpenRefusesForgedBytes(t *testing.T) {
	k := key(t, 1)
	good := sign(t, k, storage(), stamp()).Envelope()
	payload := payloadOf(t, good)

	flipped := func(i int) []byte {
		b := append([]byte(nil), good...)
		b[i] ^= 1
		return b
	}
	for name, envelope := range map[string][]byte{
		"nothing":                         nil,
		"no protobuf":                     []byte("GET / HTTP/1.1"),
		"cut short":                       good[:len(good)-1],
		"unknown field in the envelope":   unknownField(append([]byte(nil), good...)),
		"long length in the envelope":     append([]byte{good[0], good[1] | 0x80, 0}, good[2:]...),
		"repeated field in the envelope":  append(append([]byte(nil), good[:38]...), good...),
		"flipped key":                     flipped(20),
		"flipped payload":                 flipped(len(good) - 100),
		"flipped signature":               flipped(len(good) - 1),
		"of another network's domain":     recordstest.Seal(t, k, recordstest.Content{Of: "blackhole:other:service-record", Type: codec, Payload: payload}),
		"without a network":               recordstest.Seal(t, k, recordstest.Content{Of: "blackhole-service-record", Type: "/blackhole/service-record/1", Payload: payload}),
		"other domain, same codec":        recordstest.Seal(t, k, recordstest.Content{Of: "libp2p-peer-record", Type: codec, Payload: payload}),
		"wrong signer":                    recordstest.Seal(t, key(t, 2), recordstest.Content{Of: domain, Type: codec, Payload: payload}),
		"wrong signer of a later version": recordstest.Seal(t, key(t, 2), recordstest.Content{Of: domain, Type: codec, Payload: append(bytes.Clone(payload), 0xfa, 1, 0)}),
		"flipped codec":                   flipped(bytes.Index(good, []byte(codec)) + len(codec) - 1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := records.Open("test", envelope, t0())
			require.ErrorIs(t, err, fault.Unauthentic)
		})
	}
	t.Run("untouched", func(t *testing.T) {
		_, err := records.Open("test", good, t0())
		require.NoError(t, err)
	})
}

// Libp2p itself accepts the malleable envelope. Otherwise the test above shows nothing.
func TestLibp2pIsLax(t *testing.T) {
	good := sign(t, key(t, 1), storage(), stamp()).Envelope()
	for _, s := range []recordstest.Content{{Of: domain, Type: codec}, {Of: domain, Type: "another"}} {
		_, err := record.ConsumeTypedEnvelope(unknownField(append([]byte(nil), good...)), &s)
		require.NoError(t, err)
	}
}

func TestOpenRefusesLargeRecords(t *testing.T) {
	s := message(t)
	s.Metadata.Endpoints = make([]string, 16)
	for i := range s.Metadata.Endpoints {
		s.Metadata.Endpoints[i] = strings.Repeat("e", 256)
	}
	_, err := records.Open("test", recordstest.Sign(t, "test", key(t, 1), s), t0())
	require.ErrorIs(t, err, fault.TooLarge)
	_, err = records.Seal("test", key(t, 1), s)
	require.ErrorIs(t, err, fault.TooLarge)

	v, err := records.NewVerifier("test", 1)
	require.NoError(t, err)
	_, err = v.Open(make([]byte, records.MaxSize+1), t0())
	require.ErrorIs(t, err, fault.TooLarge)
}

func TestOpenChecksTheTime(t *testing.T) {
	r := sign(t, key(t, 1), storage(), stamp())
	v, err := records.NewVerifier("test", 4)
	require.NoError(t, err)
	opened := func(envelope []byte, now time.Time) (*records.Record, error) {
		return records.Open("test", envelope, now)
	}
	for name, open := range map[string]func([]byte, time.Time) (*records.Record, error){"Open": opened, "Verifier": v.Open} {
		for _, tt := range []struct {
			now   time.Time
			field string
		}{
			{r.Issued().Add(-records.ClockSkew - 1), "updated_at"},
			{r.Issued().Add(-records.ClockSkew), ""},
			{r.Expires().Add(-1), ""},
			{r.Expires(), "expires_at"},
		} {
			t.Run(name+" "+tt.now.String(), func(t *testing.T) {
				got, err := open(r.Envelope(), tt.now)
				if tt.field == "" {
					require.NoError(t, err)
					require.Equal(t, r, got)
					return
				}
				require.Nil(t, got)
				require.ErrorIs(t, err, fault.Conflict)
				require.Equal(t, tt.field, fault.FieldOf(err))
			})
		}
	}
}

func TestOpenKeepsItsOwnBytes(t *testing.T) {
	buffer := append([]byte(nil), sign(t, key(t, 1), storage(), stamp()).Envelope()...)
	r, err := records.Open("test", buffer, t0())
	require.NoError(t, err)
	clear(buffer)
	require.Equal(t, "ssd-1", r.Service().Id)
}

func TestVerifierRemembers(t *testing.T) {
	_, err := records.NewVerifier("test", 0)
	require.Equal(t, "size", fault.FieldOf(err))

	v, err := records.NewVerifier("test", 1)
	require.NoError(t, err)
	a := sign(t, key(t, 1), storage(), stamp()).Envelope()
	b := sign(t, key(t, 2), storage(), stamp()).Envelope()
	first, err := v.Open(a, t0())
	require.NoError(t, err)
	again, err := v.Open(append([]byte(nil), a...), t0())
	require.NoError(t, err)
	require.Same(t, first, again)

	_, err = v.Open(b, t0()) // occupies the only slot
	require.NoError(t, err)
	anew, err := v.Open(a, t0())
	require.NoError(t, err)
	require.NotSame(t, first, anew)
	require.Equal(t, first, anew)

	_, err = v.Open(a[:len(a)-1], t0())
	require.ErrorIs(t, err, fault.Unauthentic)
}

func TestSealRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*pb.ServiceRecord)
		field string
	}{
		"another provider":  {func(s *pb.ServiceRecord) { s.ProviderId = idOf(t, key(t, 2)).String() }, "provider_id"},
		"a missing time":    {func(s *pb.ServiceRecord) { s.UpdatedAt = nil }, "updated_at"},
		"an impossible one": {func(s *pb.ServiceRecord) { s.UpdatedAt = &timestamppb.Timestamp{Nanos: -1} }, "updated_at"},
	} {
		t.Run(name, func(t *testing.T) {
			s := message(t)
			tt.spoil(s)
			_, err := records.Seal("test", key(t, 1), s)
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, tt.field, fault.FieldOf(err))
		})
	}
	_, err := records.Seal("test", key(t, 1), nil)
	require.ErrorIs(t, err, fault.Invalid)
}

func TestSealLeavesItsArgument(t *testing.T) {
	s := message(t)
	s.Signature = []byte("of a view")
	before := proto.CloneOf(s)
	_, err := records.Seal("test", key(t, 1), s)
	require.NoError(t, err)
	require.True(t, proto.Equal(before, s))
}

// vector is a published example of the signed form.
type vector struct {
	Name      string          `json:"name"`
	Network   string          `json:"network"`
	Seed      string          `json:"seed"` // of the Ed25519 key, hex
	View      json.RawMessage `json:"view"`
	Digest    string          `json:"digest"`
	Cells     []string        `json:"cells"`
	Envelope  string          `json:"envelope"` // hex
	NotBefore time.Time       `json:"not_before"`
	NotAfter  time.Time       `json:"not_after"` // exclusive
}

func vectors(t *testing.T) []vector {
	t.Helper()
	vpn := records.Offer{
		ID:       "exit.nl_1",
		Metadata: records.Metadata{Type: "bandwidth", Subtype: "wireguard"},
		Capabilities: &records.Capabilities{Bandwidth: &records.Bandwidth{
			UploadMbps: 500, DownloadMbps: 1000, Protocols: []string{"wireguard"}, ExitCountries: []string{"NL", "DE"},
		}},
	}
	first := sign(t, key(t, 1), storage(), stamp())
	gone, err := records.Tombstone(key(t, 1), first, records.Stamp{
		Sequence: first.Sequence() + 1, Issued: t0().Add(time.Hour), Expires: t0().Add(2 * time.Hour),
	})
	require.NoError(t, err)
	var all []vector
	for _, v := range []struct {
		name string
		seed byte
		r    *records.Record
	}{{"storage", 1, first}, {"bandwidth without place", 2, sign(t, key(t, 2), vpn, stamp())}, {"tombstone", 1, gone},
		{"unknown fields in all messages", 1, recordstest.Later(t, key(t, 1), first)},
		{"critical feature of a later version", 1, recordstest.Later(t, key(t, 1), first, recordstest.Needs("auction.v2"))},
	} {
		view, err := json.Marshal(v.r.View())
		require.NoError(t, err)
		digest := v.r.Digest()
		cells := make([]string, 0, 12)
		for _, c := range v.r.Cells() {
			cells = append(cells, c.String()+" "+c.CID().String())
		}
		all = append(all, vector{
			Name: v.name, Network: v.r.Network().String(), Seed: strings.Repeat(hex.EncodeToString([]byte{v.seed}), 32), View: view,
			Digest: hex.EncodeToString(digest[:]), Cells: cells, Envelope: hex.EncodeToString(v.r.Envelope()),
			NotBefore: v.r.Issued().Add(-records.ClockSkew), NotAfter: v.r.Expires(),
		})
	}
	return all
}

// The signed form must never change: the network contains records of other versions of the
// program.
func TestGoldenVectors(t *testing.T) {
	const path = "testdata/vectors.json"
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		text, err := json.MarshalIndent(vectors(t), "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, append(text, '\n'), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var golden []vector
	require.NoError(t, json.Unmarshal(text, &golden))
	sealedNow := vectors(t)
	require.Len(t, golden, len(sealedNow))
	for i, v := range golden {
		t.Run(v.Name, func(t *testing.T) {
			envelope, err := hex.DecodeString(v.Envelope)
			require.NoError(t, err)
			r, err := records.Open("test", envelope, v.NotBefore)
			require.NoError(t, err)
			view, err := json.Marshal(r.View())
			require.NoError(t, err)
			require.JSONEq(t, string(v.View), string(view))
			require.Equal(t, v.Envelope, sealedNow[i].Envelope, "sealing gives other bytes")
			require.Equal(t, v.Digest, sealedNow[i].Digest)
			require.Equal(t, v.Cells, sealedNow[i].Cells)
			_, err = records.Open("test", envelope, v.NotAfter)
			require.ErrorIs(t, err, fault.Conflict)
		})
	}
}
