package query

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// narrowing returns the fields of the wire form that only filter: without one of them a query has at least the
// same matches, and ranks them equally. All other fields choose the cells, the order, or the form of the answer.
func narrowing() []protoreflect.Name {
	return []protoreflect.Name{
		"countries", "regions", "min_cpu_cores", "min_memory_mb", "require_gpu", "min_storage_gb", "min_bandwidth_mbps",
		"max_price", "min_uptime", "max_error_rate", "attributes", "where", "exclude_providers",
	}
}

// Without returns p without the filters of some fields of the wire form, for a peer of an older version
// that does not know them. Every match of p is a match of that plan, with an equal rank value. Its limit is
// MaxLimit: the caller filters. It reports false if a field does more than filter, or is not set.
func Without(p *Plan, fields []string) (*Plan, bool) {
	m := p.query.Proto()
	r := m.ProtoReflect()
	for _, name := range fields {
		fd := r.Descriptor().Fields().ByName(protoreflect.Name(name))
		if name == "max_price" && p.Sort() == SortScore {
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
	if !q.usesPrices() {
		q.Currency, q.PriceUnit, q.Volume = "", "", nil
	}
	wider, err := Compile(q, Defaults{})
	return wider, err == nil
}
