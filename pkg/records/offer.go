package records

import (
	"cmp"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/blackhole/blackhole/pkg/geo"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Offer is a provider's description of one service. The peer adds the rest when it signs. Names
// and units follow the record's schema. A nil pointer means unknown, unlike zero.
type Offer struct {
	ID           string        `json:"id"`
	Metadata     Metadata      `json:"metadata"`
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	Location     *Location     `json:"location,omitempty"`
	Pricing      *Pricing      `json:"pricing,omitempty"`
	Health       *Health       `json:"health,omitempty"`
}

// Metadata describes the service.
type Metadata struct {
	Type        string            `json:"type"` // storage, compute, cdn, bandwidth, or another
	Subtype     string            `json:"subtype,omitempty"`
	Name        string            `json:"name,omitempty"`
	Description string            `json:"description,omitempty"`
	Version     string            `json:"version,omitempty"`
	Endpoints   []string          `json:"endpoints,omitempty"`
	Protocols   []string          `json:"protocols,omitempty"`
	Attributes  map[string]string `json:"attributes,omitempty"`
	Domain      string            `json:"domain,omitempty"` // claimed, in lower case, at most 253 bytes
	Access      string            `json:"access,omitempty"` // AccessPeer, or empty
	Stock       *Stock            `json:"stock,omitempty"`
}

// AccessPeer says that the provider's peer carries connections to the service, for holders of grants.
const AccessPeer = "peer"

// Stock is what the provider grants, in units. Nil: nothing can be reserved.
type Stock struct {
	Unit           string `json:"unit"`                       // gpu, slot, ...
	Total          uint32 `json:"total"`                      // at least 1
	MaxTTL         uint32 `json:"max_ttl,omitempty"`          // seconds of one grant; 0 means DefaultGrantTTL
	MaxPerConsumer uint32 `json:"max_per_consumer,omitempty"` // units; 0 means a quarter of the total
}

// Capabilities holds the one kind required by the service's type.
type Capabilities struct {
	Storage   *Storage   `json:"storage,omitempty"`
	Compute   *Compute   `json:"compute,omitempty"`
	CDN       *CDN       `json:"cdn,omitempty"`
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"`
}

// Storage describes a storage service.
type Storage struct {
	TotalSpace          uint64   `json:"total_space"`     // bytes
	AvailableSpace      uint64   `json:"available_space"` // bytes
	MaxObjectSize       uint32   `json:"max_object_size"` // MB (10^6 bytes)
	StorageClasses      []string `json:"storage_classes,omitempty"`
	EncryptionSupported bool     `json:"encryption_supported"`
	VersioningSupported bool     `json:"versioning_supported"`
}

// Compute describes a compute service.
type Compute struct {
	CPUCores       uint32   `json:"cpu_cores"`
	MemoryMB       uint64   `json:"memory_mb"` // MB (10^6 bytes)
	GPUs           []GPU    `json:"gpus,omitempty"`
	RuntimeEngines []string `json:"runtime_engines,omitempty"`
	MaxJobDuration uint32   `json:"max_job_duration"` // seconds
}

// GPU is one graphics processor.
type GPU struct {
	Model             string `json:"model,omitempty"`
	MemoryMB          uint32 `json:"memory_mb"` // MB (10^6 bytes)
	ComputeCapability uint32 `json:"compute_capability"`
}

// CDN describes a content delivery service.
type CDN struct {
	BandwidthMbps  uint64   `json:"bandwidth_mbps"` // Mbit/s
	Regions        []string `json:"regions,omitempty"`
	CacheTypes     []string `json:"cache_types,omitempty"`
	SSLSupported   bool     `json:"ssl_supported"`
	HTTP2Supported bool     `json:"http2_supported"`
}

// Bandwidth describes a bandwidth service.
type Bandwidth struct {
	UploadMbps    uint64   `json:"upload_mbps"`   // Mbit/s
	DownloadMbps  uint64   `json:"download_mbps"` // Mbit/s
	Protocols     []string `json:"protocols,omitempty"`
	ExitCountries []string `json:"exit_countries,omitempty"` // ISO 3166-1 alpha-2
}

// Location is the place of the service.
type Location struct {
	Latitude  *float64 `json:"latitude,omitempty"`  // degrees, WGS 84; both or none
	Longitude *float64 `json:"longitude,omitempty"` // degrees, WGS 84; both or none
	Country   string   `json:"country,omitempty"`   // ISO 3166-1 alpha-2
	Region    string   `json:"region,omitempty"`
	City      string   `json:"city,omitempty"`
	ISP       string   `json:"isp,omitempty"`
	Precision uint32   `json:"precision,omitempty"` // of the geohash in the record's key: 4 to 12; 0 means 6
}

// Pricing is the cost of the service.
type Pricing struct {
	Currency          string             `json:"currency,omitempty"`
	BasePrice         *float64           `json:"base_price,omitempty"` // of one price_unit, in currency
	PriceUnit         string             `json:"price_unit,omitempty"`
	TierPricing       map[string]float64 `json:"tier_pricing,omitempty"`
	MinimumCommitment *float64           `json:"minimum_commitment,omitempty"` // in currency
}

// Health is the provider's claim about its own condition.
type Health struct {
	Status         string     `json:"status,omitempty"`           // UNKNOWN (or empty), HEALTHY, DEGRADED, UNHEALTHY
	UptimePercent  *float64   `json:"uptime_percent,omitempty"`   // 0 to 100
	ResponseTimeMs *uint64    `json:"response_time_ms,omitempty"` // milliseconds
	ErrorRate      *uint32    `json:"error_rate,omitempty"`       // per 10000 requests
	LastCheck      *time.Time `json:"last_check,omitempty"`
}

// Validate returns the first error, an Invalid error with the name of the field.
func (o Offer) Validate() error {
	s := o.Service()
	return cmp.Or(validateContent(s), validateStatus(s.Health))
}

// Service converts the offer to an incomplete service record: without provider, times and
// sequence. It shares slices and maps with the offer. An unknown status becomes a number that
// validation refuses.
func (o Offer) Service() *pb.ServiceRecord {
	s := &pb.ServiceRecord{
		Id: o.ID,
		Metadata: &pb.ServiceMetadata{
			Type:        o.Metadata.Type,
			Subtype:     o.Metadata.Subtype,
			Name:        o.Metadata.Name,
			Description: o.Metadata.Description,
			Version:     o.Metadata.Version,
			Endpoints:   o.Metadata.Endpoints,
			Protocols:   o.Metadata.Protocols,
			Attributes:  o.Metadata.Attributes,
			Domain:      o.Metadata.Domain,
			Access:      o.Metadata.Access,
			Stock:       o.Metadata.Stock.message(),
		},
		Capabilities: o.Capabilities.message(),
		Health:       o.Health.message(),
	}
	if l := o.Location; l != nil {
		s.Location = &pb.GeoLocation{
			Latitude: l.Latitude, Longitude: l.Longitude, Precision: l.Precision,
			Country: l.Country, Region: l.Region, City: l.City, Isp: l.ISP,
		}
	}
	if p := o.Pricing; p != nil {
		s.Pricing = &pb.PricingInfo{
			Currency: p.Currency, BasePrice: p.BasePrice, PriceUnit: p.PriceUnit,
			TierPricing: p.TierPricing, MinimumCommitment: p.MinimumCommitment,
		}
	}
	return s
}

func (s *Stock) message() *pb.Stock {
	if s == nil {
		return nil
	}
	return &pb.Stock{Unit: s.Unit, Total: s.Total, MaxTtl: s.MaxTTL, MaxPerConsumer: s.MaxPerConsumer}
}

func (c *Capabilities) message() *pb.ServiceCapabilities {
	if c == nil {
		return nil
	}
	m := new(pb.ServiceCapabilities)
	if v := c.Storage; v != nil {
		m.Storage = &pb.StorageCapabilities{
			TotalSpace: v.TotalSpace, AvailableSpace: v.AvailableSpace, MaxObjectSize: v.MaxObjectSize,
			StorageClasses:      v.StorageClasses,
			EncryptionSupported: v.EncryptionSupported, VersioningSupported: v.VersioningSupported,
		}
	}
	if v := c.Compute; v != nil {
		m.Compute = &pb.ComputeCapabilities{
			CpuCores: v.CPUCores, MemoryMb: v.MemoryMB,
			RuntimeEngines: v.RuntimeEngines, MaxJobDuration: v.MaxJobDuration,
		}
		for _, g := range v.GPUs {
			m.Compute.Gpus = append(m.Compute.Gpus, &pb.GPUInfo{
				Model: g.Model, MemoryMb: g.MemoryMB, ComputeCapability: g.ComputeCapability,
			})
		}
	}
	if v := c.CDN; v != nil {
		m.Cdn = &pb.CDNCapabilities{
			BandwidthMbps: v.BandwidthMbps, Regions: v.Regions, CacheTypes: v.CacheTypes,
			SslSupported: v.SSLSupported, Http2Supported: v.HTTP2Supported,
		}
	}
	if v := c.Bandwidth; v != nil {
		m.Bandwidth = &pb.BandwidthCapabilities{
			UploadMbps: v.UploadMbps, DownloadMbps: v.DownloadMbps,
			Protocols: v.Protocols, ExitCountries: v.ExitCountries,
		}
	}
	return m
}

func (h *Health) message() *pb.HealthStatus {
	if h == nil {
		return nil
	}
	m := &pb.HealthStatus{
		Status:        statusOf(h.Status),
		UptimePercent: h.UptimePercent, ResponseTimeMs: h.ResponseTimeMs, ErrorRate: h.ErrorRate,
	}
	if h.LastCheck != nil {
		m.LastCheck = timestamppb.New(*h.LastCheck)
	}
	return m
}

// statusOf returns -1 for a name outside the schema.
func statusOf(name string) pb.HealthStatus_Status {
	if name == "" {
		return pb.HealthStatus_UNKNOWN
	}
	if v, ok := pb.HealthStatus_Status_value[name]; ok {
		return pb.HealthStatus_Status(v)
	}
	return -1
}

// OfferOf returns the provider's part of a service record. It shares slices and maps with the
// message.
func OfferOf(s *pb.ServiceRecord) Offer {
	m := s.GetMetadata()
	o := Offer{
		ID: s.GetId(),
		Metadata: Metadata{
			Type:        m.GetType(),
			Subtype:     m.GetSubtype(),
			Name:        m.GetName(),
			Description: m.GetDescription(),
			Version:     m.GetVersion(),
			Endpoints:   m.GetEndpoints(),
			Protocols:   m.GetProtocols(),
			Attributes:  m.GetAttributes(),
			Domain:      m.GetDomain(),
			Access:      m.GetAccess(),
		},
		Capabilities: capabilitiesOf(s.GetCapabilities()),
		Health:       healthOf(s.GetHealth()),
	}
	if v := m.GetStock(); v != nil {
		o.Metadata.Stock = &Stock{Unit: v.Unit, Total: v.Total, MaxTTL: v.MaxTtl, MaxPerConsumer: v.MaxPerConsumer}
	}
	if l := s.GetLocation(); l != nil {
		o.Location = &Location{
			Latitude: l.Latitude, Longitude: l.Longitude, Precision: l.Precision,
			Country: l.Country, Region: l.Region, City: l.City, ISP: l.Isp,
		}
	}
	if p := s.GetPricing(); p != nil {
		o.Pricing = &Pricing{
			Currency: p.Currency, BasePrice: p.BasePrice, PriceUnit: p.PriceUnit,
			TierPricing: p.TierPricing, MinimumCommitment: p.MinimumCommitment,
		}
	}
	return o
}

func capabilitiesOf(m *pb.ServiceCapabilities) *Capabilities {
	if m == nil {
		return nil
	}
	c := new(Capabilities)
	if v := m.Storage; v != nil {
		c.Storage = &Storage{
			TotalSpace: v.TotalSpace, AvailableSpace: v.AvailableSpace, MaxObjectSize: v.MaxObjectSize,
			StorageClasses:      v.StorageClasses,
			EncryptionSupported: v.EncryptionSupported, VersioningSupported: v.VersioningSupported,
		}
	}
	if v := m.Compute; v != nil {
		c.Compute = &Compute{
			CPUCores: v.CpuCores, MemoryMB: v.MemoryMb,
			RuntimeEngines: v.RuntimeEngines, MaxJobDuration: v.MaxJobDuration,
		}
		for _, g := range v.Gpus {
			c.Compute.GPUs = append(c.Compute.GPUs, GPU{
				Model: g.GetModel(), MemoryMB: g.GetMemoryMb(), ComputeCapability: g.GetComputeCapability(),
			})
		}
	}
	if v := m.Cdn; v != nil {
		c.CDN = &CDN{
			BandwidthMbps: v.BandwidthMbps, Regions: v.Regions, CacheTypes: v.CacheTypes,
			SSLSupported: v.SslSupported, HTTP2Supported: v.Http2Supported,
		}
	}
	if v := m.Bandwidth; v != nil {
		c.Bandwidth = &Bandwidth{
			UploadMbps: v.UploadMbps, DownloadMbps: v.DownloadMbps,
			Protocols: v.Protocols, ExitCountries: v.ExitCountries,
		}
	}
	return c
}

func healthOf(m *pb.HealthStatus) *Health {
	if m == nil {
		return nil
	}
	h := &Health{
		Status:        m.Status.String(), // the number of an unknown one, which Validate refuses
		UptimePercent: m.UptimePercent, ResponseTimeMs: m.ResponseTimeMs, ErrorRate: m.ErrorRate,
	}
	if m.LastCheck != nil {
		t := m.LastCheck.AsTime()
		h.LastCheck = &t
	}
	return h
}

// Coarsen replaces the offer's point by the centre of its geohash cell of the given length (1 to
// 12), so that the exact place stays on the host. Precision 0, or an offer without a valid
// point, changes nothing. The receiver stays unchanged.
func (o Offer) Coarsen(precision int) Offer {
	if precision <= 0 || o.Location == nil || o.Location.Latitude == nil || o.Location.Longitude == nil {
		return o
	}
	p, err := geo.NewPoint(*o.Location.Latitude, *o.Location.Longitude)
	if err != nil {
		return o // Validate reports the error
	}
	center := geo.CellOf(p, precision).Center()
	location := *o.Location
	location.Latitude, location.Longitude = &center.Lat, &center.Lon
	o.Location = &location
	return o
}

// index formats a list index for a field path.
func index(i int) string { return "[" + strconv.Itoa(i) + "]" }
