package records_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

func TestNews(t *testing.T) {
	key := key(t, 1)
	sign := func(sequence uint64, edit func(*records.Offer)) *records.Record {
		price, lat, lon, uptime := 1.5, 52.5, 13.4, 99.0
		o := records.Offer{
			ID: "a", Metadata: records.Metadata{Type: "compute"},
			Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 1000, GPUs: []records.GPU{{Model: "T4", MemoryMB: 16}, {Model: "T4", MemoryMB: 16}}, RuntimeEngines: []string{"docker"}}},
			Location:     &records.Location{Latitude: &lat, Longitude: &lon},
			Pricing:      &records.Pricing{Currency: "USD", PriceUnit: "per-hour", BasePrice: &price, TierPricing: map[string]float64{"0-10": 2}},
			Health:       &records.Health{Status: "HEALTHY", UptimePercent: &uptime},
		}
		edit(&o)
		now := time.Unix(1_700_000_000+int64(sequence), 0)
		r, err := records.Sign("test", key, o, records.Stamp{Sequence: sequence, Created: time.Unix(1_700_000_000, 0), Issued: now, Expires: now.Add(time.Hour)})
		require.NoError(t, err)
		return r
	}
	before := sign(1, func(*records.Offer) {})
	for name, edit := range map[string]func(*records.Offer){
		"nothing":  func(*records.Offer) {},
		"price":    func(o *records.Offer) { *o.Pricing.BasePrice = 9 },
		"no price": func(o *records.Offer) { o.Pricing.BasePrice = nil },
		"tier":     func(o *records.Offer) { o.Pricing.TierPricing["0-10"] = 3 },
		"cores":    func(o *records.Offer) { o.Capabilities.Compute.CPUCores = 0 },
		"a GPU":    func(o *records.Offer) { o.Capabilities.Compute.GPUs = o.Capabilities.Compute.GPUs[:1] },
		"load":     func(o *records.Offer) { *o.Health.UptimePercent = 5 },
	} {
		after := sign(2, edit)
		require.True(t, after.News(before), name)
		require.True(t, before.News(after), name)
	}
	for name, edit := range map[string]func(*records.Offer){
		"currency":     func(o *records.Offer) { o.Pricing.Currency = "EUR" },
		"another tier": func(o *records.Offer) { o.Pricing.TierPricing = map[string]float64{"0-20": 2} },
		"no GPU":       func(o *records.Offer) { o.Capabilities.Compute.GPUs = nil },
		"model":        func(o *records.Offer) { o.Capabilities.Compute.GPUs[0].Model = "H100" },
		"engine":       func(o *records.Offer) { o.Capabilities.Compute.RuntimeEngines = nil },
		"place":        func(o *records.Offer) { *o.Location.Latitude = 52.6 },
		"endpoint":     func(o *records.Offer) { o.Metadata.Endpoints = []string{"https://example.org"} },
		"status":       func(o *records.Offer) { o.Health.Status = "UNHEALTHY" },
		"id":           func(o *records.Offer) { o.ID = "b" },
	} {
		require.False(t, sign(2, edit).News(before), name)
	}
	tomb, err := records.Tombstone(key, before, records.Stamp{Sequence: 2, Issued: before.Issued(), Expires: before.Expires()})
	require.NoError(t, err)
	require.False(t, tomb.News(before))
}
