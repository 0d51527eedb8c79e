package query

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// withoutRow lists the fields of a record that no clause can test.
func withoutRow() map[string]string {
	return map[string]string{
		"metadata.type":  "Query.Type and Query.Types",
		"signature":      "empty in the signed bytes",
		"sequence":       "number of the version",
		"withdrawn":      "a tombstone never matches",
		"critical":       "fields that a reader must know",
		"paused.stopped": "a paused record claims to be unhealthy",
		"paused.since":   "a paused record claims to be unhealthy",
		"paused.until":   "a paused record claims to be unhealthy",
	}
}

// leaves returns the path of field numbers of each leaf of a message by its name.
func leaves(d protoreflect.MessageDescriptor, name string, at path, depth int) map[string]path {
	all := make(map[string]path)
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		inner := at
		inner[depth] = f.Number()
		switch full := strings.TrimPrefix(name+"."+string(f.Name()), "."); {
		case f.IsMap():
			all[full+"."+keyMark] = inner
		case f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp":
			inner[depth+1] = 1
			all[full] = inner
		case f.Message() != nil:
			for n, p := range leaves(f.Message(), full, inner, depth+1) {
				all[n] = p
			}
		default:
			all[full] = inner
		}
	}
	return all
}

// A field of a record without a row fails this test, and so does a row of no field.
func TestEveryFieldOfARecordHasARow(t *testing.T) {
	descriptor := (&pb.ServiceRecord{}).ProtoReflect().Descriptor()
	all := leaves(descriptor, "", path{}, 0)
	for name := range withoutRow() {
		require.Contains(t, all, name)
		delete(all, name)
	}
	for _, f := range Fields() {
		require.NotEmpty(t, f.Help, f.Name)
		require.LessOrEqual(t, len(f.Name)+len(keyMark), maxClauseField)
		if f.special == gpuCount || f.special == terms || f.special == words {
			continue // derived
		}
		full := fullName(f.Name)
		require.Equal(t, all[full], f.path, f.Name)
		delete(all, full)
		checkRow(t, descriptor, f)
	}
	require.Empty(t, all, "fields without a row")
}

// checkRow compares a row with the schema.
func checkRow(t *testing.T, d protoreflect.MessageDescriptor, f Field) {
	var leaf protoreflect.FieldDescriptor
	repeats := false
	for _, n := range f.path {
		if n == 0 {
			break
		}
		if leaf != nil {
			d = leaf.Message()
		}
		leaf = d.Fields().ByNumber(n)
		repeats = repeats || leaf.IsList() && leaf.Message() != nil
	}
	require.Equal(t, repeats, f.special == ofGPU, f.Name)
	require.Equal(t, leaf.IsMap(), f.keyed, f.Name)
	require.Equal(t, leaf.IsList(), f.many, f.Name)
	if f.Kind == KindNumber && !f.keyed {
		require.Equal(t, leaf.HasPresence(), f.optional, f.Name)
	}
	value := leaf
	if leaf.IsMap() {
		value = leaf.MapValue()
	}
	want := map[protoreflect.Kind]struct {
		kind Kind
		code coding
	}{
		protoreflect.StringKind: {KindText, codeBytes}, protoreflect.BoolKind: {KindFlag, codeUint}, protoreflect.EnumKind: {KindText, codeStatus},
		protoreflect.Uint32Kind: {KindNumber, codeUint32}, protoreflect.Uint64Kind: {KindNumber, codeUint},
		protoreflect.Int64Kind: {KindNumber, codeInt}, protoreflect.DoubleKind: {KindNumber, codeDouble},
	}[value.Kind()]
	if f.Kind == KindLabel {
		want.kind = KindLabel
	}
	require.Equal(t, want.kind, f.Kind, f.Name)
	require.Equal(t, want.code, f.coding, f.Name)
}

func TestClausesOfEveryOperation(t *testing.T) {
	s := rich()
	s.Metadata.Type, s.Metadata.Subtype = "compute", "gpu"
	s.Metadata.Attributes = map[string]string{"redundancy": "3", "tier": "Gold"}
	s.Capabilities = &pb.ServiceCapabilities{Compute: &pb.ComputeCapabilities{
		CpuCores: 16, RuntimeEngines: []string{"wasm", "docker"}, Gpus: []*pb.GPUInfo{
			{Model: "NVIDIA A100", MemoryMb: 80000}, {Model: "NVIDIA A100", MemoryMb: 80000}, {Model: "T4", MemoryMb: 16000},
		},
	}}
	r := seal(t, 1, s)
	for text, want := range map[string]bool{
		"compute.cpu_cores>=16":   true,
		"compute.cpu_cores>=16.5": false,
		"compute.cpu_cores=8,16":  true,
		"compute.cpu_cores!<=8":   true,
		"compute.memory_mb<=1000": false, "compute.memory_mb!<=1000": false, "compute.memory_mb?<=1000": true, "!compute.memory_mb": true,
		"compute.runtime_engines=docker": true, "compute.runtime_engines!=docker": false, "compute.runtime_engines&=WASM,docker": true,
		"compute.runtime_engines&=wasm,native": false, "compute.runtime_engines!&=wasm,native": true,
		"compute.gpus.model=t4": true, "compute.gpus.model!=t4": false, "compute.gpus.model^=nvidia": true, "compute.gpus.model!^=amd": true,
		"compute.gpus.model&=T4,NVIDIA A100": true, "compute.gpus.count=3": true,
		"compute.gpus.model=T4; compute.gpus.memory_mb>=24000":                                 false,
		"compute.gpus.model=NVIDIA A100; compute.gpus.memory_mb>=24000; compute.gpus.count>=2": true,
		"compute.gpus.model^=NVIDIA; compute.gpus.count>=3":                                    false,
		"attributes.redundancy>=3":                                                             true,
		"attributes.redundancy>=4":                                                             false,
		"attributes.tier=Gold":                                                                 true,
		"attributes.tier=gold":                                                                 false,
		"attributes.tier>=1":                                                                   false,
		"attributes.tier!>=1":                                                                  false,
		"attributes.none!=x":                                                                   false,
		"text=nvidia a100":                                                                     true, "text=nvidia": true, "text=idia": false, "text=nvidia t4": false, "text&=T4,gold": true, "text&=t4,goldsmith": false,
		"text!=wasm,x": false, "text=tier": true, "text=gpu,none": true,
		"subtype=ssd,GPU":                    true,
		"storage.encryption_supported":       false,
		"storage.encryption_supported=false": false,
		"compute.gpus.memory_mb>=16000<=16000; compute.gpus.count<=1; compute.gpus.compute_capability?=75": true,
	} {
		q := query.Query{Type: "compute", Quality: query.Quality{Health: query.HealthAny}}
		for part := range strings.SplitSeq(text, "; ") {
			c, err := ParseClause(part)
			require.NoError(t, err, part)
			q.Where = append(q.Where, c)
		}
		p := compile(t, q)
		require.Equal(t, want, p.Match(r), text)
		require.Equal(t, want, p.Reject(r) == "", text)
	}
}

func TestRejectNamesTheClause(t *testing.T) {
	s := rich()
	s.Metadata.Type = "compute"
	s.Capabilities = &pb.ServiceCapabilities{Compute: &pb.ComputeCapabilities{CpuCores: 4, Gpus: []*pb.GPUInfo{{Model: "T4"}}}}
	r := seal(t, 1, s)
	for text, want := range map[string]string{
		"compute.cpu_cores>=8":     "where: 4 stated, compute.cpu_cores>=8 asked for",
		"compute.memory_mb>=8":     "where: nothing stated, compute.memory_mb>=8 asked for",
		"compute.gpus.model=H100":  "where: 0 of 1 GPUs fit, asked for compute.gpus.model=h100",
		"compute.gpus.model!^=t,h": "where: T4 stated, compute.gpus.model!^=h,t asked for",
	} {
		c, err := ParseClause(text)
		require.NoError(t, err)
		require.Equal(t, want, compile(t, query.Query{Type: "compute", Where: []query.Clause{c}}).Reject(r))
	}
}

// Clauses agree with a judge that reads the decoded message by the names of the schema.
func TestClausesAgainstTheDecodedMessage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		where := rapid.SliceOfN(clauseGen(), 1, 3).Draw(rt, "where")
		s := serviceGen().Draw(rt, "service")
		s.Id = "s"
		r := seal(t, 1, s)
		all := testsOf(canonicalWhere(where))
		want := naiveWhere(where, s)
		require.Equal(rt, want, all.pass(r), "%v", where)
		require.Equal(rt, want, all.reject(r) == "")
		f := filterOf(&query.Query{Quality: query.Quality{Health: query.HealthAny}, Where: canonicalWhere(where)})
		require.True(rt, !want || f.Pass(r.Facts()), "a column rules out a match")
	})
}

// Ten thousand random queries over random records agree with brute force over decoded messages.
// In a short run they are fewer.
func TestQueriesAgainstBruteForce(t *testing.T) {
	queries, perSet := 1000, 100
	if os.Getenv("TEST_LONG") != "" {
		queries = 10_000
	}
	asked, matched, matches := 0, 0, 0
	for seed := 0; asked < queries; seed++ {
		samples := recordsGen(t, 40).Example(seed)
		for i := range perSet {
			q := queryGen(t).Example(seed*perSet + i)
			if len(samples) > 0 && i%4 > 0 { // about the fields of a record
				kind := samples[i%len(samples)].service.Metadata.Type
				q = query.Query{Type: kind, Price: q.Price, Quality: query.Quality{Health: query.HealthAny}, Sort: query.SortPrice}
				if kind == "relay" && q.PriceUnit == "" {
					q.PriceUnit = "per-hour"
				}
				q.Where = rapid.SliceOfN(clauseGenOf(kind), 1, 1+i%3).Example(seed*perSet + i)
			}
			p, some := compile(t, q), 0
			for _, s := range samples {
				want := naiveMatch(q, s.service)
				require.Equal(t, want, p.Match(s.record), "%v of %v", p.Describe(), s.service)
				if value, ok := naiveValue(q, s.service); ok {
					require.Equal(t, value, p.Value(s.record)+0, "%v of %v", p.Describe(), s.service)
				}
				if want {
					some++
				}
			}
			asked++
			matches += some
			matched += min(some, 1)
		}
	}
	require.Greater(t, matched, queries/5, "most queries find nothing, so they prove little")
	t.Logf("%d queries, %d with matches, %d matches, no difference", asked, matched, matches)
}

// The order of fields, repeated parts and unknown parts of signed bytes mean what they mean to a
// decoder.
func TestClausesReadAnyEncoding(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := serviceGen().Draw(rt, "a"), serviceGen().Draw(rt, "b")
		first, err := proto.Marshal(a)
		require.NoError(rt, err)
		second, err := proto.Marshal(b)
		require.NoError(rt, err)
		raw := slices.Concat(first, second)
		merged := new(pb.ServiceRecord)
		require.NoError(rt, proto.Unmarshal(raw, merged))
		c := clauseGen().Draw(rt, "clause")
		if c.Field == termsName || c.Field == wordsName {
			return // read from the facts, and from all occurrences
		}
		all := testsOf(canonicalWhere([]query.Clause{c}))
		got := all.passGPUs(raw)
		for i := range all.single {
			got = got && all.single[i].pass(nil, raw)
		}
		require.Equal(rt, naiveWhere([]query.Clause{c}, merged), got, "%v", c)
	})
}

func TestClauseTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := clauseGen().Draw(rt, "clause")
		if c.Op == query.OpAny && rapid.Bool().Draw(rt, "odd") && !numeric(&c) {
			c.Values = append(c.Values, `a,"b`, " c ", "d")
		}
		back, err := ParseClause(c.String())
		require.NoError(rt, err, c.String())
		require.Equal(rt, canonicalClause(&c), canonicalClause(&back), c.String())
	})
}

// numeric reports whether the values of a clause are numbers or flags.
func numeric(c *query.Clause) bool {
	f, _, _ := fieldNamed(c.Field)
	return f.Kind == KindNumber || f.Kind == KindFlag
}

func TestParseClauseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a>5":                           "must be >=MIN",
		"a<5":                           "must be >=MIN",
		"a>=x":                          "must be >=MIN",
		"a>=1<=":                        "must be >=MIN",
		"a^b":                           "must be >=MIN",
		`a="b`:                          "must end with a quote",
		`a="b"c,d`:                      "must be followed by a comma",
		strings.Repeat("x", maxWhere+1): "at most",
	} {
		_, err := ParseClause(text)
		require.ErrorIs(t, err, fault.Invalid, text)
		require.Contains(t, fault.Message(err), want, text)
	}
}

func TestCompileRefusesBadClauses(t *testing.T) {
	many := func(n int, v string) []string { return slices.Repeat([]string{v}, n) }
	tests := map[string]struct {
		clause         query.Clause
		field, message string
	}{
		"no field":         {query.Clause{Op: query.OpAny}, "where[0].field", "is required"},
		"other name":       {query.Clause{Field: "gpu.memory_mb", Op: query.OpStated}, "where[0].field", "did you mean compute.gpus.memory_mb?"},
		"full path":        {query.Clause{Field: "capabilities.compute.cpu_cores", Op: query.OpStated}, "where[0].field", "did you mean compute.cpu_cores?"},
		"spelling":         {query.Clause{Field: "exit_country", Op: query.OpStated}, "where[0].field", "did you mean bandwidth.exit_countries?"},
		"nothing alike":    {query.Clause{Field: "zzzzzzzzzzzz", Op: query.OpStated}, "where[0].field", "is not a field of records"},
		"no key":           {query.Clause{Field: "attributes.", Op: query.OpStated}, "where[0].field", "did you mean attributes.KEY?"},
		"long key":         {query.Clause{Field: "attributes." + strings.Repeat("x", 200), Op: query.OpStated}, "where[0].field", "is not a field"},
		"control in a key": {query.Clause{Field: "attributes.\n", Op: query.OpStated}, "where[0].field", "control"},
		"no operation":     {query.Clause{Field: "name"}, "where[0].op", "must be one of any, prefix, stated for name"},
		"range of texts":   {query.Clause{Field: "name", Op: query.OpRange, Min: ptr(1.0)}, "where[0].op", "any, prefix, stated"},
		"prefix of number": {query.Clause{Field: "compute.cpu_cores", Op: query.OpPrefix, Values: []string{"1"}}, "where[0].op", "any, range, stated"},
		"all of one":       {query.Clause{Field: "location.city", Op: query.OpAll, Values: []string{"x"}}, "where[0].op", "any, prefix"},
		"stated flag":      {query.Clause{Field: "cdn.ssl_supported", Op: query.OpStated}, "where[0].op", "must be one of any"},
		"empty range":      {query.Clause{Field: "compute.cpu_cores", Op: query.OpRange}, "where[0].min", "required for a range"},
		"reversed range":   {query.Clause{Field: "compute.cpu_cores", Op: query.OpRange, Min: ptr(2.0), Max: ptr(1.0)}, "where[0].min", "must not exceed max"},
		"values of range":  {query.Clause{Field: "compute.cpu_cores", Op: query.OpRange, Min: ptr(2.0), Values: []string{"1"}}, "where[0].values", "belong to"},
		"min of any":       {query.Clause{Field: "compute.cpu_cores", Op: query.OpAny, Min: ptr(2.0), Values: []string{"1"}}, "where[0].min", "belongs to"},
		"max of stated":    {query.Clause{Field: "compute.cpu_cores", Op: query.OpStated, Max: ptr(2.0)}, "where[0].max", "belongs to"},
		"or of stated":     {query.Clause{Field: "compute.cpu_cores", Op: query.OpStated, OrUnstated: true}, "where[0].or_unstated", "no meaning"},
		"no values":        {query.Clause{Field: "name", Op: query.OpAny}, "where[0].values", "1 to 64"},
		"many values":      {query.Clause{Field: "name", Op: query.OpAny, Values: many(65, "x")}, "where[0].values", "1 to 64"},
		"long value":       {query.Clause{Field: "name", Op: query.OpAny, Values: many(1, strings.Repeat("x", 257))}, "where[0].values[0]", "256 bytes"},
		"empty value":      {query.Clause{Field: "name", Op: query.OpAny, Values: []string{"a", ""}}, "where[0].values[1]", "must not be empty"},
		"no number":        {query.Clause{Field: "compute.cpu_cores", Op: query.OpAny, Values: []string{"0x10"}}, "where[0].values[0]", "decimal number"},
		"infinite":         {query.Clause{Field: "compute.cpu_cores", Op: query.OpAny, Values: []string{"1e999"}}, "where[0].values[0]", "decimal number"},
		"no flag":          {query.Clause{Field: "cdn.ssl_supported", Op: query.OpAny, Values: []string{"yes"}}, "where[0].values[0]", "true or false"},
		"many bytes":       {query.Clause{Field: "name", Op: query.OpAny, Values: many(40, strings.Repeat("x", 250))}, "where", "bytes of fields and values"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(query.Query{Type: "compute", Where: []query.Clause{test.clause}}, Defaults{})
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, test.field, fault.FieldOf(err))
			require.Contains(t, fault.Message(err), test.message)
		})
	}
	_, err := Compile(query.Query{Type: "compute", Where: make([]query.Clause, MaxClauses+1)}, Defaults{})
	require.Equal(t, "where", fault.FieldOf(err))
	_, err = FromProto(&pb.Query{Type: "a", Where: []*pb.Clause{{Field: "name"}}})
	require.Equal(t, "where[0].op", fault.FieldOf(err))
	_, err = FromProto(&pb.Query{Type: "a", Where: make([]*pb.Clause, MaxClauses+1)})
	require.Equal(t, "where", fault.FieldOf(err))
}

// respellWhere rewrites clauses in an equivalent form.
func respellWhere(rt *rapid.T, list []query.Clause) []query.Clause {
	if len(list) == 0 {
		return nil
	}
	list = append(rapid.Permutation(list).Draw(rt, "clauses"), list[0])
	for i := range list {
		list[i] = cloneClause(&list[i])
		f, _, _ := fieldNamed(list[i].Field)
		if values := list[i].Values; !f.exact {
			list[i].Values = shuffle(rt, values)
		} else if len(values) > 0 {
			list[i].Values = append(values, values[0])
		}
	}
	return list
}

func TestVolumePrices(t *testing.T) {
	s := offered()
	s.Pricing = &pb.PricingInfo{
		Currency: "USDC", PriceUnit: "per-gb-month", BasePrice: ptr(0.06), MinimumCommitment: ptr(2.0),
		TierPricing: map[string]float64{"0-100": 0.05, "100-1000": 0.04, "1000+": 0.03, "vip": 0.001},
	}
	r := seal(t, 1, s)
	for volume, want := range map[float64]float64{10: 0.2, 50: 0.05, 100: 0.04, 999: 0.04, 1000: 0.03, 1e9: 0.03} {
		p := compile(t, query.Query{Type: "storage", Sort: query.SortPrice, Price: query.Price{Volume: &volume}})
		require.InDelta(t, want, p.Value(r), 1e-12, volume)
	}
	p := compile(t, query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(0.035), Volume: ptr(2000.0)}})
	require.True(t, p.Match(r))
	require.False(t, compile(t, query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(0.035)}}).Match(r))
	require.Contains(t, strings.Join(p.Describe(), "\n"), "for a purchase of 2000 units")
	_, err := Compile(query.Query{Type: "storage", Price: query.Price{Volume: ptr(1.0)}}, Defaults{})
	require.Equal(t, "volume", fault.FieldOf(err))
	_, err = Compile(query.Query{Type: "storage", Sort: query.SortPrice, Price: query.Price{Volume: ptr(0.0)}}, Defaults{})
	require.Equal(t, "volume", fault.FieldOf(err))
}

func TestVolumeAgainstNaiveRate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := offered()
		s.Pricing = &pb.PricingInfo{
			Currency: "USDC", PriceUnit: "per-gb-month", BasePrice: maybe(priceGen()).Draw(rt, "base"),
			MinimumCommitment: maybe(priceGen()).Draw(rt, "commitment"),
			TierPricing: rapid.MapOfN(rapid.SampledFrom([]string{"a", "0-5", "0-10", "10-100", "0-100", "100+", "50"}),
				rapid.SampledFrom([]float64{1, 2, 3, 4, 5, 6, 7}), 0, 6).Draw(rt, "tiers"),
		}
		r := seal(t, 1, s)
		volume := rapid.SampledFrom([]float64{0.5, 5, 10, 50, 70, 100, 1000}).Draw(rt, "volume")
		value := compile(t, query.Query{Type: "storage", Sort: query.SortPrice, Price: query.Price{Volume: &volume}}).Value(r)
		require.Equal(rt, naiveRate(s.Pricing, &volume), value)
	})
}

func TestSplit(t *testing.T) {
	list, err := Split(query.Query{Types: []string{"storage", "cdn", "cdn"}})
	require.NoError(t, err)
	require.Equal(t, []query.Query{{Type: "cdn"}, {Type: "storage"}}, list)
	list, err = Split(query.Query{Types: []string{"cdn"}})
	require.NoError(t, err)
	require.Equal(t, []query.Query{{Type: "cdn"}}, list)
	for field, q := range map[string]query.Query{
		"types":          {Type: "cdn", Types: []string{"storage"}},
		"type":           {},
		"price_unit":     {Types: []string{"storage", "cdn"}, Sort: query.SortPrice},
		"sort":           {Type: "cdn", Sort: query.SortScore, Price: query.Price{GroupPrices: true}},
		"max_price":      {Type: "cdn", Price: query.Price{GroupPrices: true, MaxPrice: ptr(1.0)}},
		"currency":       {Type: "cdn", Price: query.Price{GroupPrices: true, Currency: "EUR"}},
		"where[0].field": {Type: "cdn", Where: []query.Clause{{Field: "nothing.at.all.x"}}},
	} {
		require.Equal(t, field, fault.FieldOf(Check(q, Defaults{})), field)
	}
	require.Equal(t, "types", fault.FieldOf(Check(query.Query{Types: strings.Split("a,b,c,d,e,f,g,h,i", ",")}, Defaults{})))
	require.NoError(t, Check(query.Query{Types: []string{"cdn", "storage"}, Price: query.Price{GroupPrices: true, Volume: ptr(2.0)}}, Defaults{}))
}

func TestMatchOfClausesDoesNotAllocate(t *testing.T) {
	r := seal(t, 1, offered())
	p := compile(t, query.Query{Type: "storage", Where: []query.Clause{
		{Field: "storage.total_space", Op: query.OpRange, Min: ptr(1.0)}, {Field: "attributes.tier", Op: query.OpAny, Values: []string{"premium"}},
		{Field: "endpoints", Op: query.OpPrefix, Values: []string{"ftp:"}, Not: true, OrUnstated: true},
	}})
	require.True(t, p.Match(r), p.Reject(r))
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Match(r) }))
}

func BenchmarkMatchWhere(b *testing.B) {
	r := seal(b, 1, offered())
	p := compile(b, query.Query{Type: "storage", Where: []query.Clause{{Field: "storage.total_space", Op: query.OpRange, Min: ptr(1.0)}}})
	b.ReportAllocs()
	for b.Loop() {
		p.Match(r)
	}
}

// Who lacks words that a plan asks for is no match, and few seem to have words that they lack.
func TestWordsOfRecords(t *testing.T) {
	passed, lacking := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		s := serviceGen().Draw(rt, "service")
		s.Id, s.Metadata.Description = "s", strings.Join(rapid.SliceOfN(wordGen(), 0, 5).Draw(rt, "description"), " ")
		r := seal(t, 1, s)
		c := query.Clause{Field: wordsName, Op: rapid.SampledFrom([]query.Op{query.OpAny, query.OpAll}).Draw(rt, "op")}
		for range rapid.IntRange(1, 3).Draw(rt, "values") {
			c.Values = append(c.Values, strings.Join(rapid.SliceOfN(wordGen(), 1, 2).Draw(rt, "words"), " "))
		}
		p := compile(t, query.Query{Type: s.Metadata.Type, Quality: query.Quality{Health: query.HealthAny}, Where: []query.Clause{c}})
		var w Words
		w.Add(r)
		require.True(rt, p.MayHave(&w) || !p.Match(r), "%v", c)
		if p.Match(r) {
			return
		}
		if lacking++; p.MayHave(&w) {
			passed++
		}
	})
	require.Less(t, 4*passed, lacking+4, "%d of %d, though words may stand apart", passed, lacking)
}
