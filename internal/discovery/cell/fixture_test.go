package cell

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func t0() time.Time { return time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC) }

func ptr[T any](v T) *T { return &v }

// key returns the key of the n-th provider.
func key(tb require.TestingT, n int) crypto.PrivKey {
	seed := binary.BigEndian.AppendUint64(bytes.Repeat([]byte{7}, ed25519.SeedSize-8), uint64(n))
	k, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(seed))
	require.NoError(tb, err)
	return k
}

// offer returns a compute service in the cell u33 with few values.
func offer(id string) records.Offer {
	return records.Offer{
		ID:           id,
		Metadata:     records.Metadata{Type: "compute", Endpoints: []string{"https://example.org"}},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 16000}},
		Location:     &records.Location{Latitude: ptr(52.52), Longitude: ptr(13.405)},
	}
}

func sign(tb require.TestingT, provider int, o records.Offer, sequence uint64) *records.Record {
	r, err := records.Sign("test", key(tb, provider), o, records.Stamp{Sequence: sequence, Issued: t0(), Expires: t0().Add(time.Hour)})
	require.NoError(tb, err)
	return r
}

// offerGen draws services with frequent ties and missing values.
func offerGen(id string) *rapid.Generator[records.Offer] {
	return rapid.Custom(func(t *rapid.T) records.Offer {
		o := offer(id)
		o.Location.Latitude = ptr(rapid.SampledFrom([]float64{52.0, 52.5, 52.52, 52.53, 53}).Draw(t, "latitude"))
		o.Location.Longitude = ptr(rapid.SampledFrom([]float64{12, 13.4, 13.405, 13.41, 14}).Draw(t, "longitude"))
		if rapid.IntRange(0, 5).Draw(t, "nowhere") == 0 {
			o.Location = nil
		}
		if rapid.Bool().Draw(t, "priced") {
			o.Pricing = &records.Pricing{
				Currency:          rapid.SampledFrom([]string{"USDC", "usdc", "EUR", "A", "B", "C"}).Draw(t, "currency"),
				PriceUnit:         rapid.SampledFrom([]string{"per-hour", "Per-Hour", "per-gb", "each"}).Draw(t, "unit"),
				BasePrice:         ptr(rapid.SampledFrom([]float64{0, 0.25, 0.3, 1, 2, 50}).Draw(t, "price")),
				TierPricing:       rapid.MapOfN(rapid.SampledFrom([]string{"0-10", "10+", "x"}), rapid.SampledFrom([]float64{0.1, 0.2, 3}), 0, 2).Draw(t, "tiers"),
				MinimumCommitment: rapid.Ptr(rapid.SampledFrom([]float64{0, 1, 30}), true).Draw(t, "commitment"),
			}
			if len(o.Pricing.TierPricing) > 0 && rapid.Bool().Draw(t, "tiers alone") {
				o.Pricing.BasePrice = nil
			}
		}
		if o.Location != nil {
			o.Location.Country = rapid.SampledFrom([]string{"", "DE", "FR"}).Draw(t, "country")
			o.Location.Region = rapid.SampledFrom([]string{"", "Berlin", "berlin"}).Draw(t, "region")
		}
		o.Metadata.Attributes = rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"", "x"}), 0, 2).Draw(t, "attributes")
		o.Capabilities.Compute.CPUCores, o.Capabilities.Compute.MemoryMB = rapid.Uint32Range(1, 9).Draw(t, "cores"), rapid.Uint64Range(1, 9).Draw(t, "memory")
		for _, model := range rapid.SliceOfN(rapid.SampledFrom([]string{"H100", "h100 SXM 80 GB", "T4"}), 0, 2).Draw(t, "gpus") {
			o.Capabilities.Compute.GPUs = append(o.Capabilities.Compute.GPUs, records.GPU{Model: model, MemoryMB: 1000})
		}
		h := records.Health{Status: rapid.SampledFrom([]string{"HEALTHY", "UNHEALTHY", "UNKNOWN"}).Draw(t, "status")}
		if rapid.Bool().Draw(t, "uptime known") {
			h.UptimePercent = ptr(rapid.Float64Range(90, 100).Draw(t, "uptime"))
		}
		if rapid.Bool().Draw(t, "errors known") {
			h.ErrorRate = ptr(rapid.Uint32Range(0, 2000).Draw(t, "errors"))
		}
		if rapid.Bool().Draw(t, "response known") {
			h.ResponseTimeMs = ptr(rapid.Uint64Range(0, 2000).Draw(t, "response"))
		}
		o.Health = &h
		return o
	})
}

// planGen draws plans of every order, with and without the filters that summaries cover.
func planGen() *rapid.Generator[*query.Plan] {
	return rapid.Custom(func(t *rapid.T) *query.Plan {
		q := query.Query{Type: "compute", Seed: rapid.Uint64().Draw(t, "seed")}
		q.Sort = rapid.SampledFrom([]query.Sort{
			query.SortScore, query.SortDistance, query.SortPrice, query.SortUptime, query.SortResponseTime, query.SortRandom, query.SortStable,
		}).Draw(t, "sort")
		q.Health = rapid.SampledFrom([]query.Health{query.HealthAny, query.HealthUsable}).Draw(t, "health")
		if q.Sort == query.SortDistance || rapid.Bool().Draw(t, "near") {
			q.Near = &query.Near{
				Latitude: rapid.Float64Range(51, 54).Draw(t, "latitude"), Longitude: rapid.Float64Range(11, 15).Draw(t, "longitude"),
				RadiusKM: rapid.Ptr(rapid.SampledFrom([]float64{1, 30, 90, 500}), true).Draw(t, "radius"),
			}
		}
		q.MaxPrice = rapid.Ptr(rapid.SampledFrom([]float64{0, 0.25, 1, 100}), true).Draw(t, "max price")
		if q.MaxPrice != nil || q.Sort == query.SortPrice {
			q.Currency = rapid.SampledFrom([]string{"", "eur", "A"}).Draw(t, "currency")
			q.PriceUnit = rapid.SampledFrom([]string{"", "per-gb"}).Draw(t, "unit")
		}
		if q.MaxPrice != nil || q.Sort == query.SortPrice {
			q.Volume = rapid.Ptr(rapid.SampledFrom([]float64{0.5, 10, 100}), true).Draw(t, "volume")
		}
		for _, text := range rapid.SliceOfN(rapid.SampledFrom([]string{
			"health.uptime_percent>=95", "health.uptime_percent!>=95", "health.uptime_percent?<=95", "health.error_rate<=500", "health.error_rate?<=500",
			"health.response_time_ms<=900", "pricing.base_price<=1", "pricing.terms=usdc per-hour", "location.latitude>=52.5", "compute.cpu_cores>=4", "!health.error_rate",
			"compute.gpus.model=h100", "compute.gpus.model^=H100,A", "compute.gpus.model!=T4", "attributes.a=x", "location.region=Berlin", "compute.gpus.count>=2",
		}), 0, 2).Draw(t, "where") {
			c, err := query.ParseClause(text)
			require.NoError(t, err)
			q.Where = append(q.Where, c)
		}
		q.Countries = rapid.SampledFrom([][]string{nil, nil, {"de"}, {"FR", "US"}}).Draw(t, "countries")
		q.Attributes = rapid.SampledFrom([]map[string]string{nil, nil, {"a": "x"}, {"b": "", "a": "x"}}).Draw(t, "attributes")
		q.MinCPUCores, q.MinMemoryMB, q.RequireGPU = rapid.SampledFrom([]uint32{0, 0, 5}).Draw(t, "min cores"), rapid.SampledFrom([]uint64{0, 0, 5}).Draw(t, "min memory"), rapid.Bool().Draw(t, "gpu")
		q.MinUptime = rapid.Ptr(rapid.Float64Range(90, 100), true).Draw(t, "min uptime")
		q.MaxErrorRate = rapid.Ptr(rapid.Uint32Range(0, 2000), true).Draw(t, "max errors")
		p, err := query.Compile(q, query.Defaults{})
		require.NoError(t, err)
		return p
	})
}

// members returns n records at one place, one per provider from first on, of a prefix; the zero
// prefix for an empty string.
func members(tb require.TestingT, first, n int, prefix string) []Member {
	var from netip.Prefix
	if prefix != "" {
		from = netip.MustParsePrefix(prefix)
	}
	all := make([]Member, n)
	for i := range all {
		all[i] = Member{sign(tb, first+i, offer(fmt.Sprintf("s%d", i)), 1), from}
	}
	return all
}

// services returns n records of one provider.
func services(tb require.TestingT, provider, n int) []Member {
	all := make([]Member, n)
	for i := range all {
		all[i] = Member{Record: sign(tb, provider, offer(fmt.Sprintf("s%d", i)), 1)}
	}
	return all
}

func join(groups ...[]Member) []Member { return slices.Concat(groups...) }

// peerOf returns a provider id without a key.
func peerOf(n int) peer.ID { return peer.ID(fmt.Sprintf("peer %d", n)) }
