package index_test

import (
	"crypto/ed25519"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// epoch is the start time of the tests.
func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// keyOf makes the key of the n-th provider.
func keyOf(t testing.TB, n int) crypto.PrivKey {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	binary.BigEndian.PutUint64(seed, uint64(n)+1)
	key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(seed))
	require.NoError(t, err)
	return key
}

func idOf(t testing.TB, key crypto.PrivKey) peer.ID {
	t.Helper()
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	return id
}

// stamp describes a version issued at epoch plus at, valid for ttl.
func stamp(sequence uint64, at, ttl time.Duration) records.Stamp {
	issued := epoch().Add(at)
	return records.Stamp{Sequence: sequence, Issued: issued, Expires: issued.Add(ttl)}
}

func sign(t testing.TB, key crypto.PrivKey, o records.Offer, st records.Stamp) *records.Record {
	t.Helper()
	r, err := records.Sign("test", key, o, st)
	require.NoError(t, err)
	return r
}

// tombstone withdraws a record.
func tombstone(t testing.TB, key crypto.PrivKey, last *records.Record, st records.Stamp) *records.Record {
	t.Helper()
	r, err := records.Tombstone(key, last, st)
	require.NoError(t, err)
	return r
}

func plan(t testing.TB, q query.Query) *queries.Plan {
	t.Helper()
	p, err := queries.Compile(q, queries.Defaults{})
	require.NoError(t, err)
	return p
}

func ptr[T any](v T) *T { return &v }

// cdn returns a minimal service.
func cdn(id string) records.Offer {
	return records.Offer{
		ID:           id,
		Metadata:     records.Metadata{Type: "cdn"},
		Capabilities: &records.Capabilities{CDN: &records.CDN{BandwidthMbps: 100}},
	}
}

// names lists the ids of hits in their order.
func names(hits []queries.Hit) []string {
	ids := make([]string, len(hits))
	for i, h := range hits {
		ids[i] = h.Record.Name().ID
	}
	return ids
}

// scan computes the expected result of Search naively.
func scan(all []*records.Record, p *queries.Plan, o index.SearchOptions) index.Found {
	hits := []queries.Hit{}
	for _, r := range all {
		if !r.Expired(o.Now) && inCells(r, o.Cells) && p.Match(r) {
			hits = append(hits, p.Hit(r))
		}
	}
	p.Arrange(hits)
	f := index.Found{Hits: hits, Total: len(hits), Next: math.Inf(1)}
	if len(hits) > p.Limit() {
		f.Hits, f.Next = hits[:p.Limit()], hits[p.Limit()].Bound()
	}
	return f
}

func inCells(r *records.Record, cells []geo.Cell) bool {
	at, placed := r.Facts().Place()
	return cells == nil || slices.ContainsFunc(cells, func(c geo.Cell) bool {
		return c == geo.Global || placed && c.Contains(at)
	})
}

// requireSame compares a result with the naive one.
func requireSame(t require.TestingT, want, got index.Found) {
	require.True(t, got.Exact)
	require.Equal(t, want.Total, got.Total, "total")
	requireSameHits(t, want, got)
}

// requireAtLeast compares a result with the naive one, and accepts a lower bound as its total.
func requireAtLeast(t require.TestingT, want, got index.Found) {
	require.GreaterOrEqual(t, want.Total, got.Total, "total")
	if got.Exact {
		require.Equal(t, want.Total, got.Total, "total")
	}
	require.GreaterOrEqual(t, got.Total, len(got.Hits))
	requireSameHits(t, want, got)
}

func requireSameHits(t require.TestingT, want, got index.Found) {
	require.Equal(t, want.Next, got.Next, "next")
	require.Equal(t, names(want.Hits), names(got.Hits))
	for i := range want.Hits {
		require.Same(t, want.Hits[i].Record, got.Hits[i].Record)
		require.Equal(t, want.Hits[i].Value, got.Hits[i].Value)
	}
}

// source draws random numbers, from rapid or from a seeded generator.
type source func(n int) int

func seeded(seed uint64) source { return rand.New(rand.NewPCG(seed, seed)).IntN }

func pick[T any](s source, from ...T) T { return from[s(len(from))] }

// maybe returns nil or one of the values.
func maybe[T any](s source, from ...T) *T {
	if s(3) == 0 {
		return nil
	}
	return ptr(pick(s, from...))
}

// spot draws a place: an edge case, a shared place, or any place.
func spot(s source) (lat, lon float64) {
	switch s(4) {
	case 0:
		return pick(s, -90, -89.999, -45, 0, 0.0000001, 45, 89.999, 90.0), pick(s, -180, -179.9999, -90, 0, 0.0000001, 90, 179.9999, 180.0)
	case 1, 2:
		return 52.5 + float64(s(100))/100, 13.4 + float64(s(100))/100
	default:
		return float64(s(180_001))/1000 - 90, float64(s(360_001))/1000 - 180
	}
}

// offer draws a service of a type.
func offer(s source, id, kind string) records.Offer {
	o := records.Offer{ID: id, Metadata: records.Metadata{Type: kind, Subtype: pick(s, "", "", "fast", "slow")}}
	if s(2) == 0 {
		o.Metadata.Attributes = map[string]string{"tier": pick(s, "gold", "lead"), "rack": pick(s, "a", "b")}
	}
	o.Capabilities = capabilities(s, kind)
	if s(8) > 0 {
		o.Location = &records.Location{Country: pick(s, "", "DE", "FR", "US"), Region: pick(s, "", "Berlin", "Île-de-France", "BERLIN")}
		if s(8) > 0 {
			lat, lon := spot(s)
			o.Location.Latitude, o.Location.Longitude = &lat, &lon
		}
	}
	if s(8) > 0 {
		o.Pricing = &records.Pricing{
			Currency: pick(s, "USDC", "usdc", "EUR"), PriceUnit: pick(s, "per-hour", "per-gb", "Per-GB"),
			TierPricing: map[string]float64{pick(s, "0-10", "10+", "x"): pick(s, 0.05, 0.2, 0.6)}, MinimumCommitment: maybe(s, 0, 1, 10.0),
			BasePrice: maybe(s, 0, 0.1, 0.25, 0.5, 0.500000001, float64(s(1000))/1000),
		}
	}
	if s(8) > 0 {
		o.Health = &records.Health{
			Status:        pick(s, "", "HEALTHY", "HEALTHY", "DEGRADED", "UNHEALTHY"),
			UptimePercent: maybe(s, 0, 98, 99, 99.5, 100, float64(s(10_001))/100), ErrorRate: maybe(s, uint32(0), 10, 500, 10_000),
			ResponseTimeMs: maybe(s, 0, 1, 20, uint64(s(2000))),
		}
	}
	return o
}

func capabilities(s source, kind string) *records.Capabilities {
	switch kind {
	case "compute":
		c := &records.Compute{CPUCores: pick(s, uint32(1), 2, 4, 8, 16, 32, 64), MemoryMB: pick(s, uint64(0), 1000, 4000, uint64(s(5000)))}
		if s(3) == 0 {
			c.GPUs = []records.GPU{{Model: pick(s, "m", "H100"), MemoryMB: pick(s, uint32(8000), 80_000)}, {Model: "T4", MemoryMB: 16_000}}
		}
		return &records.Capabilities{Compute: c}
	case "storage":
		free := pick(s, uint64(0), 1e9, 1e9-1, 5e9, 1<<60+1)
		return &records.Capabilities{Storage: &records.Storage{TotalSpace: 1 << 62, AvailableSpace: free}}
	case "cdn":
		return &records.Capabilities{CDN: &records.CDN{BandwidthMbps: pick(s, uint64(0), 10, 100, uint64(s(1000)))}}
	case "bandwidth":
		return &records.Capabilities{Bandwidth: &records.Bandwidth{UploadMbps: uint64(s(1000)), DownloadMbps: pick(s, uint64(10), 100, 1000)}}
	default:
		return nil
	}
}

// kinds returns the types in tests.
func kinds() []string { return []string{"compute", "compute", "storage", "cdn", "bandwidth", "oracle"} }

// question draws a query about the services of offer. Each filter is rare, so that some records
// match.
func question(s source) query.Query {
	rarely := func() bool { return s(8) == 0 }
	q := query.Query{Type: pick(s, kinds()...), Limit: pick(s, 1, 2, 5, 10, 100, 1000), Seed: 7}
	q.Health = pick(s, query.HealthDefault, query.HealthDefault, query.HealthAny, query.HealthHealthy)
	q.Claims = pick(s, query.ClaimsTrust, query.ClaimsCheck)
	q.Sort = pick(s, query.SortPrice, query.SortUptime, query.SortResponseTime, query.SortRandom, query.SortScore, query.SortStable)
	if s(4) > 0 {
		lat, lon := spot(s)
		q.Near = &query.Near{Latitude: lat, Longitude: lon}
		if s(3) > 0 {
			q.Near.RadiusKM = ptr(pick(s, 0.001, 1, 50, 100, 300, 1000, 5000, 10_007, 15_000, queries.MaxRadiusKM))
		}
		if s(2) == 0 {
			q.Sort = query.SortDistance
		}
	}
	if rarely() {
		q.Subtype = pick(s, "fast", "none")
	}
	if rarely() {
		q.Countries = []string{pick(s, "de", "FR"), "us"}
	}
	if rarely() {
		q.Regions = []string{pick(s, "berlin", "ÎLE-de-france")}
	}
	if rarely() {
		q.Attributes = map[string]string{"tier": "gold"}
	}
	if s(4) == 0 {
		q.MaxPrice = ptr(pick(s, 0.25, 0.5, 0.7, 1))
	}
	if q.Sort == query.SortPrice || q.MaxPrice != nil {
		q.Currency, q.PriceUnit = pick(s, "", "USDC", "EUR"), pick(s, "per-GB", "per-hour")
	}
	refine(s, &q)
	if s(4) == 0 {
		q.Where = clauses(s, q.Type)
	}
	if (q.Sort == query.SortPrice || q.MaxPrice != nil) && s(3) == 0 {
		q.Volume = ptr(pick(s, 0.5, 5, 20, 1000.0))
	}
	return q
}

// clauses draws clauses that a part of the services of a type pass.
func clauses(s source, kind string) []query.Clause {
	texts := []string{
		"subtype=fast,slow", "subtype?!=fast", "location.country^=d,f", "attributes.rack=a", "!attributes.rack", "location.latitude>=0<=60",
		"health.uptime_percent>=99", "health.error_rate<=10", "health.status=healthy,degraded", "pricing.minimum_commitment?<=1", "pricing.terms!=EUR per-gb",
	}
	switch kind {
	case "compute":
		texts = append(texts, "compute.cpu_cores>=8", "compute.cpu_cores!>=8", "compute.memory_mb?<=1000", "compute.gpus.model=H100", "compute.gpus.model!=H100",
			"compute.gpus.count>=1", "compute.gpus.memory_mb>=16000", "compute.gpus.count<=0")
	case "storage":
		texts = append(texts, "storage.available_space>=1000000000", "storage.available_space>=5e9<=6e9")
	case "bandwidth":
		texts = append(texts, "bandwidth.upload_mbps>=200<=700")
	}
	var list []query.Clause
	for range 1 + s(2) {
		c, err := queries.ParseClause(pick(s, texts...))
		if err != nil {
			panic(err) // a fault of the list above
		}
		list = append(list, c)
	}
	return list
}

// refine adds filters on capacity and quality.
func refine(s source, q *query.Query) {
	if s(3) == 0 {
		switch q.Type {
		case "compute":
			q.MinCPUCores, q.MinMemoryMB, q.RequireGPU = pick(s, uint32(0), 8, 9), pick(s, uint64(0), 1000, 2000), s(4) == 0
		case "storage":
			q.MinStorageGB = pick(s, uint64(1), 2, 1_152_921_504)
		default:
			q.MinBandwidthMbps = pick(s, uint64(1), 100, 150)
		}
	}
	if s(6) == 0 {
		q.MinUptime = ptr(pick(s, 0, 98.5, 99, 100))
	}
	if s(6) == 0 {
		q.MaxErrorRate = ptr(pick(s, uint32(0), 10, 100))
	}
}

// cells draws a restriction to cells, usually none.
func cells(s source) []geo.Cell {
	if s(4) > 0 {
		return nil
	}
	list := []geo.Cell{}
	for range s(4) {
		lat, lon := spot(s)
		at, _ := geo.NewPoint(lat, lon)
		list = append(list, geo.CellOf(at, pick(s, 0, 1, 2, 3, 4, 6)))
	}
	return list
}
