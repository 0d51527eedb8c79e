package records

import (
	"cmp"
	"reflect"
	"strconv"
	"strings"
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
	s := new(pb.ServiceRecord)
	convert(reflect.ValueOf(s).Elem(), reflect.ValueOf(o))
	return s
}

// OfferOf returns the provider's part of a service record. It shares slices and maps with the
// message.
func OfferOf(s *pb.ServiceRecord) (o Offer) {
	convert(reflect.ValueOf(&o).Elem(), reflect.ValueOf(s))
	return o
}

// convert sets a value of a message from the same value of an Offer or a View, or the other way
// round: fields of structs by their name in JSON, which the schema and they have in common. Lists
// of texts and maps are shared. An invalid time is left out where a zero one means none; elsewhere
// Validate refuses it.
func convert(to, from reflect.Value) {
	if from.Kind() == reflect.Struct && to.Kind() == reflect.Struct && to.Type() != from.Type() {
		convertFields(to, from)
		return
	}
	switch v := from.Interface().(type) {
	case *timestamppb.Timestamp:
		if v.IsValid() || v != nil && to.Kind() == reflect.Pointer {
			place(to).Set(reflect.ValueOf(v.AsTime()))
		}
		return
	case *time.Time:
		if v != nil {
			to.Set(reflect.ValueOf(timestamppb.New(*v)))
		}
		return
	case pb.HealthStatus_Status:
		to.SetString(v.String()) // the number of an unknown one, which Validate refuses
		return
	}
	switch {
	case to.Type() == from.Type():
		to.Set(from)
	case from.Kind() == reflect.String:
		to.SetInt(int64(statusOf(from.String())))
	case from.Kind() == reflect.Slice:
		for i := range from.Len() {
			item := reflect.New(to.Type().Elem()).Elem()
			convert(item, from.Index(i))
			to.Set(reflect.Append(to, item))
		}
	case from.Kind() == reflect.Struct:
		convert(place(to), from)
	case !from.IsNil():
		convert(place(to), from.Elem())
	}
}

// place returns the value that a pointer points to, a new one, or a value that is no pointer.
func place(to reflect.Value) reflect.Value {
	if to.Kind() != reflect.Pointer {
		return to
	}
	to.Set(reflect.New(to.Type().Elem()))
	return to.Elem()
}

func convertFields(to, from reflect.Value) {
	for i := range to.NumField() {
		f := to.Type().Field(i)
		if f.Anonymous {
			convertFields(to.Field(i), from)
			continue
		}
		for j := range from.NumField() {
			if name := nameInJSON(f); name != "" && name == nameInJSON(from.Type().Field(j)) {
				convert(to.Field(i), from.Field(j))
			}
		}
	}
}

func nameInJSON(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
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
