package gossip

import (
	"bytes"
	"crypto/ed25519"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// t0 is the present time of the tests.
func t0() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// key returns the key of the nth provider.
func key(tb testing.TB, n byte) crypto.PrivKey {
	tb.Helper()
	raw := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
	k, err := crypto.UnmarshalEd25519PrivateKey(raw)
	require.NoError(tb, err)
	return k
}

// service returns a relay service at a point, or without a place.
func service(id string, at *geo.Point) records.Offer {
	o := records.Offer{ID: id, Metadata: records.Metadata{Type: "relay"}}
	if at != nil {
		o.Location = &records.Location{Latitude: &at.Lat, Longitude: &at.Lon}
	}
	return o
}

// sign returns a version of an offer of the nth provider, issued at a time after t0.
func sign(tb testing.TB, n byte, o records.Offer, after time.Duration) *records.Record {
	tb.Helper()
	at := t0().Add(after)
	r, err := records.Sign("test", key(tb, n), o, records.Stamp{
		Sequence: records.NextSequence(0, at), Issued: at, Expires: at.Add(time.Hour),
	})
	require.NoError(tb, err)
	return r
}

// berlin lies in the cell u3.
func berlin() *geo.Point { return &geo.Point{Lat: 52.52, Lon: 13.405} }

func around(at *geo.Point, km float64) *geo.Disc {
	return &geo.Disc{Center: *at, Radius: 1000 * km}
}

func TestParseTopic(t *testing.T) {
	for s, want := range map[string]Topic{
		"/blackhole/test/live/1/storage/u3":                             {"storage", "u3"},
		"/blackhole/test/live/1/storage/global":                         {"storage", geo.Global},
		"/blackhole/test/live/1/a-1/00":                                 {"a-1", "00"},
		"/blackhole/test/live/1/" + strings.Repeat("x", 32) + "/global": {strings.Repeat("x", 32), geo.Global},
	} {
		got, err := parseTopic("test", s)
		require.NoError(t, err, s)
		require.Equal(t, want, got)
		require.Equal(t, s, got.In("test"))
	}
	for _, s := range []string{
		"", "/", "storage/u3", "/blackhole/test/live/1/", "/blackhole/test/live/1/storage", "/blackhole/test/live/1/storage/",
		"/blackhole/test/live/1//u3", "/blackhole/test/live/1/storage/u", "/blackhole/test/live/1/storage/u33",
		"/blackhole/test/live/1/storage/U3", "/blackhole/test/live/1/storage/ua", "/blackhole/test/live/1/storage/Global",
		"/blackhole/test/live/1/storage/globalx", "/blackhole/test/live/1/storage/u3/", "/blackhole/test/live/1/storage/u3/x",
		"/blackhole/test/live/1/Storage/u3", "/blackhole/test/live/1/sto rage/u3", "/blackhole/test/live/1/_/u3",
		"/blackhole/test/live/1/storage/u3\n", "\n/blackhole/test/live/1/storage/u3", "x/blackhole/test/live/1/storage/u3",
		"/blackhole/test2/live/1/storage/u3", "/blackhole/tes/live/1/storage/u3", "/blackhole/live/1/storage/u3",
		"/blackhole/test/live/2/storage/u3", "/blackhole/test/live/1/storage/../u3", "/blackhole/test/live/1/storage\x00/u3",
		"/blackhole/test/live/1/" + strings.Repeat("x", 33) + "/u3", strings.Repeat("/", 1<<16),
	} {
		_, err := parseTopic("test", s)
		require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "topic"}, "%.80q", s)
	}
}

func FuzzParseTopic(f *testing.F) {
	f.Add("/blackhole/test/live/1/storage/u3")
	f.Add("/blackhole/test/live/1/storage/global")
	f.Add("/blackhole/test/live/1/storage/u3/")
	f.Fuzz(func(t *testing.T, s string) {
		topic, err := parseTopic("test", s)
		if err == nil && (topic.In("test") != s || len(topic.String()) > maxTopic) {
			t.Fatalf("%q is read as %v", s, topic)
		}
	})
}

func TestTopicsOf(t *testing.T) {
	global := Topic{"relay", geo.Global}
	require.Equal(t, []Topic{global}, topicsOf(sign(t, 1, service("a", nil), 0)))
	require.Equal(t, []Topic{{"relay", "u3"}, global}, topicsOf(sign(t, 1, service("a", berlin()), 0)))
	zero := topicsOf(sign(t, 1, service("a", &geo.Point{}), 0))
	require.Equal(t, []Topic{{"relay", "s0"}, global}, zero, "(0, 0) is a place")
}

func TestTopicsFor(t *testing.T) {
	global := []Topic{{"relay", geo.Global}}
	require.Equal(t, []Topic{{"relay", "u3"}}, TopicsFor("relay", around(berlin(), 10)))
	require.Equal(t, global, TopicsFor("relay", nil))
	require.Equal(t, global, TopicsFor("relay", around(berlin(), 5000)))
	require.Len(t, TopicsFor("relay", around(&geo.Point{}, 10)), 4, "four cells meet at (0, 0)")
}

// The topics of a disc carry every record in it.
func TestTopicsCoverEveryMatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := &geo.Point{Lat: rapid.Float64Range(-90, 90).Draw(rt, "lat"), Lon: rapid.Float64Range(-180, 179.9).Draw(rt, "lon")}
		center := &geo.Point{
			Lat: min(90, max(-90, at.Lat+rapid.Float64Range(-5, 5).Draw(rt, "dlat"))),
			Lon: min(180, max(-180, at.Lon+rapid.Float64Range(-5, 5).Draw(rt, "dlon"))),
		}
		disc := around(center, rapid.Float64Range(0.001, 3000).Draw(rt, "km"))
		r := sign(t, 1, service("a", at), 0)
		followed := TopicsFor("relay", disc)
		if len(followed) > maxCover {
			rt.Fatalf("%d topics", len(followed))
		}
		heard := slices.ContainsFunc(topicsOf(r), func(topic Topic) bool { return slices.Contains(followed, topic) })
		if geo.Distance(disc.Center, *at) <= disc.Radius && !heard {
			rt.Fatalf("%v is not among %v", topicsOf(r), followed)
		}
	})
}
