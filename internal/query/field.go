package query

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/query"
)

// Kind is the type of the values of a Field.
type Kind string

// The kinds.
const (
	KindText   Kind = "text"   // any, all, prefix, stated
	KindNumber Kind = "number" // any, range, stated
	KindFlag   Kind = "flag"   // any with true or false; stated with its block
	// KindLabel is the value of an attribute: a text with case, and a number for a range.
	KindLabel Kind = "label"
)

// Field is a field of records for clauses. The table of fields is the only source of names,
// checks, matches, help and documentation of clauses.
type Field struct {
	Name string // path in the JSON of a record, without "metadata." and "capabilities."; KEY stands for a key
	Kind Kind
	Unit string // of a number; "" for a count
	Help string

	many     bool // list of texts
	keyed    bool // map; the name ends with a key
	optional bool // a number of 0 is stated, unlike in other fields
	exact    bool // texts compare with case
	special  special
	coding   coding
	path     path // in ServiceRecord
}

// path is a list of field numbers, ended by 0.
type path [5]protowire.Number

// coding is the form of a value on the wire.
type coding uint8

const (
	codeBytes coding = iota
	codeUint
	codeUint32
	codeInt // varint of an int64
	codeDouble
	codeStatus // varint of HealthStatus.Status, a text by its name
)

// special marks the fields that are not read one by one from the path.
type special uint8

const (
	plain    special = iota
	ofGPU            // field of a GPU: clauses of this kind meet in one GPU
	gpuCount         // number of GPUs that meet the clauses about GPUs
	terms            // currency and unit of the price
	words            // of all texts
)

// Fields returns the table of fields, sorted by name.
func Fields() []Field {
	table := slices.Concat(generalFields(), capabilityFields(), offerFields())
	slices.SortFunc(table, func(a, b Field) int { return cmp.Compare(a.Name, b.Name) })
	return table
}

func generalFields() []Field {
	return []Field{
		{Name: "id", Kind: KindText, Help: "id of the service", exact: true, path: path{1}},
		{Name: "provider_id", Kind: KindText, Help: "peer id of the provider, in base58", exact: true, path: path{2}},
		{Name: "subtype", Kind: KindText, Help: "specialisation within the type", path: path{3, 2}},
		{Name: "name", Kind: KindText, Help: "name for people", path: path{3, 3}},
		{Name: "description", Kind: KindText, Help: "description for people", path: path{3, 4}},
		{Name: wordsName, Kind: KindText, Help: "words of any text but those of endpoints: of id, name, description, attributes, GPUs, places", special: words},
		{Name: "version", Kind: KindText, Help: "version of the service", path: path{3, 5}},
		{Name: "endpoints", Kind: KindText, Help: "addresses of the service: with a prefix, their protocol (https://)", many: true, path: path{3, 6}},
		{Name: "protocols", Kind: KindText, Help: "protocols of the endpoints: https, grpc, ...", many: true, path: path{3, 7}},
		{Name: "domain", Kind: KindText, Help: "domain that the service claims", path: path{3, 9}},
		{Name: "access", Kind: KindText, Help: "peer: its provider's peer carries connections of holders of grants", path: path{3, 10}},
		{Name: "stock.unit", Kind: KindText, Help: "unit of what can be reserved: gpu, slot, ...", path: path{3, 11, 1}},
		{Name: "stock.total", Kind: KindNumber, Help: "units that the provider grants", coding: codeUint32, path: path{3, 11, 2}},
		{Name: "stock.max_ttl", Kind: KindNumber, Unit: "seconds", Help: "longest time of one grant, if stated", coding: codeUint32, path: path{3, 11, 3}},
		{Name: "stock.max_per_consumer", Kind: KindNumber, Help: "units that one consumer may have, if stated", coding: codeUint32, path: path{3, 11, 4}},
		{Name: "attributes.KEY", Kind: KindLabel, Help: "attribute KEY; a range reads it as a number", keyed: true, exact: true, path: path{3, 8}},
		{Name: "created_at", Kind: KindNumber, Unit: "Unix seconds", Help: "first registration", coding: codeInt, path: path{8, 1}},
		{Name: "updated_at", Kind: KindNumber, Unit: "Unix seconds", Help: "signature of this version", coding: codeInt, path: path{9, 1}},
		{Name: "expires_at", Kind: KindNumber, Unit: "Unix seconds", Help: "expiry of this version", coding: codeInt, path: path{10, 1}},
	}
}

func capabilityFields() []Field {
	return []Field{
		{Name: "storage.total_space", Kind: KindNumber, Unit: "bytes", Help: "total space", coding: codeUint, path: path{4, 1, 1}},
		{Name: "storage.available_space", Kind: KindNumber, Unit: "bytes", Help: "available space", coding: codeUint, path: path{4, 1, 2}},
		{Name: "storage.max_object_size", Kind: KindNumber, Unit: "MB", Help: "largest object", coding: codeUint32, path: path{4, 1, 3}},
		{Name: "storage.storage_classes", Kind: KindText, Help: "hot, cold, archive, ...", many: true, path: path{4, 1, 4}},
		{Name: "storage.encryption_supported", Kind: KindFlag, Help: "encrypts at rest", coding: codeUint, path: path{4, 1, 5}},
		{Name: "storage.versioning_supported", Kind: KindFlag, Help: "keeps earlier versions of objects", coding: codeUint, path: path{4, 1, 6}},
		{Name: "compute.cpu_cores", Kind: KindNumber, Help: "CPU cores", coding: codeUint32, path: path{4, 2, 1}},
		{Name: "compute.memory_mb", Kind: KindNumber, Unit: "MB", Help: "memory", coding: codeUint, path: path{4, 2, 2}},
		{Name: gpuCountName, Kind: KindNumber, Help: "number of GPUs that meet the other clauses about GPUs", special: gpuCount, path: path{4, 2, 3}},
		{Name: "compute.gpus.model", Kind: KindText, Help: "model of a GPU", special: ofGPU, path: path{4, 2, 3, 1}},
		{Name: "compute.gpus.memory_mb", Kind: KindNumber, Unit: "MB", Help: "memory of a GPU", special: ofGPU, coding: codeUint32, path: path{4, 2, 3, 2}},
		{Name: "compute.gpus.compute_capability", Kind: KindNumber, Help: "compute capability of a GPU", special: ofGPU, coding: codeUint32, path: path{4, 2, 3, 3}},
		{Name: "compute.runtime_engines", Kind: KindText, Help: "wasm, docker, native, ...", many: true, path: path{4, 2, 4}},
		{Name: "compute.max_job_duration", Kind: KindNumber, Unit: "seconds", Help: "longest job", coding: codeUint32, path: path{4, 2, 5}},
		{Name: "cdn.bandwidth_mbps", Kind: KindNumber, Unit: "Mbit/s", Help: "bandwidth", coding: codeUint, path: path{4, 3, 1}},
		{Name: "cdn.regions", Kind: KindText, Help: "regions served", many: true, path: path{4, 3, 2}},
		{Name: "cdn.cache_types", Kind: KindText, Help: "static, dynamic, streaming, ...", many: true, path: path{4, 3, 3}},
		{Name: "cdn.ssl_supported", Kind: KindFlag, Help: "serves TLS", coding: codeUint, path: path{4, 3, 4}},
		{Name: "cdn.http2_supported", Kind: KindFlag, Help: "serves HTTP/2", coding: codeUint, path: path{4, 3, 5}},
		{Name: "bandwidth.upload_mbps", Kind: KindNumber, Unit: "Mbit/s", Help: "upload", coding: codeUint, path: path{4, 4, 1}},
		{Name: "bandwidth.download_mbps", Kind: KindNumber, Unit: "Mbit/s", Help: "download", coding: codeUint, path: path{4, 4, 2}},
		{Name: "bandwidth.protocols", Kind: KindText, Help: "wireguard, openvpn, socks5, ...", many: true, path: path{4, 4, 3}},
		{Name: "bandwidth.exit_countries", Kind: KindText, Help: "countries of exits, ISO 3166-1 alpha-2", many: true, path: path{4, 4, 4}},
	}
}

func offerFields() []Field {
	return []Field{
		{Name: "location.latitude", Kind: KindNumber, Unit: "degrees", Help: "latitude, WGS 84", optional: true, coding: codeDouble, path: path{5, 1}},
		{Name: "location.longitude", Kind: KindNumber, Unit: "degrees", Help: "longitude, WGS 84", optional: true, coding: codeDouble, path: path{5, 2}},
		{Name: "location.country", Kind: KindText, Help: "country, ISO 3166-1 alpha-2", path: path{5, 3}},
		{Name: "location.region", Kind: KindText, Help: "region", path: path{5, 4}},
		{Name: "location.city", Kind: KindText, Help: "city", path: path{5, 5}},
		{Name: "location.isp", Kind: KindText, Help: "internet provider", path: path{5, 6}},
		{Name: "location.precision", Kind: KindNumber, Help: "length of the geohash in the key", coding: codeUint32, path: path{5, 7}},
		{Name: "pricing.currency", Kind: KindText, Help: "currency", path: path{6, 1}},
		{Name: "pricing.base_price", Kind: KindNumber, Unit: "currency per price_unit", Help: "base price, in any currency and unit", optional: true, coding: codeDouble, path: path{6, 2}},
		{Name: "pricing.price_unit", Kind: KindText, Help: "unit of the price: per-hour, per-gb, ...", path: path{6, 3}},
		{Name: "pricing.tier_pricing.KEY", Kind: KindNumber, Unit: "currency per price_unit", Help: "price of the tier KEY", keyed: true, optional: true, coding: codeDouble, path: path{6, 4}},
		{Name: "pricing.minimum_commitment", Kind: KindNumber, Unit: "currency", Help: "least amount to pay", optional: true, coding: codeDouble, path: path{6, 5}},
		{Name: termsName, Kind: KindText, Help: "currency and unit, separated by a space: USDC per-hour", special: terms},
		{Name: "health.status", Kind: KindText, Help: "claimed health: healthy, degraded or unhealthy", coding: codeStatus, path: path{7, 1}},
		{Name: "health.uptime_percent", Kind: KindNumber, Unit: "percent", Help: "claimed uptime", optional: true, coding: codeDouble, path: path{7, 2}},
		{Name: "health.response_time_ms", Kind: KindNumber, Unit: "milliseconds", Help: "claimed response time", optional: true, coding: codeUint, path: path{7, 3}},
		{Name: "health.error_rate", Kind: KindNumber, Unit: "of 10000 requests", Help: "claimed errors", optional: true, coding: codeUint32, path: path{7, 4}},
		{Name: "health.last_check", Kind: KindNumber, Unit: "Unix seconds", Help: "last check of its health", coding: codeInt, path: path{7, 5, 1}},
	}
}

// gpuCountName is the field of the number of GPUs.
const gpuCountName = "compute.gpus.count"

// termsName is the field of currency and unit.
const termsName = "pricing.terms"

// wordsName is the field of the words of all texts.
const wordsName = "text"

// keyMark ends the names of keyed fields in the table.
const keyMark = "KEY"

// fieldNamed finds a field. For a keyed one, key is the end of the name.
func fieldNamed(name string) (f Field, key string, ok bool) {
	for _, list := range [...]func() []Field{generalFields, capabilityFields, offerFields} {
		for _, f := range list() {
			if !f.keyed && f.Name == name {
				return f, "", true
			}
			if key, found := strings.CutPrefix(name, strings.TrimSuffix(f.Name, keyMark)); f.keyed && found && key != "" {
				return f, key, true
			}
		}
	}
	return Field{}, "", false
}

// numeric reports whether values are numbers under an operation.
func (f *Field) numeric(op query.Op) bool {
	return f.Kind == KindNumber || f.Kind == KindLabel && op == query.OpRange
}

// Ops returns the operations of clauses on the field.
func (f *Field) Ops() []query.Op {
	switch {
	case f.Kind == KindFlag:
		return []query.Op{query.OpAny}
	case f.Kind == KindLabel:
		return []query.Op{query.OpAny, query.OpPrefix, query.OpRange, query.OpStated}
	case f.Kind == KindNumber:
		return []query.Op{query.OpAny, query.OpRange, query.OpStated}
	case f.special == words:
		return []query.Op{query.OpAny, query.OpAll}
	case f.many || f.special == ofGPU:
		return []query.Op{query.OpAny, query.OpAll, query.OpPrefix, query.OpStated}
	default:
		return []query.Op{query.OpAny, query.OpPrefix, query.OpStated}
	}
}

// similar returns the name of the field that a wrong name probably means, or "". The separators "." and "_" are equal.
func similar(name string) string {
	wrong, plain := strings.ToLower(name), strings.NewReplacer(".", "_")
	for _, prefix := range [...]string{"metadata.", "capabilities."} {
		wrong = strings.TrimPrefix(wrong, prefix)
	}
	if len(wrong) > 2*maxKey {
		return ""
	}
	best, least := "", len(wrong)/3+2
	for _, f := range Fields() {
		for tail := f.Name; tail != ""; { // the whole name, then without its first parts
			if d := spelling.Distance(plain.Replace(wrong), plain.Replace(tail)); d < least {
				best, least = f.Name, d
			}
			_, tail, _ = strings.Cut(tail, ".")
		}
	}
	return best
}
