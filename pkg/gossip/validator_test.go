package gossip

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	cellTopic   = "/blackhole/test/live/1/relay/u3" // of berlin
	globalTopic = "/blackhole/test/live/1/relay/global"
	sender      = peer.ID("sender")
)

// tally records outcomes.
type tally []string

func (l *tally) Received(outcome string) { *l = append(*l, outcome) }

// fixture is a validator with a clock and known records under control of the test.
type fixture struct {
	*validator
	now   time.Time
	known map[records.Name]*records.Record
	tally tally
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	verifier, err := records.NewVerifier("test", 64)
	require.NoError(tb, err)
	j := &fixture{now: t0(), known: make(map[records.Name]*records.Record)}
	c := Config{
		Network:  "test",
		Verifier: verifier,
		Now:      func() time.Time { return j.now },
		Known:    func(n records.Name) (*records.Record, bool) { r, ok := j.known[n]; return r, ok },
		Received: j.tally.Received,
	}
	c.setDefaults()
	j.validator = newValidator(c)
	return j
}

func message(topic string, data []byte) *pubsub.Message {
	return &pubsub.Message{Message: &pb.Message{Topic: &topic, Data: data}}
}

// hear validates one message and returns the recorded outcome.
func (j *fixture) hear(tb testing.TB, m *pubsub.Message) string {
	tb.Helper()
	before := len(j.tally)
	result := j.validate(tb.Context(), sender, m)
	require.Len(tb, j.tally, before+1)
	o := j.tally[before]
	require.Equal(tb, outcome(o).validation(), result)
	_, handed := m.ValidatorData.(*records.Record)
	require.Equal(tb, o == string(accepted), handed, "only an accepted record is delivered")
	return o
}

func TestValidator(t *testing.T) {
	r := sign(t, 1, service("a", berlin()), 0)
	older, younger := sign(t, 1, service("a", berlin()), -time.Second), sign(t, 1, service("a", berlin()), time.Second)
	swapped := append([]byte(nil), r.Envelope()...)
	swapped[len(swapped)-1] ^= 1
	ballast := message(cellTopic, r.Envelope())
	ballast.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "x"))

	later := recordstest.Later(t, key(t, 1), r)
	critical := recordstest.Later(t, key(t, 1), r, recordstest.Needs("auction.v2"))
	major := recordstest.Record("test", 2, []byte("?"))
	elsewhere := r.Service()
	elsewhere.Signature = nil
	unruly := r.Service()
	unruly.Signature, unruly.Id = nil, strings.Repeat("x", 100)

	for _, c := range []struct {
		name  string
		m     *pubsub.Message
		known *records.Record
		at    time.Duration // of the validation, after t0
		want  outcome
	}{
		{"fresh", message(cellTopic, r.Envelope()), nil, 0, accepted},
		{"fresh on the global topic", message(globalTopic, r.Envelope()), nil, 0, accepted},
		{"update", message(cellTopic, r.Envelope()), older, 0, accepted},
		{"came by a keeper before", message(cellTopic, r.Envelope()), r, relayWindow, accepted},
		{"replay of the current version", message(cellTopic, r.Envelope()), r, relayWindow + 1, stale},
		{"older than known", message(cellTopic, r.Envelope()), younger, 0, stale},
		{"expired", message(cellTopic, r.Envelope()), nil, time.Hour, stale},
		{"from the future", message(cellTopic, r.Envelope()), nil, -records.ClockSkew - 1, stale},
		{"flipped bit of the signature", message(cellTopic, swapped), nil, 0, forged},
		{"not an envelope", message(cellTopic, []byte("hello")), nil, 0, forged},
		{"empty", message(cellTopic, nil), nil, 0, forged},
		{"unknown field in the envelope", message(cellTopic, protowire.AppendVarint(append([]byte(nil), append(r.Envelope(), 0x78)...), 1)), nil, 0, forged},
		{"unknown field beside it", ballast, nil, 0, altered},
		{"of a later version", message(cellTopic, later.Envelope()), nil, 0, accepted},
		{"with a feature of a later version", message(cellTopic, critical.Envelope()), nil, 0, accepted},
		{"of a later major version", message(cellTopic, recordstest.Seal(t, key(t, 1), major)), nil, 0, newer},
		{"of another network", message(cellTopic, recordstest.Sign(t, "other", key(t, 1), elsewhere)), nil, 0, foreign},
		{"against the rules of this version", message(cellTopic, recordstest.Sign(t, "test", key(t, 1), unruly)), nil, 0, invalid},
		{"oversize", message(cellTopic, make([]byte, records.MaxSize+1)), nil, 0, oversize},
		{"of another cell", message("/blackhole/test/live/1/relay/9q", r.Envelope()), nil, 0, wrongTopic},
		{"of another type", message("/blackhole/test/live/1/storage/u3", r.Envelope()), nil, 0, wrongTopic},
		{"no topic of ours", message("weather", r.Envelope()), nil, 0, wrongTopic},
		{"no topic", message("", r.Envelope()), nil, 0, wrongTopic},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newFixture(t)
			j.now = t0().Add(c.at)
			if c.known != nil {
				j.known[c.known.Name()] = c.known
			}
			require.Equal(t, string(c.want), j.hear(t, c.m))
		})
	}
}

func TestValidationResults(t *testing.T) {
	for o, want := range map[outcome]pubsub.ValidationResult{
		accepted: pubsub.ValidationAccept,
		stale:    pubsub.ValidationIgnore, throttled: pubsub.ValidationIgnore,
		newer: pubsub.ValidationIgnore, foreign: pubsub.ValidationIgnore, invalid: pubsub.ValidationIgnore,
		forged: pubsub.ValidationReject, altered: pubsub.ValidationReject, wrongTopic: pubsub.ValidationReject, oversize: pubsub.ValidationReject,
	} {
		require.Equal(t, want, o.validation(), o)
	}
}

// This peer's own record is known before its publication, and counts against no rate.
func TestOwnMessagesPass(t *testing.T) {
	j := newFixture(t)
	m := message(cellTopic, nil)
	m.ValidatorData = own{}
	require.Equal(t, pubsub.ValidationAccept, j.validate(t.Context(), sender, m))
	require.Empty(t, j.tally)
}

// Each provider has its own rate; replays and forgeries of other peers leave it unchanged.
func TestProviderRate(t *testing.T) {
	j := newFixture(t)
	last := sign(t, 1, service("x", berlin()), time.Minute)
	j.known[last.Name()] = last
	for range providerBurst {
		require.Equal(t, string(stale), j.hear(t, message(cellTopic, sign(t, 1, service("x", berlin()), 0).Envelope())))
	}
	for i := range copies * providerBurst {
		require.Equal(t, string(accepted), j.hear(t, message(cellTopic, sign(t, 1, service(fmt.Sprint(i), berlin()), 0).Envelope())))
	}
	next := message(cellTopic, sign(t, 1, service("next", berlin()), 0).Envelope())
	require.Equal(t, string(throttled), j.hear(t, next))
	require.Equal(t, string(accepted), j.hear(t, message(cellTopic, sign(t, 2, service("other", berlin()), 0).Envelope())))
	j.now = j.now.Add(time.Second / (copies * providerRate))
	require.Equal(t, string(accepted), j.hear(t, next))
}

// A sender of rejected messages is soon ignored, with or without a score.
func TestSenderOfForgeries(t *testing.T) {
	j := newFixture(t)
	honest := message(cellTopic, sign(t, 1, service("a", berlin()), 0).Envelope())
	for range faultBurst {
		require.Equal(t, string(forged), j.hear(t, message(cellTopic, []byte("x"))))
	}
	require.Equal(t, string(throttled), j.hear(t, honest))
	require.Equal(t, pubsub.ValidationAccept, j.validate(t.Context(), "another", message(cellTopic, honest.Data)))
	j.now = j.now.Add(10 * time.Second)
	require.Equal(t, string(accepted), j.hear(t, honest))
}

func TestRateLimitersAreBounded(t *testing.T) {
	a := newRateLimiters(1, 1)
	for i := range 2 * buckets {
		require.True(t, a.take(peer.ID(fmt.Sprint(i)), t0()))
		require.False(t, a.empty(peer.ID(fmt.Sprint("never seen ", i)), t0()))
	}
	require.Equal(t, buckets, a.buckets.Len())
	require.True(t, a.empty(peer.ID(fmt.Sprint(2*buckets-1)), t0()))
}

func TestMessageID(t *testing.T) {
	id := func(topic, data string) string { return messageID(message(topic, []byte(data)).Message) }
	require.Len(t, id("a", "b"), messageIDSize)
	require.Equal(t, id("a", "b"), id("a", "b"))
	seen := make(map[string]bool)
	for _, m := range [][2]string{{"a", "b"}, {"ab", ""}, {"", "ab"}, {"a", "c"}, {"b", "a"}, {"", ""}} {
		require.False(t, seen[id(m[0], m[1])], m)
		seen[id(m[0], m[1])] = true
	}
	authored := message("a", []byte("b")).Message
	authored.From, authored.Seqno = []byte("me"), []byte{1}
	require.Equal(t, id("a", "b"), messageID(authored), "the id does not depend on the author")
}

// FuzzValidator feeds the validator with any input: it never panics, and accepts only the
// canonical form of a record on its own topic.
func FuzzValidator(f *testing.F) {
	r := sign(f, 1, service("a", berlin()), 0)
	wire := func(topic string, data []byte) []byte {
		b, err := proto.Marshal(message(topic, data).Message)
		require.NoError(f, err)
		return b
	}
	f.Add(wire(cellTopic, r.Envelope()))
	f.Add(wire(globalTopic, r.Envelope()))
	f.Add(wire("", []byte("x")))
	f.Add([]byte{0xff})
	j := newFixture(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m pb.Message
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		got, o := j.validateRecord(peer.ID(m.GetFrom()), &pubsub.Message{Message: &m})
		if (o == accepted) != (got != nil) {
			t.Fatalf("%s with the record %v", o, got)
		}
		if o != accepted {
			return
		}
		topic, err := parseTopic("test", m.GetTopic())
		if err != nil || topic.Type != got.Type() || string(got.Envelope()) != string(m.GetData()) {
			t.Fatalf("accepted %x on %q", m.GetData(), m.GetTopic())
		}
		if p, ok := got.Facts().Place(); topic.Cell != geo.Global && (!ok || !topic.Cell.Contains(p)) {
			t.Fatalf("accepted a record at %v on %q", p, m.GetTopic())
		}
	})
}

func BenchmarkValidator(b *testing.B) {
	r := sign(b, 1, service("a", berlin()), 0)
	j := newFixture(b)
	j.providers = newRateLimiters(1e12, 1e9)
	for _, c := range []struct{ name, topic string }{{"verified before", cellTopic}, {"wrong topic", "/blackhole/test/live/1/relay/9q"}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				j.validateRecord(sender, message(c.topic, r.Envelope()))
			}
		})
	}
	b.Run("message id", func(b *testing.B) {
		b.ReportAllocs()
		m := message(cellTopic, r.Envelope())
		for b.Loop() {
			messageID(m.Message)
		}
	})
}
