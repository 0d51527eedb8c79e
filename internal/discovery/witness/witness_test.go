package witness

import (
	"crypto/rand"
	"fmt"
	"net/netip"
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

// state returns a statement of a new measurer about one provider.
func state(t testing.TB, provider peer.ID, s records.Reachability, at time.Time) Statement {
	key, _ := newKey(t)
	data, err := Sign("test", key, []Finding{{Provider: provider, State: s, RoundTrip: 20 * time.Millisecond, CheckedAt: at}})
	require.NoError(t, err)
	st, err := Open("test", data, at)
	require.NoError(t, err)
	return st
}

func prefix(n int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("198.51.%d.0/24", n)) }

func TestStatement(t *testing.T) {
	key, id := newKey(t)
	_, p := newKey(t)
	_, q := newKey(t)
	now := start()
	findings := []Finding{
		{Provider: p, State: records.Reachable, RoundTrip: 1500 * time.Microsecond, CheckedAt: now},
		{Provider: q, State: records.Unreachable, CheckedAt: now.Add(-Life + time.Millisecond)},
		{Provider: q, State: records.Busy, CheckedAt: now.Add(-Life)},     // too old
		{Provider: q, State: records.Busy, CheckedAt: now.Add(skew)},      // from the future
		{Provider: id, State: records.Reachable, CheckedAt: now},          // about itself
		{Provider: p, State: "mood", CheckedAt: now},                      // unknown
		{Provider: peer.ID("no id"), State: records.Busy, CheckedAt: now}, // kept as bytes
		{Provider: peer.ID(""), State: records.Reachable, CheckedAt: now}, // no provider
		{Provider: p, State: records.Busy, RoundTrip: -1, CheckedAt: time.Time{}},
	}
	data, err := Sign("test", key, findings)
	require.NoError(t, err)
	s, err := Open("test", data, now)
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
	data, err = Sign("test", key, many)
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), MaxSize)
	s, err = Open("test", data, now)
	require.NoError(t, err)
	require.Len(t, s.Findings, MaxFindings)
}

func TestStatementRefusals(t *testing.T) {
	key, _ := newKey(t)
	_, p := newKey(t)
	data, err := Sign("test", key, []Finding{{Provider: p, State: records.Unreachable, CheckedAt: start()}})
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
		"too large":    {make([]byte, MaxSize+1), fault.TooLarge},
		"changed":      {change(func(m *pb.SignedFindings) { m.Findings[len(m.Findings)-1] ^= 1 }), fault.Unauthentic},
		"another's":    {change(func(m *pb.SignedFindings) { m.By = []byte(other) }), fault.Unauthentic},
		"no signature": {change(func(m *pb.SignedFindings) { m.Signature = nil }), fault.Unauthentic},
	} {
		_, err := Open("test", c.data, start())
		require.ErrorIs(t, err, c.want, name)
	}
}

func FuzzOpen(f *testing.F) {
	key, _ := newKey(f)
	data, err := Sign("test", key, []Finding{{Provider: "x", State: records.Busy, CheckedAt: start()}})
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = Open("test", b, start()) })
}

// TestReachableSparesAMeasurement, but never three in a row, and not beyond its life.
func TestReachableSparesAMeasurement(t *testing.T) {
	o, now := NewOpinions(), start()
	_, p := newKey(t)
	require.False(t, o.Spare(p, now))
	o.Hear(state(t, p, records.Reachable, now), prefix(1), now)
	m, ok := o.Measured(p, now)
	require.True(t, ok)
	require.Equal(t, records.Measured{State: records.Reachable, RoundTrip: 20 * time.Millisecond, CheckedAt: now, Peers: 1}, m)
	o.Hear(state(t, p, records.Busy, now.Add(time.Second)), prefix(1), now)
	m, _ = o.Measured(p, now)
	require.Equal(t, records.Busy, m.State, "the newest")
	require.Equal(t, 2, m.Peers)
	for range 3 {
		for range SpareInARow {
			require.True(t, o.Spare(p, now))
		}
		require.False(t, o.Spare(p, now), "this peer measures")
	}
	_, ok = o.Measured(p, now.Add(Life+time.Second))
	require.False(t, ok)
	require.False(t, o.Spare(p, now.Add(Life+time.Second)))
}

// TestUnreachableIsDoubt: the word of others hides nothing. It counts by the prefixes that measurers delivered it from, and until somebody
// gets an answer.
func TestUnreachableIsDoubt(t *testing.T) {
	_, p := newKey(t)
	now := start()
	hear := func(networks ...netip.Prefix) *Opinions {
		o := NewOpinions()
		for _, from := range networks {
			o.Hear(state(t, p, records.Unreachable, now), from, now)
		}
		_, ok := o.Measured(p, now)
		require.False(t, ok)
		require.False(t, o.Spare(p, now), "this peer must measure")
		return o
	}
	require.Equal(t, 2, Networks(hear(prefix(1), prefix(2)).Gone(p, now)))
	require.Equal(t, 1, Networks(hear(prefix(1), prefix(1), prefix(1)).Gone(p, now)), "many in one prefix")
	require.Zero(t, Networks(hear(netip.Prefix{}, netip.Prefix{}).Gone(p, now)), "told by others")
	o := hear(prefix(1), prefix(2), prefix(3))
	require.Empty(t, o.Gone(p, now.Add(Life)), "too old")
	require.Empty(t, o.Gone("other", now))
	o.Hear(state(t, p, records.Busy, now), prefix(4), now)
	require.Empty(t, o.Gone(p, now), "somebody got an answer")
	o.Hear(state(t, p, records.Unreachable, now.Add(time.Second)), prefix(5), now.Add(time.Second))
	require.Len(t, o.Gone(p, now), 1, "and somebody none since")

	// A measurer that was quoted counts as soon as it delivers the same statement itself.
	o = hear(prefix(1))
	last := state(t, p, records.Unreachable, now)
	o.Hear(last, netip.Prefix{}, now)
	require.Equal(t, 1, Networks(o.Gone(p, now)))
	o.Hear(last, prefix(3), now)
	require.Equal(t, 2, Networks(o.Gone(p, now)))
	o.Hear(last, netip.Prefix{}, now)
	require.Equal(t, 2, Networks(o.Gone(p, now)), "a later quotation takes nothing away")

	// One measurer counts once, from however many networks.
	o = NewOpinions()
	st := state(t, p, records.Unreachable, now)
	for i := range 5 {
		o.Hear(st, prefix(i), now)
	}
	require.Equal(t, 1, Networks(o.Gone(p, now)))
}

func TestOpinionsAreBounded(t *testing.T) {
	o, now := NewOpinions(), start()
	for i := range maxSubjects + 100 {
		for j := range maxHeard + 2 {
			st := Statement{By: peer.ID(fmt.Sprint(j)), Findings: []Finding{{Provider: peer.ID(fmt.Sprint(i)), State: records.Unreachable, CheckedAt: now}}}
			o.Hear(st, prefix(j), now)
		}
	}
	require.Equal(t, maxSubjects, o.subjects.Len())
	s, _ := o.subjects.Peek(peer.ID(fmt.Sprint(maxSubjects)))
	require.Len(t, s.heard, maxHeard)
}

func TestPool(t *testing.T) {
	p, now := NewPool(""), start()
	_, x := newKey(t)
	a, b := state(t, x, records.Reachable, now), state(t, x, records.Busy, now)
	p.Put(a, prefix(1), now)
	p.Put(b, prefix(2), now)
	p.Put(b, prefix(2), now) // replaces itself
	require.Equal(t, [][]byte{a.Bytes, b.Bytes}, p.About(keysOf(x, "unknown", x), "", now))
	require.Equal(t, [][]byte{b.Bytes}, p.About(keysOf(x), a.By, now))
	require.Empty(t, p.About(keysOf(x), "", now.Add(Life)))

	// Many measurers in one network take two places, those of others remain free.
	for range 10 {
		p.Put(state(t, x, records.Unreachable, now), prefix(3), now)
	}
	require.Len(t, p.About(keysOf(x), "", now), 4)
	for i := range 10 {
		p.Put(state(t, x, records.Busy, now), prefix(4+i), now)
	}
	require.Len(t, p.About(keysOf(x), "", now), maxOfProvider)
	for i := range maxProviders + 10 {
		p.Put(Statement{By: a.By, Bytes: []byte(fmt.Sprint(i)), Findings: []Finding{{Provider: peer.ID(fmt.Sprint(i)), CheckedAt: now}}}, prefix(1), now)
	}
	require.Equal(t, maxProviders, p.about.Len())
	var all []peer.ID
	for i := range MaxTold + 20 {
		all = append(all, peer.ID(fmt.Sprint(maxProviders-i)))
	}
	require.Len(t, p.About(keysOf(all...), "", now), MaxTold)
}

func keysOf(ids ...peer.ID) (keys []string) {
	for _, id := range ids {
		keys = append(keys, Key(id, ""))
	}
	return keys
}

// A finding about an endpoint is one about an offer, with states of its own: it says nothing about the provider's peer.
func TestFindingsAboutEndpoints(t *testing.T) {
	key, by := newKey(t)
	_, provider := newKey(t)
	for _, state := range endpointStates() {
		f := Finding{Provider: provider, Record: "a", State: state, RoundTrip: time.Millisecond, CheckedAt: start()}
		data, err := Sign("test", key, []Finding{f, {Provider: by, Record: "own", State: state, CheckedAt: start()}})
		require.NoError(t, err)
		s, err := Open("test", data, start().Add(EndpointLife-time.Second))
		require.NoError(t, err)
		require.Len(t, s.Findings, 1, "nobody is a witness of itself")
		require.Equal(t, f.State, s.Findings[0].State)
		require.Equal(t, "a", s.Findings[0].Record)
		o := NewOpinions()
		o.Hear(s, netip.Prefix{}, start())
		_, known := o.Measured(provider, start())
		require.False(t, known)
		p := NewPool("")
		p.Put(s, netip.Prefix{}, start())
		require.Len(t, p.About([]string{Key(provider, "a")}, "", start()), 1)
		require.Empty(t, p.About([]string{Key(provider, ""), Key(provider, "b")}, "", start()))
	}
}
