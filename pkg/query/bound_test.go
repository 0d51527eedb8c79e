package query

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// bestOf returns the best values of records under a plan.
func bestOf(p *Plan, recs []*records.Record) records.Facts {
	var best records.Facts
	better := func(k records.Known, known, is bool) bool {
		if !known || best.Has(k) && !is {
			return false
		}
		best.Known |= k
		return true
	}
	for _, r := range recs {
		x := r.Facts()
		best.Known |= x.Known & (records.KnownCPU | records.KnownMemory | records.KnownGPU | records.KnownStorage | records.KnownBandwidth)
		best.CPUCores, best.MemoryMB, best.GPUs = max(best.CPUCores, x.CPUCores), max(best.MemoryMB, x.MemoryMB), max(best.GPUs, x.GPUs)
		best.StorageBytes, best.Bandwidth = max(best.StorageBytes, x.StorageBytes), max(best.Bandwidth, x.Bandwidth)
		if better(records.KnownUptime, x.Has(records.KnownUptime), x.Uptime > best.Uptime) {
			best.Uptime = x.Uptime
		}
		if better(records.KnownErrorRate, x.Has(records.KnownErrorRate), x.ErrorRate < best.ErrorRate) {
			best.ErrorRate = x.ErrorRate
		}
		if better(records.KnownResponseTime, x.Has(records.KnownResponseTime), x.ResponseMS < best.ResponseMS) {
			best.ResponseMS = x.ResponseMS
		}
		currency, unit := p.Prices()
		if better(records.KnownPrice, pricedIn(x, currency, unit), x.Price < best.Price) {
			best.Price = x.Price
		}
	}
	return best
}

// The bound of a cell is at most the value of every match in it, in any order.
func TestBoundAgainstValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := compile(t, queryGen(t).Draw(t, "query"))
		var recs []*records.Record
		world := recordsGen(t, 8).Draw(t, "records")
		place := geo.Global
		for _, s := range world { // the cell around one of them
			if at, ok := s.record.Facts().Place(); ok {
				place = geo.CellOf(at, rapid.IntRange(0, geo.DeepLen).Draw(t, "length"))
				break
			}
		}
		var lots Lots
		for _, s := range world {
			if at, ok := s.record.Facts().Place(); place == geo.Global || ok && place.Contains(at) {
				recs = append(recs, s.record)
				lots.Add(s.record.Name())
			}
		}
		if len(recs) == 0 {
			return
		}
		best := bestOf(p, recs)
		bound, some := p.Bound(&best, &lots, place)
		require.False(t, math.IsNaN(bound))
		for _, r := range recs {
			if p.Match(r) {
				require.True(t, some)
				require.LessOrEqual(t, bound, p.Value(r))
			}
		}
	})
}

// Every match of a query has the tokens that the query asks for.
func TestTokensAgainstMatches(t *testing.T) {
	matches, excluded := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := compile(t, queryGen(t).Draw(t, "query"))
		tokens := make(map[uint64]bool)
		some := false
		for _, s := range recordsGen(t, 16).Draw(t, "records") {
			for _, token := range TokensOf(s.record) {
				tokens[token] = true
			}
			some = some || p.Match(s.record)
		}
		if may := p.MayMatch(func(token uint64) bool { return tokens[token] }); some {
			matches++
			require.True(t, may, "a match has no token that the query asks for")
		} else if !may {
			excluded++
		}
	})
	require.Positive(t, matches)
	require.Positive(t, excluded)
}

// Each field with tokens excludes records without a text, whatever the case, and only clauses that need the text do.
func TestTokensExclude(t *testing.T) {
	r := seal(t, 1, &pb.ServiceRecord{
		Id:       "one",
		Metadata: &pb.ServiceMetadata{Type: "compute", Protocols: []string{"Grpc", "HTTPS"}, Attributes: map[string]string{"tier": "Gold", "empty": ""}},
		Capabilities: &pb.ServiceCapabilities{Compute: &pb.ComputeCapabilities{CpuCores: 1, MemoryMb: 1, RuntimeEngines: []string{"Wasm"},
			Gpus: []*pb.GPUInfo{{Model: "T4"}, {Model: "H100 SXM 80 GB"}}}},
		Location: &pb.GeoLocation{Country: "FJ", Region: "\u00cele-de-France"},
	})
	tokens := TokensOf(r)
	may := func(q Query) bool {
		q.Type = "compute"
		return compile(t, q).MayMatch(func(token uint64) bool { return slices.Contains(tokens, token) })
	}
	for text, want := range map[string]bool{
		"protocols=grpc": true, "protocols=udp,https": true, "protocols=udp": false, "compute.runtime_engines=WASM": true, "compute.runtime_engines=docker": false,
		"attributes.tier=Gold": true, "attributes.tier=gold": false, "attributes.empty=": true, "attributes.tier^=Silver": true, "attributes.other=Gold": false,
		"compute.gpus.model=h100 sxm 80 gb": true, "compute.gpus.model=H100": false, "compute.gpus.model^=h100": true, "compute.gpus.model^=H100 SXM 80": true,
		"compute.gpus.model^=A100,t": true, "compute.gpus.model^=A": false, "compute.gpus.model!=A100": true, "compute.gpus.model?=A100": true,
		"location.country=fj": true, "location.country=DE": false, "location.region=\u00eele-de-france": true, "location.region^=Berlin": true, "location.city=Suva": true,
		"!protocols": true, "protocols": true, "name=anything": true,
	} {
		c, err := ParseClause(text)
		require.NoError(t, err, text)
		require.Equal(t, want, may(Query{Where: []Clause{c}}), text)
	}
	require.True(t, may(Query{Countries: []string{"de", "fj"}, Regions: []string{"\u00eele-de-france"}}))
	require.False(t, may(Query{Countries: []string{"DE", "FR"}}))
	require.False(t, may(Query{Countries: []string{"FJ"}, Regions: []string{"Berlin"}}))
	require.False(t, may(Query{Attributes: map[string]string{"tier": "Gold", "b": ""}}))
	require.True(t, may(Query{}))
	all, err := ParseClause("protocols=grpc")
	require.NoError(t, err)
	all.Op, all.Values = OpAll, []string{"grpc", "https"}
	require.True(t, may(Query{Where: []Clause{all}}))
	all.Values = []string{"grpc", "udp"}
	require.False(t, may(Query{Where: []Clause{all}}))
}

// Peers of one network agree on tokens: a parent's keepers compare those that others computed.
func TestTokensAreStable(t *testing.T) {
	var names []string
	for _, f := range Fields() {
		if tokened(f.path) {
			names = append(names, f.Name)
		}
	}
	require.Equal(t, []string{"attributes.KEY", "bandwidth.exit_countries", "bandwidth.protocols", "cdn.cache_types", "cdn.regions",
		"compute.gpus.model", "compute.runtime_engines", "location.country", "location.region", "protocols", "storage.storage_classes"}, names)
	require.Equal(t, uint64(0x7f796ad164aeb027), token(path{5, 3}, false, "fj"))
	require.Equal(t, uint64(0xfc353fee62c27ccc), token(gpuModel(), true, "h100"))
	require.Equal(t, uint64(0xe5f21ca8fee72f36), token(attribute(), false, "tier", "gold"))
}
