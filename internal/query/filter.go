package query

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Filter holds every check of a plan as flat values, for column-wise evaluation. An unused check
// has a value that every record passes, and no bit in Need. Texts are folded and lists sorted. A
// Filter is read-only.
type Filter struct {
	Need            records.Known // bits of the values that must be known
	MinCPU          uint32
	MinGPU          uint32
	MaxErrorRate    uint32 // math.MaxUint32 for no check
	MinMemoryMB     uint64
	MinStorageBytes uint64
	MinBandwidth    uint64
	MaxPrice        float64 // +Inf for no check
	MinUptime       float64 // -Inf for no check
	Currency        string  // of MaxPrice; "" without MaxPrice
	PriceUnit       string  // of MaxPrice; "" without MaxPrice
	Countries       []string
	Regions         []string
	Provider        peer.ID // "" for any
	Attributes      []records.Attribute
	Statuses        Statuses
	Partial         bool // the plan has further checks, which need the whole record
	Tiered          bool // prices depend on a volume: base prices neither check nor bound them
}

// Statuses is a set of claimed health statuses, bit 1<<status each.
type Statuses uint32

// AllStatuses contains every status, later additions included.
const AllStatuses Statuses = math.MaxUint32

// Has reports whether the set contains s.
func (set Statuses) Has(s pb.HealthStatus_Status) bool {
	return set == AllStatuses || s >= 0 && s < 32 && set>>uint(s)&1 != 0
}

// statusesOf returns the claims that pass a health filter.
func statusesOf(h query.Health) Statuses {
	switch h {
	case query.HealthAny:
		return AllStatuses
	case query.HealthHealthy:
		return 1 << pb.HealthStatus_HEALTHY
	default:
		return AllStatuses &^ (1 << pb.HealthStatus_UNHEALTHY)
	}
}

// filterOf flattens a normalised query.
func filterOf(q *query.Query) Filter {
	f := Filter{
		MaxErrorRate: math.MaxUint32,
		MaxPrice:     math.Inf(1),
		MinUptime:    math.Inf(-1),
		Countries:    foldedSet(q.Countries),
		Regions:      foldedSet(q.Regions),
		Attributes:   attributesOf(q.Attributes),
		Statuses:     statusesOf(q.Health),
	}
	if id, err := peer.Decode(q.ProviderID); err == nil {
		f.Provider = id
	}
	f.setCapacity(&q.Capacity)
	for i := range q.Where {
		f.narrow(&q.Where[i])
	}
	f.needMinima()
	if q.MaxPrice != nil {
		f.Need |= records.KnownPrice
		f.MaxPrice, f.Currency, f.PriceUnit = *q.MaxPrice, Fold(q.Currency), Fold(q.PriceUnit)
	}
	if q.MinUptime != nil {
		f.Need |= records.KnownUptime
		f.MinUptime = math.Max(f.MinUptime, *q.MinUptime)
	}
	if q.MaxErrorRate != nil {
		f.Need |= records.KnownErrorRate
		f.MaxErrorRate = min(f.MaxErrorRate, *q.MaxErrorRate)
	}
	return f
}

func (f *Filter) setCapacity(c *query.Capacity) {
	f.MinCPU, f.MinMemoryMB = c.MinCPUCores, c.MinMemoryMB
	f.MinStorageBytes, f.MinBandwidth = c.MinStorageGB*gigabyte, c.MinBandwidthMbps
	if c.RequireGPU {
		f.MinGPU = 1
	}
}

// needMinima requires the values with a lower bound.
func (f *Filter) needMinima() {
	for _, check := range f.minima(&records.Facts{}) {
		if check.least > 0 {
			f.Need |= check.bit
		}
	}
}

// narrow adds to the checks what a clause implies about values in columns. The clause itself remains:
// its check is exact, and names the clause.
func (f *Filter) narrow(c *query.Clause) {
	if c.Not || c.OrUnstated {
		return
	}
	if strings.HasPrefix(c.Field, "compute.gpus.") && c.Field != gpuCountName && c.Op != query.OpStated {
		f.MinGPU = max(f.MinGPU, 1)
	}
	for field, places := range map[string]*[]string{"location.country": &f.Countries, "location.region": &f.Regions} {
		if c.Field == field && c.Op == query.OpAny && len(*places) == 0 {
			*places = foldedSet(c.Values)
		}
	}
	if c.Op != query.OpRange {
		return
	}
	if c.Min != nil {
		least := math.Ceil(*c.Min)
		switch c.Field {
		case gpuCountName:
			f.MinGPU = max(f.MinGPU, atMost(least, math.MaxUint32))
		case "compute.cpu_cores":
			f.MinCPU = max(f.MinCPU, atMost(least, math.MaxUint32))
		case "compute.memory_mb":
			f.MinMemoryMB = max(f.MinMemoryMB, uint64(atMost(least, math.MaxUint32)))
		case "storage.available_space":
			const exact = 1 << 53 // smaller integers convert without loss
			f.MinStorageBytes = max(f.MinStorageBytes, uint64(math.Max(0, math.Min(least, exact))))
		case "health.uptime_percent":
			f.Need |= records.KnownUptime
			f.MinUptime = math.Max(f.MinUptime, *c.Min)
		}
	}
	if c.Max != nil && c.Field == "health.error_rate" && *c.Max >= 0 {
		f.Need |= records.KnownErrorRate
		f.MaxErrorRate = min(f.MaxErrorRate, atMost(math.Floor(*c.Max), maxErrorRate))
	}
}

// atMost converts a whole number, limited to the range from 0 to most.
func atMost(v, most float64) uint32 { return uint32(math.Max(0, math.Min(v, most))) }

// foldedSet folds and sorts the elements of a list.
func foldedSet(list []string) []string {
	return canonicalSet(slices.Clone(list), Fold)
}

// Pass applies every check except type, subtype, place, provider and exclusion.
func (f *Filter) Pass(x *records.Facts) bool {
	return x.Known&f.Need == f.Need &&
		x.CPUCores >= f.MinCPU && x.GPUs >= f.MinGPU &&
		x.MemoryMB >= f.MinMemoryMB && x.StorageBytes >= f.MinStorageBytes && x.Bandwidth >= f.MinBandwidth &&
		f.Statuses.Has(x.Status) &&
		f.passQuality(x) && f.passPrice(x) &&
		passPlace(f.Countries, x.Country) && passPlace(f.Regions, x.Region) &&
		f.passAttributes(x.Attributes)
}

func (f *Filter) passQuality(x *records.Facts) bool {
	return x.ErrorRate <= f.MaxErrorRate && (f.Need&records.KnownUptime == 0 || x.Uptime >= f.MinUptime)
}

func (f *Filter) passPrice(x *records.Facts) bool {
	return f.Need&records.KnownPrice == 0 || x.Price <= f.MaxPrice && pricedIn(x, f.Currency, f.PriceUnit)
}

// pricedIn reports whether a record states its price in this currency and unit.
func pricedIn(x *records.Facts, currency, unit string) bool {
	return x.Has(records.KnownPrice) && strings.EqualFold(x.Currency, currency) && strings.EqualFold(x.PriceUnit, unit)
}

// passPlace reports whether a list contains a stated place. Every place passes an empty list.
func passPlace(list []string, place string) bool {
	if len(list) == 0 {
		return true
	}
	for _, s := range list {
		if strings.EqualFold(s, place) {
			return true
		}
	}
	return false
}

// passAttributes compares two lists sorted by key.
func (f *Filter) passAttributes(stated []records.Attribute) bool {
	for _, want := range f.Attributes {
		for len(stated) > 0 && stated[0].Key < want.Key {
			stated = stated[1:]
		}
		if len(stated) == 0 || stated[0] != want {
			return false
		}
	}
	return true
}

// reject explains a failed Pass in one sentence. It returns "" exactly if Pass is true.
func (f *Filter) reject(x *records.Facts) string {
	for _, check := range [...]func(*records.Facts) string{
		f.rejectStatus, f.rejectCapacity, f.rejectQuality, f.rejectPrice, f.rejectPlace, f.rejectAttributes,
	} {
		if why := check(x); why != "" {
			return why
		}
	}
	return ""
}

func (f *Filter) rejectStatus(x *records.Facts) string {
	switch {
	case f.Statuses.Has(x.Status):
		return ""
	case f.Statuses == statusesOf(query.HealthHealthy):
		return fmt.Sprintf("health: claimed %v, only HEALTHY asked for", x.Status)
	default:
		return fmt.Sprintf("health: claimed %v, which is not usable", x.Status)
	}
}

// minimum is one lower bound with the record's value.
type minimum struct {
	field  string
	bit    records.Known
	stated uint64
	least  uint64
}

// minima returns the lower bounds on capabilities.
func (f *Filter) minima(x *records.Facts) [5]minimum {
	return [5]minimum{
		{"min_cpu_cores", records.KnownCPU, uint64(x.CPUCores), uint64(f.MinCPU)},
		{"min_memory_mb", records.KnownMemory, x.MemoryMB, f.MinMemoryMB},
		{"require_gpu", records.KnownGPU, uint64(x.GPUs), uint64(f.MinGPU)},
		{"min_storage_gb", records.KnownStorage, x.StorageBytes, f.MinStorageBytes},
		{"min_bandwidth_mbps", records.KnownBandwidth, x.Bandwidth, f.MinBandwidth},
	}
}

func (f *Filter) rejectCapacity(x *records.Facts) string {
	for _, m := range f.minima(x) {
		unit := ""
		if m.bit == records.KnownStorage {
			unit = " bytes"
		}
		switch {
		case m.least > 0 && !x.Has(m.bit):
			return fmt.Sprintf("%s: nothing stated, at least %d%s asked for", m.field, m.least, unit)
		case m.stated < m.least:
			return fmt.Sprintf("%s: %d%s stated, at least %d asked for", m.field, m.stated, unit, m.least)
		}
	}
	return ""
}

func (f *Filter) rejectQuality(x *records.Facts) string {
	asked := func(k records.Known) bool { return f.Need&k != 0 }
	switch {
	case asked(records.KnownUptime) && !x.Has(records.KnownUptime):
		return fmt.Sprintf("min_uptime: nothing stated, at least %v %% asked for", f.MinUptime)
	case asked(records.KnownUptime) && !(x.Uptime >= f.MinUptime):
		return fmt.Sprintf("min_uptime: %v %% stated, at least %v asked for", x.Uptime, f.MinUptime)
	case asked(records.KnownErrorRate) && !x.Has(records.KnownErrorRate):
		return fmt.Sprintf("max_error_rate: nothing stated, at most %d of 10000 asked for", f.MaxErrorRate)
	case x.ErrorRate > f.MaxErrorRate:
		return fmt.Sprintf("max_error_rate: %d of 10000 stated, at most %d asked for", x.ErrorRate, f.MaxErrorRate)
	}
	return ""
}

func (f *Filter) rejectPrice(x *records.Facts) string {
	switch {
	case f.passPrice(x):
		return ""
	case !x.Has(records.KnownPrice):
		return fmt.Sprintf("max_price: nothing stated, at most %v %s asked for", f.MaxPrice, priceTerms(f.Currency, f.PriceUnit))
	case !pricedIn(x, f.Currency, f.PriceUnit):
		return fmt.Sprintf("max_price: stated in %s, and does not compare with %s",
			priceTerms(x.Currency, x.PriceUnit), priceTerms(f.Currency, f.PriceUnit))
	default:
		return fmt.Sprintf("max_price: %v stated, at most %v %s asked for", x.Price, f.MaxPrice, priceTerms(f.Currency, f.PriceUnit))
	}
}

// priceTerms formats a currency and unit.
func priceTerms(currency, unit string) string { return upper(currency) + " " + unit }

func (f *Filter) rejectPlace(x *records.Facts) string {
	switch {
	case !passPlace(f.Countries, x.Country):
		return fmt.Sprintf("countries: %s stated, one of %s asked for", orNothing(upper(x.Country)), upper(oneOf(f.Countries)))
	case !passPlace(f.Regions, x.Region):
		return fmt.Sprintf("regions: %s stated, one of %s asked for", orNothing(x.Region), oneOf(f.Regions))
	}
	return ""
}

func (f *Filter) rejectAttributes(x *records.Facts) string {
	for _, want := range f.Attributes {
		at, found := slices.BinarySearchFunc(x.Attributes, want.Key, func(a records.Attribute, key string) int {
			return strings.Compare(a.Key, key)
		})
		switch {
		case !found:
			return fmt.Sprintf("attributes.%s: nothing stated, %q asked for", want.Key, want.Value)
		case x.Attributes[at] != want:
			return fmt.Sprintf("attributes.%s: %q stated, %q asked for", want.Key, x.Attributes[at].Value, want.Value)
		}
	}
	return ""
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
