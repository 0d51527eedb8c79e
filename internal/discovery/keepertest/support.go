// Package keepertest makes records, providers and metrics for the tests of the rooms around keepers.
package keepertest

import (
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/metrics/metricstest"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Feature is a critical feature of a later version.
const Feature = "auction.v2"

// Provider signs records.
type Provider struct {
	Key crypto.PrivKey
	Id  peer.ID
}

// NewProvider returns a provider with a new key.
func NewProvider(t testing.TB) Provider {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(crand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	return Provider{key, id}
}

// Offer returns a compute service in Berlin, changed by edits.
func Offer(id string, edits ...func(*records.Offer)) records.Offer {
	lat, lon, price := 52.52, 13.405, 1.0
	o := records.Offer{
		ID:           id,
		Metadata:     records.Metadata{Type: "compute", Subtype: "gpu", Endpoints: []string{"https://example.org"}},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 16000}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE"},
		Pricing:      &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
		Health:       &records.Health{Status: "HEALTHY"},
	}
	for _, edit := range edits {
		edit(&o)
	}
	return o
}

// Priced sets the price of an offer.
func Priced(price float64) func(*records.Offer) {
	return func(o *records.Offer) { o.Pricing.BasePrice = &price }
}

// Nowhere removes the place and the subtype of an offer.
func Nowhere(o *records.Offer) { o.Location, o.Metadata.Subtype = nil, "" }

// Sign returns the record of an offer, valid for a day.
func (p Provider) Sign(t testing.TB, o records.Offer, sequence uint64, now time.Time) *records.Record {
	t.Helper()
	r, err := records.Sign("test", p.Key, o, records.Stamp{Sequence: sequence, Issued: now, Expires: now.Add(24 * time.Hour)})
	require.NoError(t, err)
	return r
}

// Withdraw returns the tombstone of a record.
func (p Provider) Withdraw(t testing.TB, r *records.Record, now time.Time) *records.Record {
	t.Helper()
	tomb, err := records.Tombstone(p.Key, r, records.Stamp{Sequence: r.Sequence() + 1, Issued: now, Expires: now.Add(24 * time.Hour)})
	require.NoError(t, err)
	return tomb
}

// Compile returns the plan of a query, of type compute by default.
func Compile(t testing.TB, q query.Query) *queries.Plan {
	t.Helper()
	if q.Type == "" {
		q.Type = "compute"
	}
	p, err := queries.Compile(q, queries.Defaults{})
	require.NoError(t, err)
	return p
}

// Around returns a query for a disc around Berlin, cheapest first.
func Around(radius float64) query.Query {
	return query.Query{
		Near: &query.Near{Latitude: 52.52, Longitude: 13.405, RadiusKM: &radius}, Sort: query.SortPrice, Explain: true,
	}
}

// Counts are metrics that a test reads.
type Counts struct {
	*metrics.Discovery
	t         testing.TB
	registry  *prometheus.Registry
	mu        sync.Mutex         // guards forgotten
	forgotten map[string]float64 // values at the last Forget
}

// NewCounts returns metrics of a registry of their own.
func NewCounts(t testing.TB) *Counts {
	c := &Counts{t: t, registry: prometheus.NewRegistry()}
	var err error
	c.Discovery, err = metrics.NewDiscovery(c.registry)
	require.NoError(t, err)
	return c
}

// Operations counts the operations of a name since the last Forget.
func (c *Counts) Operations(name string) int {
	return c.read()["blackhole_discovery_dht_operations_total{"+name+"}"]
}

// Refusals counts the refusals for a reason.
func (c *Counts) Refusals(reason string) int {
	return c.read()["blackhole_discovery_refused_total{"+reason+"}"]
}

// Lacks counts the refusals of keepers that do not know a field, by field.
func (c *Counts) Lacks() map[string]int { return c.by("blackhole_discovery_keepers_lacking_total{") }

// Distrust counts the answers that an honest peer cannot give, by kind.
func (c *Counts) Distrust() map[string]int { return c.by("blackhole_discovery_refused_total{answer_") }

// by returns the counts that are not zero of the series with a prefix, by the rest of their label.
func (c *Counts) by(prefix string) map[string]int {
	kinds := make(map[string]int)
	for series, n := range c.read() {
		if kind, ok := strings.CutPrefix(series, prefix); ok && n > 0 {
			kinds[strings.TrimSuffix(kind, "}")] = n
		}
	}
	return kinds
}

func (c *Counts) read() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := make(map[string]int)
	for series, v := range metricstest.Values(c.t, c.registry) {
		now[series] = int(v - c.forgotten[series])
	}
	return now
}

// Forget begins to count again.
func (c *Counts) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten = metricstest.Values(c.t, c.registry)
}

// Batch returns n compute records of one provider around Berlin, by increasing price.
func Batch(t testing.TB, p Provider, n int, now time.Time) []*records.Record {
	recs := make([]*records.Record, n)
	for i := range recs {
		recs[i] = p.Sign(t, Offer(fmt.Sprintf("s%03d", i), Priced(float64(i))), 1, now)
	}
	return recs
}

// NamesOf returns the ids of some records.
func NamesOf(recs []*records.Record) []string {
	names := make([]string, len(recs))
	for i, r := range recs {
		names[i] = r.Name().ID
	}
	return names
}

// PeersOf returns n peer ids.
func PeersOf(n int) []peer.ID {
	ids := make([]peer.ID, n)
	for i := range ids {
		ids[i] = peer.ID(fmt.Sprintf("peer-%d", i))
	}
	return ids
}

// NewVerifier returns a verifier of the network test.
func NewVerifier(t testing.TB) *records.Verifier {
	t.Helper()
	v, err := records.NewVerifier("test", 1000)
	require.NoError(t, err)
	return v
}

// CellOfBerlin returns the cell of length n around the services of these tests.
func CellOfBerlin(n int) records.CellKey {
	return records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.CellOf(geo.Point{Lat: 52.52, Lon: 13.405}, n)}
}

// Many returns n services at one place; each provider has each of them.
func Many(t testing.TB, n, each int) []*records.Record {
	recs := make([]*records.Record, n)
	var p Provider
	for i := range recs {
		if i%each == 0 {
			p = NewProvider(t)
		}
		recs[i] = p.Sign(t, Offer(fmt.Sprintf("s%d", i), func(o *records.Offer) { o.Metadata.Subtype = "" }), 1, time.Now())
	}
	return recs
}

// Spread returns n records of many providers across Europe.
func Spread(t testing.TB, n int, random *rand.Rand) []*records.Record {
	recs := make([]*records.Record, n)
	var p Provider
	for i := range recs {
		if i%50 == 0 {
			p = NewProvider(t)
		}
		lat, lon := 36+20*random.Float64(), -10+40*random.Float64()
		recs[i] = p.Sign(t, Offer(fmt.Sprintf("s%04d", i), Priced(random.Float64()), func(o *records.Offer) {
			o.Location.Latitude, o.Location.Longitude = &lat, &lon
		}), 1, time.Now())
	}
	return recs
}

// Later signs an offer as a later version of the program.
func (p Provider) Later(t testing.TB, id string, sequence uint64, edits ...func(*dpb.ServiceRecord)) *records.Record {
	t.Helper()
	return recordstest.Later(t, p.Key, p.Sign(t, Offer(id), sequence, time.Now()), edits...)
}
