package market

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// MinOffers is the smallest number of offers with results for every search of the tour.
const MinOffers = 24

// Health claims of a provider.
const (
	healthy   = "HEALTHY"
	degraded  = "DEGRADED"
	unhealthy = "UNHEALTHY"
)

// sites is the largest distance of an offer from the centre of its city, in degrees: about 5 km.
const sites = 0.05

// Offers generates n offers at real cities, equal for equal seeds: first CDN in and around Fiji,
// on both sides of the antimeridian, then the four types in turn through the largest cities.
// Beyond the end of the list it continues at other sites of the same cities. It fails with
// Invalid for n below MinOffers.
func Offers(all []cities.City, n int, seed uint64) ([]records.Offer, error) {
	if n < MinOffers {
		return nil, fault.Wrap("market.Offers", fault.Invalidf("records", n, "must be at least %d", MinOffers))
	}
	kinds := []func(*maker) (string, *records.Capabilities, *records.Pricing){compute, storage, cdn, bandwidth}
	m := &maker{Rand: rand.New(rand.NewPCG(seed, 0))}
	var offers []records.Offer
	for _, c := range all {
		if aroundFiji(c.Point) && len(offers) < n {
			offers = append(offers, m.offer(len(offers), c, cdn))
		}
	}
	for i := 0; len(offers) < n; i++ {
		offers = append(offers, m.offer(len(offers), all[i%len(all)], kinds[i%len(kinds)]))
	}
	return offers, nil
}

// Type and uptime in percent of plain offers.
const (
	PlainType   = "compute"
	PlainUptime = 99.5
)

// Plain is a version of an offer in Berlin that is like all others.
func Plain(id string, version int) records.Offer {
	lat, lon, up := 52.5, 13.4, PlainUptime
	return records.Offer{
		ID:           id,
		Metadata:     records.Metadata{Type: PlainType, Name: id, Version: strconv.Itoa(version), Endpoints: []string{"https://" + id + ".example.com"}},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE", City: "Berlin"},
		Health:       &records.Health{Status: healthy, UptimePercent: &up},
	}
}

// aroundFiji reports whether a place lies within 3 degrees of the antimeridian, at the latitude
// of Fiji.
func aroundFiji(p geo.Point) bool {
	return math.Abs(p.Lon) >= 177 && p.Lat > -20 && p.Lat < -14
}

// maker draws the differences between offers.
type maker struct{ *rand.Rand }

func (m *maker) offer(i int, c cities.City, kind func(*maker) (string, *records.Capabilities, *records.Pricing)) records.Offer {
	name, capabilities, pricing := kind(m)
	lat := round(c.Point.Lat+m.within(sites), 5)
	lon := round(c.Point.Lon+m.within(sites), 5)
	if math.Abs(lon) > 180 {
		lon -= math.Copysign(360, lon)
	}
	sold := name
	switch c := capabilities.Compute; {
	case c != nil && len(c.GPUs) > 0:
		sold = fmt.Sprintf("%dx %s", len(c.GPUs), c.GPUs[0].Model)
	case c != nil:
		sold = fmt.Sprintf("%d cores", c.CPUCores)
	}
	uptime, response, rate := round(95+5*m.Float64(), 2), 5+m.Uint64N(200), m.Uint32N(100)
	return records.Offer{
		ID: fmt.Sprintf("%s-%04d", name, i),
		Metadata: records.Metadata{
			Type: name, Name: sold + " in " + c.Name, Version: "1.0.0",
			Endpoints:  []string{fmt.Sprintf("https://%s-%04d.example.com", name, i)},
			Attributes: map[string]string{"tier": pick(m, "basic", "premium")},
		},
		Capabilities: capabilities,
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: c.Country, City: c.Name},
		Pricing:      pricing,
		Health: &records.Health{
			Status: claim(i), UptimePercent: &uptime, ResponseTimeMs: &response, ErrorRate: &rate,
		},
	}
}

// claim declares one offer in ten degraded and one in twenty unhealthy.
func claim(i int) string {
	switch {
	case i%10 == 7:
		return degraded
	case i%20 == 19:
		return unhealthy
	default:
		return healthy
	}
}

func compute(m *maker) (string, *records.Capabilities, *records.Pricing) {
	c := &records.Compute{
		CPUCores: 4 << m.IntN(5), MemoryMB: 8000 << m.IntN(6), RuntimeEngines: []string{"docker"}, MaxJobDuration: 86400,
	}
	low, high := 0.02*float64(c.CPUCores), 0.05*float64(c.CPUCores)
	if m.IntN(2) == 0 {
		sold := []struct {
			records.GPU
			low, high float64
		}{
			{records.GPU{Model: "RTX 4090", MemoryMB: 24000, ComputeCapability: 89}, 0.3, 0.8},
			{records.GPU{Model: "A100", MemoryMB: 80000, ComputeCapability: 80}, 1.25, 1.75},
			{records.GPU{Model: "H100", MemoryMB: 80000, ComputeCapability: 90}, 2, 3.5},
		}[m.IntN(3)]
		n := 1 << m.IntN(4)
		c.GPUs, low, high = slices.Repeat([]records.GPU{sold.GPU}, n), float64(n)*sold.low, float64(n)*sold.high
		c.CPUCores, c.MemoryMB = uint32(8*n), uint64(64000*n)
	}
	return "compute", &records.Capabilities{Compute: c}, m.price(low, high, "per-hour")
}

func storage(m *maker) (string, *records.Capabilities, *records.Pricing) {
	total := uint64(1+m.IntN(1000)) * 1e12
	return "storage", &records.Capabilities{Storage: &records.Storage{
		TotalSpace: total, AvailableSpace: total / 100 * m.Uint64N(101), MaxObjectSize: 5000,
		StorageClasses: []string{"hot"}, EncryptionSupported: true,
	}}, m.price(0.004, 0.025, "per-gb-month")
}

func cdn(m *maker) (string, *records.Capabilities, *records.Pricing) {
	return "cdn", &records.Capabilities{CDN: &records.CDN{
		BandwidthMbps: 100 * (1 + m.Uint64N(400)), CacheTypes: []string{"static"}, SSLSupported: true, HTTP2Supported: true,
	}}, m.price(0.005, 0.12, "per-gb")
}

func bandwidth(m *maker) (string, *records.Capabilities, *records.Pricing) {
	return "bandwidth", &records.Capabilities{Bandwidth: &records.Bandwidth{
		UploadMbps: 10 * (1 + m.Uint64N(100)), DownloadMbps: 10 * (1 + m.Uint64N(1000)), Protocols: []string{"wireguard"},
	}}, m.price(0.002, 0.05, "per-gb")
}

// price draws a base price in cents, or below 1 USDC in hundredths of them.
func (m *maker) price(low, high float64, unit string) *records.Pricing {
	p, digits := low+(high-low)*m.Float64(), 4
	if p >= 1 {
		digits = 2
	}
	p = round(p, digits)
	return &records.Pricing{Currency: "USDC", BasePrice: &p, PriceUnit: unit}
}

// within draws from -x to x.
func (m *maker) within(x float64) float64 { return x * (2*m.Float64() - 1) }

func pick(m *maker, from ...string) string { return from[m.IntN(len(from))] }

func round(x float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(x*scale) / scale
}
