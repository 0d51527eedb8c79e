package mcpapi_test

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/frontend/mcpapi"
	"github.com/blackhole/blackhole/internal/platform/clock"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/records"
)

// entries is the size of the network that searches look through.
const entries = 60_000

// keepsAll is a keeper of every cell, as each peer of a small network is.
type keepsAll struct {
	*discoverytest.Network
	index *index.Index
}

// Local implements discovery.Keepers.
func (k keepsAll) Local(p *queries.Plan) (queries.Found, bool) {
	a := k.index.Search(p, index.SearchOptions{Now: time.Now(), AtLeast: !p.ExactTotal()})
	found := queries.Found{Total: a.Total, AtLeast: !a.Exact, Complete: true, Local: true}
	for _, h := range a.Hits {
		found.Records = append(found.Records, h.Record)
	}
	return found, true
}

// Clock implements discovery.Keepers.
func (keepsAll) Clock() clock.Estimate { return clock.Estimate{} }

// silent is a network without changes.
type silent struct{}

// Follow implements discovery.Updates.
func (silent) Follow([]gossip.Topic) (func(), error) { return func() {}, nil }

// Publish implements discovery.Updates.
func (silent) Publish(context.Context, *records.Record) error { return nil }

const offersOfOne = 100 // offers of one provider

// advertised returns an offer with the texts that people write.
func advertised(rng *rand.Rand, n int) records.Offer {
	kinds, words := searched(), []string{"translation", "weather", "rendering", "archive", "speech", "mapping", "forecast", "vision"}
	kind, about := kinds[n%len(kinds)], words[n/len(kinds)%len(words)]
	place := n / offersOfOne // a provider stands in one country
	lat, lon := rng.Float64()*2+float64(place%70), rng.Float64()*2+float64(place%170)
	return discoverytest.Offer(fmt.Sprintf("offer-%05d", n), discoverytest.At(lat, lon), discoverytest.Priced(rng.Float64()), func(o *records.Offer) {
		o.Capabilities = map[string]*records.Capabilities{
			"bandwidth": {Bandwidth: &records.Bandwidth{UploadMbps: 1, DownloadMbps: 1}}, "cdn": {CDN: &records.CDN{BandwidthMbps: 1}}, "compute": o.Capabilities,
			"storage": {Storage: &records.Storage{TotalSpace: 1 << 40, AvailableSpace: 1 << 39, MaxObjectSize: 5000}},
		}[kind]
		o.Location.Country, o.Location.City = string([]byte{'A' + byte(place%13), 'A' + byte(place%5)}), "Some City"
		o.Metadata = records.Metadata{
			Type: kind, Name: "An offer of " + about, Version: "1.4.2", Protocols: []string{"https", "mcp"}, Attributes: map[string]string{"tier": "gold"},
			Description: "One of many offers of " + about + ", with a description as people write it: two lines, some praise, the opening hours.",
			Endpoints:   []string{"mcp+https://node.example.net:8443/mcp"},
		}
	})
}

func searched() []string {
	return []string{"agent", "bandwidth", "cdn", "compute", "mcp", "model", "storage", "tool"}
}

// serveEntries serves a peer that keeps n offers, of which a provider has a hundred.
func serveEntries(b *testing.B, n int) http.Handler {
	b.Helper()
	rng, now := rand.New(rand.NewPCG(1, 2)), time.Now()
	var keys []crypto.PrivKey
	known := index.New(index.Config{})
	for i := range n {
		if i%offersOfOne == 0 {
			seed := make([]byte, ed25519.SeedSize)
			binary.BigEndian.PutUint64(seed, uint64(i)+1)
			key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(seed))
			require.NoError(b, err)
			keys = append(keys, key)
		}
		r, err := records.Sign("test", keys[len(keys)-1], advertised(rng, i), records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(time.Hour)})
		require.NoError(b, err)
		_, err = known.Put(r, now)
		require.NoError(b, err)
	}
	own, err := offers.Open(offers.Config{Network: "test", Dir: "/registry", FS: vfs.NewMem(), Key: keys[0]}, now)
	require.NoError(b, err)
	h := discoverytest.New(b)
	s, err := engine.NewService(engine.Parts{
		Registry: own, Index: known, Keepers: keepsAll{h.Network, known}, Updates: silent{}, Peers: h.Peers, Now: time.Now, Random: rng.Uint64,
	}, engine.Settings{})
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, s.Close())
		require.NoError(b, own.Close())
	})
	api := httpapi.New(httpapi.Config{Registrar: s, Finder: s, Node: h.Node, Metrics: http.NotFoundHandler()})
	b.Cleanup(func() { api.Close() })
	mux := http.NewServeMux()
	for _, r := range mcpapi.New(mcpapi.Config{API: api.Handler(), Version: "1"}).Routes() {
		mux.Handle(r.Pattern, r.Handler)
	}
	return mux
}

// BenchmarkSearch searches a network by Agentic Resource Discovery, one search at a time. Known searches were asked before;
// new ones were not, so the index answers.
func BenchmarkSearch(b *testing.B) {
	serve := serveEntries(b, entries)
	for name, query := range map[string]func(n int) string{
		"known": func(int) string { return `"text":"an offer of weather"` },
		"new": func(n int) string {
			return fmt.Sprintf(`"text":"an offer of weather","filter":{"location.country":["AA","BB","CC","%c%c"]}`, 'A'+n%26, 'A'+n/26%26)
		},
		"rare": func(n int) string { return fmt.Sprintf(`"text":"offer-%05d"`, n%entries) }, // the words of one offer
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				r := httptest.NewRequestWithContext(context.Background(), "POST", "/search", strings.NewReader(`{"query":{`+query(n)+`}}`))
				r.Host = "localhost"
				w := httptest.NewRecorder()
				start := time.Now()
				serve.ServeHTTP(w, r)
				took = append(took, time.Since(start))
				if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"score":100`) {
					b.Fatal(w.Code, w.Body.String())
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}
