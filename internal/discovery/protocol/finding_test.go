package protocol

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

func newKey(t testing.TB) (crypto.PrivKey, peer.ID) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	return key, id
}

func start() time.Time { return time.UnixMilli(1_800_000_000_000) }

func TestStatement(t *testing.T) {
	key, id := newKey(t)
	_, p := newKey(t)
	_, q := newKey(t)
	now := start()
	findings := []Finding{
		{Provider: p, State: records.Reachable, RoundTrip: 1500 * time.Microsecond, CheckedAt: now},
		{Provider: q, State: records.Unreachable, CheckedAt: now.Add(-FindingLife + time.Millisecond)},
		{Provider: q, State: records.Busy, CheckedAt: now.Add(-FindingLife)}, // too old
		{Provider: q, State: records.Busy, CheckedAt: now.Add(findingSkew)},  // from the future
		{Provider: id, State: records.Reachable, CheckedAt: now},             // about itself
		{Provider: p, State: "mood", CheckedAt: now},                         // unknown
		{Provider: peer.ID("no id"), State: records.Busy, CheckedAt: now},    // kept as bytes
		{Provider: peer.ID(""), State: records.Reachable, CheckedAt: now},    // no provider
		{Provider: p, State: records.Busy, RoundTrip: -1, CheckedAt: time.Time{}},
	}
	data, err := SignFindings("test", key, findings)
	require.NoError(t, err)
	s, err := OpenFindings("test", data, now)
	require.NoError(t, err)
	require.Equal(t, id, s.By)
	require.Equal(t, data, s.Bytes)
	require.Len(t, s.Findings, 3)
	require.Equal(t, findings[0], s.Findings[0])
	require.Equal(t, records.Unreachable, s.Findings[1].State)

	many := make([]Finding, MaxFindings+5)
	for i := range many {
		many[i] = findings[0]
	}
	data, err = SignFindings("test", key, many)
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), MaxStatement)
	s, err = OpenFindings("test", data, now)
	require.NoError(t, err)
	require.Len(t, s.Findings, MaxFindings)
}

func TestStatementRefusals(t *testing.T) {
	key, _ := newKey(t)
	_, p := newKey(t)
	data, err := SignFindings("test", key, []Finding{{Provider: p, State: records.Unreachable, CheckedAt: start()}})
	require.NoError(t, err)
	change := func(f func(*pb.SignedFindings)) []byte {
		var m pb.SignedFindings
		require.NoError(t, proto.Unmarshal(data, &m))
		f(&m)
		out, err := proto.Marshal(&m)
		require.NoError(t, err)
		return out
	}
	_, other := newKey(t)
	for name, c := range map[string]struct {
		data []byte
		want fault.Kind
	}{
		"nonsense":     {[]byte("nonsense"), fault.Invalid},
		"empty":        {nil, fault.Invalid},
		"too large":    {make([]byte, MaxStatement+1), fault.TooLarge},
		"changed":      {change(func(m *pb.SignedFindings) { m.Findings[len(m.Findings)-1] ^= 1 }), fault.Unauthentic},
		"another's":    {change(func(m *pb.SignedFindings) { m.By = []byte(other) }), fault.Unauthentic},
		"no signature": {change(func(m *pb.SignedFindings) { m.Signature = nil }), fault.Unauthentic},
	} {
		_, err := OpenFindings("test", c.data, start())
		require.ErrorIs(t, err, c.want, name)
	}
}

func FuzzOpen(f *testing.F) {
	key, _ := newKey(f)
	data, err := SignFindings("test", key, []Finding{{Provider: "x", State: records.Busy, CheckedAt: start()}})
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = OpenFindings("test", b, start()) })
}

// A finding about an endpoint is one about an offer, with states of its own: it says nothing about the provider's
// peer.
func TestFindingsAboutEndpoints(t *testing.T) {
	key, by := newKey(t)
	_, provider := newKey(t)
	for _, state := range statesOf("a") {
		f := Finding{Provider: provider, Record: "a", State: state, RoundTrip: time.Millisecond, CheckedAt: start()}
		data, err := SignFindings("test", key, []Finding{f, {Provider: by, Record: "own", State: state, CheckedAt: start()}})
		require.NoError(t, err)
		s, err := OpenFindings("test", data, start().Add(FindingLife-time.Second))
		require.NoError(t, err)
		require.Len(t, s.Findings, 1, "nobody is a witness of itself")
		require.Equal(t, f.State, s.Findings[0].State)
		require.Equal(t, "a", s.Findings[0].Record)
	}
}
