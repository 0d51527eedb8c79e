package records

import (
	"maps"
	"slices"
	"unique"

	"github.com/blackhole/blackhole/internal/platform/endpoint"
	"github.com/blackhole/blackhole/pkg/geo"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Known marks the optional values of Facts that the provider stated. Other values are zero
// without meaning.
type Known uint16

// The optional values.
const (
	KnownPlace Known = 1 << iota
	KnownCPU
	KnownMemory
	KnownGPU
	KnownStorage
	KnownBandwidth
	KnownPrice
	KnownUptime
	KnownErrorRate
	KnownResponseTime
	KnownEndpoint // or access through the provider's peer
	KnownCallable // something to call: an endpoint that peers can measure, or access through the provider's peer
)

// Facts are the values of a record for filters and orders, in a flat struct without pointers.
// All are claims of the provider. Strings keep the provider's spelling: case-insensitive
// comparisons must fold them.
//
// A stated capability kind makes all its numbers known, zeros included.
type Facts struct {
	Known        Known
	Status       pb.HealthStatus_Status
	CPUCores     uint32
	GPUs         uint32
	ErrorRate    uint32 // per 10000 requests
	MemoryMB     uint64 // 10^6 bytes
	StorageBytes uint64 // available
	Bandwidth    uint64 // Mbit/s; for a bandwidth service the lesser of up and down
	ResponseMS   uint64 // milliseconds
	Point        geo.Point
	Price        float64 // of one PriceUnit, in Currency
	Uptime       float64 // percent
	Currency     string
	PriceUnit    string
	Country      string
	Region       string
	Attributes   []Attribute // sorted by key, each key once
}

// InstanceAttribute is the custom attribute with the key (namespace/service/id) of the agent's instance that an offer belongs to. It
// identifies the announcements of earlier processes.
const InstanceAttribute = "blackhole.instance"

// Attribute is one custom attribute.
type Attribute struct{ Key, Value string }

// Has reports whether all values of k are known.
func (f *Facts) Has(k Known) bool { return f.Known&k == k }

// Place returns the stated position, if any.
func (f *Facts) Place() (geo.Point, bool) { return f.Point, f.Known&KnownPlace != 0 }

// factsOf extracts the facts of a validated message. Strings keep the provider's spelling.
func factsOf(s *pb.ServiceRecord) Facts {
	f := Facts{Status: claimed(s.GetHealth().GetStatus()), Attributes: attributesOf(s.GetMetadata().GetAttributes())}
	f.setCapabilities(s.GetCapabilities())
	f.setLocation(s.GetLocation())
	f.setPricing(s.GetPricing())
	f.setHealth(s.GetHealth())
	if s.GetMetadata().GetAccess() == AccessPeer {
		f.Known |= KnownEndpoint | KnownCallable
	}
	if all := s.GetMetadata().GetEndpoints(); len(all) > 0 {
		f.Known |= KnownEndpoint
		if slices.ContainsFunc(all, endpoint.Callable) {
			f.Known |= KnownCallable
		}
	}
	return f
}

func (f *Facts) setCapabilities(c *pb.ServiceCapabilities) {
	if v := c.GetStorage(); v != nil {
		f.Known |= KnownStorage
		f.StorageBytes = v.AvailableSpace
	}
	if v := c.GetCompute(); v != nil {
		f.Known |= KnownCPU | KnownMemory | KnownGPU
		f.CPUCores, f.MemoryMB, f.GPUs = v.CpuCores, v.MemoryMb, uint32(len(v.Gpus))
	}
	if v := c.GetCdn(); v != nil {
		f.Known |= KnownBandwidth
		f.Bandwidth = v.BandwidthMbps
	}
	if v := c.GetBandwidth(); v != nil {
		f.Known |= KnownBandwidth
		f.Bandwidth = min(v.UploadMbps, v.DownloadMbps)
	}
}

func (f *Facts) setLocation(l *pb.GeoLocation) {
	f.Country, f.Region = intern(l.GetCountry()), intern(l.GetRegion())
	if l == nil || l.Latitude == nil || l.Longitude == nil {
		return
	}
	if p, err := geo.NewPoint(*l.Latitude, *l.Longitude); err == nil {
		f.Known |= KnownPlace
		f.Point = p
	}
}

func (f *Facts) setPricing(p *pb.PricingInfo) {
	f.Currency, f.PriceUnit = intern(p.GetCurrency()), intern(p.GetPriceUnit())
	if p != nil && p.BasePrice != nil {
		f.Known |= KnownPrice
		f.Price = *p.BasePrice
	}
}

func (f *Facts) setHealth(h *pb.HealthStatus) {
	if h == nil {
		return
	}
	if h.UptimePercent != nil {
		f.Known |= KnownUptime
		f.Uptime = *h.UptimePercent
	}
	if h.ErrorRate != nil {
		f.Known |= KnownErrorRate
		f.ErrorRate = *h.ErrorRate
	}
	if h.ResponseTimeMs != nil {
		f.Known |= KnownResponseTime
		f.ResponseMS = *h.ResponseTimeMs
	}
}

// attributesOf sorts custom attributes by key.
func attributesOf(m map[string]string) []Attribute {
	if len(m) == 0 {
		return nil
	}
	attributes := make([]Attribute, 0, len(m))
	for _, key := range sortedKeys(m) {
		attributes = append(attributes, Attribute{Key: intern(key), Value: m[key]})
	}
	return attributes
}

// sortedKeys returns the sorted keys of a map.
func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

// intern shares one copy of a string that many records contain.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
