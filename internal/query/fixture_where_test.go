package query

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// wordGen draws texts that are prefixes of others and differ in case.
func wordGen() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"hot", "HOT", "hotter", "Île", "île-de", "\u212a1", "k1", "DE", "fr", "7", "10"})
}

func wordsGen() *rapid.Generator[[]string] { return rapid.SliceOfN(wordGen(), 0, 3) }

// clauseGen draws valid clauses about all fields.
func clauseGen() *rapid.Generator[query.Clause] { return clauseGenOf("") }

// clauseGenOf draws valid clauses about the fields of a type; "" for all fields.
func clauseGenOf(kind string) *rapid.Generator[query.Clause] {
	fields := Fields()
	if kind != "" {
		fields = slices.DeleteFunc(fields, func(f Field) bool {
			block, _, _ := strings.Cut(f.Name, ".")
			return slices.Contains([]string{"storage", "compute", "cdn", "bandwidth"}, block) && block != kind
		})
	}
	return rapid.Custom(func(t *rapid.T) query.Clause {
		f := rapid.SampledFrom(fields).Draw(t, "field")
		c := query.Clause{Field: f.Name, Op: rapid.SampledFrom(f.Ops()).Draw(t, "op"), Not: rapid.Bool().Draw(t, "not")}
		if base, keyed := strings.CutSuffix(f.Name, keyMark); keyed {
			c.Field = base + rapid.SampledFrom([]string{"a", "b", "1+", "0-10"}).Draw(t, "key")
		}
		numberGen := rapid.SampledFrom([]float64{-1, 0, 0.5, 1, 2, 3, 50, float64(t0().Unix()), 1e9})
		switch c.Op {
		case query.OpStated:
			return c
		case query.OpRange:
			low, high := numberGen.Draw(t, "min"), numberGen.Draw(t, "max")
			c.Min, c.Max = ptr(min(low, high)), ptr(max(low, high))
			switch rapid.IntRange(0, 3).Draw(t, "ends") {
			case 0:
				c.Min = nil
			case 1:
				c.Max = nil
			}
		default:
			for range rapid.IntRange(1, 3).Draw(t, "values") {
				switch {
				case f.Kind == KindFlag:
					c.Values = append(c.Values, rapid.SampledFrom([]string{"true", "false", "True"}).Draw(t, "flag"))
				case f.Kind == KindNumber:
					c.Values = append(c.Values, number(numberGen.Draw(t, "number")))
				case f.Name == termsName:
					c.Values = append(c.Values, rapid.SampledFrom([]string{"usdc per-hour", "EUR Per-Hour", "USDC"}).Draw(t, "terms"))
				case f.Name == "health.status":
					c.Values = append(c.Values, rapid.SampledFrom([]string{"healthy", "DEGRADED", "un"}).Draw(t, "status"))
				default:
					c.Values = append(c.Values, wordGen().Draw(t, "word"))
				}
			}
		}
		c.OrUnstated = seldom(rapid.Bool()).Draw(t, "or_unstated")
		return c
	})
}

// drawDetails fills the parts of a record that only clauses read.
func drawDetails(t *rapid.T, s *pb.ServiceRecord) {
	small, word, words := rapid.Uint32Range(0, 3), seldom(wordGen()), seldom(wordsGen())
	m := s.Metadata
	m.Name, m.Description, m.Version = word.Draw(t, "name"), word.Draw(t, "description"), word.Draw(t, "version")
	m.Endpoints, m.Protocols = words.Draw(t, "endpoints"), words.Draw(t, "protocols")
	if l := s.Location; l != nil {
		l.City, l.Isp = word.Draw(t, "city"), word.Draw(t, "isp")
	}
	if p := s.Pricing; p != nil {
		p.MinimumCommitment = maybe(priceGen()).Draw(t, "commitment")
		tiers := rapid.MapOfN(rapid.SampledFrom([]string{"a", "0-10", "10-100", "0-100", "100+", "50"}), priceGen(), 0, 3)
		p.TierPricing = tiers.Draw(t, "tiers")
	}
	if h := s.Health; h != nil && rapid.Bool().Draw(t, "checked") {
		h.LastCheck = timestamppb.New(t0().Add(-time.Minute))
	}
	if c := s.Capabilities.GetStorage(); c != nil {
		c.MaxObjectSize, c.StorageClasses = small.Draw(t, "object"), words.Draw(t, "classes")
		c.EncryptionSupported, c.VersioningSupported = rapid.Bool().Draw(t, "encryption"), rapid.Bool().Draw(t, "versioning")
	}
	if c := s.Capabilities.GetCompute(); c != nil {
		c.Gpus = nil
		for range rapid.IntRange(0, 3).Draw(t, "gpus") {
			c.Gpus = append(c.Gpus, &pb.GPUInfo{
				Model: wordGen().Draw(t, "model"), MemoryMb: small.Draw(t, "memory"), ComputeCapability: small.Draw(t, "capability"),
			})
		}
		c.RuntimeEngines, c.MaxJobDuration = words.Draw(t, "engines"), small.Draw(t, "job")
	}
	if c := s.Capabilities.GetCdn(); c != nil {
		c.Regions, c.CacheTypes = words.Draw(t, "regions"), words.Draw(t, "caches")
		c.SslSupported, c.Http2Supported = rapid.Bool().Draw(t, "ssl"), rapid.Bool().Draw(t, "http2")
	}
	if c := s.Capabilities.GetBandwidth(); c != nil {
		c.Protocols, c.ExitCountries = words.Draw(t, "protocols"), seldom(rapid.SliceOfN(rapid.SampledFrom([]string{"DE", "FR"}), 0, 2)).Draw(t, "exits")
	}
}

// naiveWhere implements clauses on the decoded message, by the names of the schema.
func naiveWhere(list []query.Clause, s *pb.ServiceRecord) bool {
	var gpus []query.Clause
	for _, c := range list {
		of := strings.TrimPrefix(c.Field, "compute.gpus.")
		switch {
		case of == c.Field || of == "count":
		case !c.Not && !c.OrUnstated && (c.Op == query.OpAny || c.Op == query.OpPrefix || c.Op == query.OpRange):
			gpus = append(gpus, c)
		}
	}
	met := 0
	for _, g := range s.GetCapabilities().GetCompute().GetGpus() {
		fits := true
		for _, c := range gpus {
			fits = fits && naiveHolds(c, naiveValues(g.ProtoReflect(), strings.TrimPrefix(c.Field, "compute.gpus.")))
		}
		if fits {
			met++
		}
	}
	if len(gpus) > 0 && met == 0 {
		return false
	}
	for _, c := range list {
		var stated []any
		switch {
		case slices.ContainsFunc(gpus, func(g query.Clause) bool { return g.String() == c.String() }):
			continue
		case c.Field == gpuCountName:
			if s.GetCapabilities().GetCompute() != nil {
				stated = []any{float64(met)}
			}
		case c.Field == termsName:
			if p := s.GetPricing(); p.GetCurrency() != "" && p.GetPriceUnit() != "" {
				stated = []any{p.Currency + " " + p.PriceUnit}
			}
		case c.Field == wordsName:
			stated = naiveTexts(s)
		default:
			stated = naiveValues(s.ProtoReflect(), fullName(c.Field))
		}
		if !naivePass(c, stated) {
			return false
		}
	}
	return true
}

func naivePass(c query.Clause, stated []any) bool {
	if c.Op == query.OpRange && strings.HasPrefix(c.Field, "attributes.") {
		var numbers []any
		for _, v := range stated {
			if x, err := strconv.ParseFloat(v.(string), 64); err == nil {
				numbers = append(numbers, x)
			}
		}
		stated = numbers
	}
	switch {
	case c.Op == query.OpStated:
		return len(stated) > 0 != c.Not
	case len(stated) == 0:
		return c.OrUnstated
	default:
		return naiveHolds(c, stated) != c.Not
	}
}

// naiveHolds applies a clause without negation to stated values.
func naiveHolds(c query.Clause, stated []any) bool {
	same := func(v any, want string) bool {
		switch x := v.(type) {
		case bool:
			return strings.EqualFold(strconv.FormatBool(x), want)
		case float64:
			y, err := strconv.ParseFloat(want, 64)
			return err == nil && x == y
		}
		text := v.(string)
		if c.Field == wordsName {
			return naiveWords(text, want)
		}
		if naiveExact(c.Field) {
			return text == want && (c.Op != query.OpPrefix) || c.Op == query.OpPrefix && strings.HasPrefix(text, want)
		}
		if c.Op != query.OpPrefix {
			return strings.EqualFold(text, want)
		}
		for n := range len([]rune(text)) + 1 {
			if strings.EqualFold(string([]rune(text)[:n]), want) {
				return true
			}
		}
		return false
	}
	switch c.Op {
	case query.OpRange:
		return slices.ContainsFunc(stated, func(v any) bool {
			x := v.(float64)
			return (c.Min == nil || x >= *c.Min) && (c.Max == nil || x <= *c.Max)
		})
	case query.OpAll:
		return !slices.ContainsFunc(c.Values, func(want string) bool {
			return !slices.ContainsFunc(stated, func(v any) bool { return same(v, want) })
		})
	default:
		return slices.ContainsFunc(c.Values, func(want string) bool {
			return slices.ContainsFunc(stated, func(v any) bool { return same(v, want) })
		})
	}
}

// naiveTexts returns what providers write, but endpoints.
func naiveTexts(s *pb.ServiceRecord) (all []any) {
	var add func(m protoreflect.Message)
	add = func(m protoreflect.Message) {
		m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			one := func(v protoreflect.Value) {
				switch d.Kind() {
				case protoreflect.StringKind:
					all = append(all, v.String())
				case protoreflect.MessageKind:
					add(v.Message())
				}
			}
			switch {
			case d.Name() == "endpoints":
			case d.IsMap():
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					all = append(all, k.String(), v.String())
					return true
				})
			case d.IsList():
				for i := range v.List().Len() {
					one(v.List().Get(i))
				}
			default:
				one(v)
			}
			return true
		})
	}
	add((&pb.ServiceRecord{Metadata: s.Metadata, Capabilities: s.Capabilities, Location: s.Location, Id: s.Id}).ProtoReflect())
	return all
}

func naiveWords(text, want string) bool {
	const inside, outside = `[\pL\p{Nd}]`, `[^\pL\p{Nd}]`
	begin, end := "", ""
	if regexp.MustCompile("^" + inside).MatchString(want) {
		begin = "(^|" + outside + ")"
	}
	if regexp.MustCompile(inside + "$").MatchString(want) {
		end = "($|" + outside + ")"
	}
	return regexp.MustCompile("(?i)" + begin + regexp.QuoteMeta(want) + end).MatchString(text)
}

func naiveExact(field string) bool {
	return field == "id" || field == "provider_id" || strings.HasPrefix(field, "attributes.")
}

// fullName adds the part of a field's name that the table leaves out.
func fullName(name string) string {
	top := (&pb.ServiceRecord{}).ProtoReflect().Descriptor().Fields()
	first, _, _ := strings.Cut(name, ".")
	for _, part := range []protoreflect.Name{"metadata", "capabilities"} {
		inner := top.ByName(part).Message().Fields()
		if top.ByName(protoreflect.Name(first)) == nil && inner.ByName(protoreflect.Name(first)) != nil {
			return string(part) + "." + name
		}
	}
	return name
}

// naiveValues returns the stated values under a name relative to a message.
func naiveValues(m protoreflect.Message, name string) []any {
	part, rest, _ := strings.Cut(name, ".")
	d := m.Descriptor().Fields().ByName(protoreflect.Name(part))
	v := m.Get(d)
	switch {
	case d.IsMap():
		if x := v.Map().Get(protoreflect.ValueOfString(rest).MapKey()); x.IsValid() {
			return []any{naiveScalar(d.MapValue(), x)}
		}
		return nil
	case d.IsList():
		var all []any
		for i := range v.List().Len() {
			if x := v.List().Get(i); d.Message() != nil {
				all = append(all, naiveValues(x.Message(), rest)...)
			} else {
				all = append(all, naiveScalar(d, x))
			}
		}
		return all
	case d.Message() != nil && !m.Has(d):
		return nil
	case d.Message() != nil && rest == "":
		return naiveValues(v.Message(), "seconds")
	case d.Message() != nil:
		return naiveValues(v.Message(), rest)
	case d.Kind() == protoreflect.BoolKind || m.Has(d):
		return []any{naiveScalar(d, v)}
	default:
		return nil
	}
}

func naiveScalar(d protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch d.Kind() {
	case protoreflect.EnumKind:
		return string(d.Enum().Values().ByNumber(v.Enum()).Name())
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return float64(v.Uint())
	case protoreflect.Int64Kind:
		return float64(v.Int())
	default:
		return v.Interface()
	}
}

// naiveRate returns the price of one unit in a purchase of a volume.
func naiveRate(p *pb.PricingInfo, volume *float64) float64 {
	rate := math.Inf(1)
	if p.BasePrice != nil {
		rate = *p.BasePrice
	}
	if volume == nil {
		return rate
	}
	for _, t := range []struct {
		name     string
		from, to float64
	}{{"0-100", 0, 100}, {"0-10", 0, 10}, {"0-5", 0, 5}, {"10-100", 10, 100}, {"50", 50, math.Inf(1)}, {"100+", 100, math.Inf(1)}} { // the later applies
		if price, ok := p.TierPricing[t.name]; ok && *volume >= t.from && *volume <= t.to {
			rate = price
		}
	}
	if p.MinimumCommitment != nil && !math.IsInf(rate, 1) {
		rate = max(rate, *p.MinimumCommitment / *volume)
	}
	return rate
}
