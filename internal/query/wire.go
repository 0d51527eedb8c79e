package query

import (
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// FromProto converts a query from its wire form. Compile validates it. A value that Query cannot
// represent is a fault.Invalid error with the name of the field. The result shares no memory
// with m.
func FromProto(m *pb.Query) (query.Query, error) {
	const op = "query.FromProto"
	if m == nil {
		return query.Query{}, fault.Wrap(op, fault.Invalidf("query", nil, "is required"))
	}
	q := query.Query{
		Type: m.Type, Subtype: m.Subtype,
		Countries: m.Countries, Regions: m.Regions,
		Capacity: query.Capacity{
			MinCPUCores: m.MinCpuCores, MinMemoryMB: m.MinMemoryMb, RequireGPU: m.RequireGpu,
			MinStorageGB: m.MinStorageGb, MinBandwidthMbps: m.MinBandwidthMbps,
		},
		Price:      query.Price{MaxPrice: m.MaxPrice, Currency: m.Currency, PriceUnit: m.PriceUnit},
		Quality:    query.Quality{MinUptime: m.MinUptime, MaxErrorRate: m.MaxErrorRate},
		ProviderID: m.ProviderId, Attributes: m.Attributes,
		Explain: m.Explain, ExactTotal: m.ExactTotal, Seed: m.Seed, After: m.After, Types: m.Types,
	}
	q.Volume, q.GroupPrices, q.Domain = m.Volume, m.GroupPrices, m.Domain
	q.Cells = int(min(m.Cells, math.MaxInt32))
	if m.Near != nil {
		q.Near = &query.Near{Latitude: m.Near.Latitude, Longitude: m.Near.Longitude, RadiusKM: m.Near.RadiusKm}
	}
	q = cloneQuery(&q)
	return q, fault.Wrap(op, setProto(&q, m))
}

// setProto converts the fields with possible errors.
func setProto(q *query.Query, m *pb.Query) error {
	if m.Limit > math.MaxInt32 {
		return fault.Invalidf("limit", m.Limit, "is too large")
	}
	q.Limit = int(m.Limit)
	if m.Sort < 0 || int(m.Sort) > len(sorts()) {
		return fault.Invalidf("sort", int32(m.Sort), "must be one of %s", oneOf(sorts()))
	}
	if m.Sort != pb.Sort_SORT_UNSPECIFIED {
		q.Sort = sorts()[m.Sort-1]
	}
	if m.Health < 0 || int(m.Health) > len(healths()) {
		return fault.Invalidf("health", int32(m.Health), "must be one of %s", oneOf(healths()))
	}
	if m.Health != pb.Health_HEALTH_UNSPECIFIED {
		q.Health = healths()[m.Health-1]
	}
	if m.Claims < 0 || int(m.Claims) > len(weights()) {
		return fault.Invalidf("claims", int32(m.Claims), "must be one of %s", oneOf(weights()))
	}
	if m.Claims != pb.Claims_CLAIMS_UNSPECIFIED {
		q.Claims = weights()[m.Claims-1]
	}
	var err error
	q.Where, err = clausesOf(m.Where)
	return err
}

// clausesOf converts clauses from their wire form.
func clausesOf(list []*pb.Clause) ([]query.Clause, error) {
	if n := len(list); n > MaxClauses {
		return nil, fault.Invalidf("where", n, "must be at most %d clauses", MaxClauses)
	}
	var where []query.Clause
	for i, m := range list {
		if m.GetOp() <= pb.Clause_OP_UNSPECIFIED || int(m.GetOp()) > len(ops()) {
			return nil, fault.In(indexed("where", i), fault.Invalidf("op", int32(m.GetOp()), "must be one of %s", oneOf(ops())))
		}
		c := query.Clause{
			Field: m.GetField(), Op: ops()[m.Op-1], Values: m.Values, Min: m.Min, Max: m.Max,
			Not: m.Not, OrUnstated: m.OrUnstated,
		}
		where = append(where, cloneClause(&c))
	}
	return where, nil
}

func clauseProto(c *query.Clause) *pb.Clause {
	return &pb.Clause{
		Field: c.Field, Op: pb.Clause_Op(number32(ops(), c.Op)), Values: c.Values, Min: c.Min, Max: c.Max,
		Not: c.Not, OrUnstated: c.OrUnstated,
	}
}

// Proto returns the query's wire form. An unknown order or health filter becomes a number that
// FromProto refuses. The result shares no memory with q.
func Proto(q query.Query) *pb.Query {
	q = cloneQuery(&q)
	m := &pb.Query{
		Type: q.Type, Subtype: q.Subtype,
		Countries: q.Countries, Regions: q.Regions,
		MinCpuCores: q.MinCPUCores, MinMemoryMb: q.MinMemoryMB, RequireGpu: q.RequireGPU,
		MinStorageGb: q.MinStorageGB, MinBandwidthMbps: q.MinBandwidthMbps,
		MaxPrice: q.MaxPrice, Currency: q.Currency, PriceUnit: q.PriceUnit,
		MinUptime: q.MinUptime, MaxErrorRate: q.MaxErrorRate,
		ProviderId: q.ProviderID, Attributes: q.Attributes,
		Health: pb.Health(number32(healths(), q.Health)), Sort: pb.Sort(number32(sorts(), q.Sort)),
		Limit: limit32(q.Limit), Explain: q.Explain, ExactTotal: q.ExactTotal, Seed: q.Seed, After: q.After,
		Types: q.Types, Volume: q.Volume, GroupPrices: q.GroupPrices, Cells: limit32(q.Cells), Domain: q.Domain, Claims: pb.Claims(number32(weights(), q.Claims)),
	}
	for i := range q.Where {
		m.Where = append(m.Where, clauseProto(&q.Where[i]))
	}
	if q.Near != nil {
		m.Near = &pb.Near{Latitude: q.Near.Latitude, Longitude: q.Near.Longitude, RadiusKm: q.Near.RadiusKM}
	}
	return m
}

// number32 returns a name's number on the wire: 0 for the default, 1 for the first of the list,
// and -1 for an unknown name.
func number32[T ~string](names []T, name T) int32 {
	i := slices.Index(names, name)
	if name != "" && i < 0 {
		return -1
	}
	return int32(i + 1)
}

// limit32 keeps an invalid limit invalid on the wire.
func limit32(limit int) uint32 {
	if limit < 0 || int64(limit) > math.MaxUint32 {
		return math.MaxUint32
	}
	return uint32(limit)
}

// indexed names an element of a list: "countries[1]".
func indexed(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// narrowing returns the fields of the wire form that only filter: without one of them a query has at least the
// same matches, and ranks them equally. All other fields
// choose the cells, the order, or the form of the answer.
func narrowing() []protoreflect.Name {
	return []protoreflect.Name{
		"countries", "regions", "min_cpu_cores", "min_memory_mb", "require_gpu", "min_storage_gb", "min_bandwidth_mbps",
		"max_price", "min_uptime", "max_error_rate", "attributes", "where", "domain",
	}
}

// Without returns p without the filters of some fields of the wire form, for a peer of an older version
// that does not know them. Every match of p is a match of that plan, with an equal rank value or a better one. Its limit is
// MaxLimit: the caller filters. It reports false if a field does more than filter, or is not set.
func (p *Plan) Without(fields []string) (*Plan, bool) {
	m := Proto(p.query)
	r := m.ProtoReflect()
	for _, name := range fields {
		fd := r.Descriptor().Fields().ByName(protoreflect.Name(name))
		if name == "max_price" && p.Sort() == query.SortScore {
			return nil, false // the score counts the margin below it
		}
		if fd == nil || !slices.Contains(narrowing(), fd.Name()) || !r.Has(fd) {
			return nil, false
		}
		r.Clear(fd)
	}
	m.Limit = MaxLimit
	q, err := FromProto(m)
	if err != nil {
		return nil, false
	}
	if !usesPrices(&q) {
		q.Currency, q.PriceUnit, q.Volume = "", "", nil
	}
	wider, err := Compile(q, Defaults{})
	return wider, err == nil
}
