package query

import (
	"testing"

	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

func BenchmarkAppendKey(b *testing.B) {
	q, buf := typical(), make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendKey(buf[:0], &q)
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, order := range []query.Sort{query.SortScore, query.SortRandom} {
		q := typical()
		q.Sort = order
		b.Run(string(order), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Compile(q, Defaults{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// offered returns a record that matches typical.
func offered() *pb.ServiceRecord {
	s := rich()
	s.Metadata.Type, s.Metadata.Subtype = "storage", "ssd"
	s.Metadata.Attributes = map[string]string{"tier": "premium", "datacenter": "us-west-1", "rack": "7"}
	s.Capabilities = &pb.ServiceCapabilities{Storage: &pb.StorageCapabilities{TotalSpace: 5e12, AvailableSpace: 4e12}}
	s.Location = &pb.GeoLocation{Latitude: ptr(37.8), Longitude: ptr(-122.4), Country: "US", Region: "California"}
	s.Pricing = &pb.PricingInfo{Currency: "USDC", BasePrice: ptr(0.05), PriceUnit: "per-gb-month"}
	return s
}

func BenchmarkMatch(b *testing.B) {
	p, r := compile(b, typical()), seal(b, 1, offered())
	if !p.Match(r) {
		b.Fatal(p.Reject(r))
	}
	b.ReportAllocs()
	for b.Loop() {
		p.Match(r)
	}
}

func BenchmarkPass(b *testing.B) {
	p, r := compile(b, typical()), seal(b, 1, offered())
	b.ReportAllocs()
	for b.Loop() {
		p.Filter().Pass(r.Facts())
	}
}

func BenchmarkValue(b *testing.B) {
	r := seal(b, 1, offered())
	for _, order := range sorts() {
		q := typical()
		q.Sort = order
		p := compile(b, q)
		b.Run(string(order), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Value(r)
			}
		})
	}
}

func BenchmarkScoreExplained(b *testing.B) {
	p, r := compile(b, typical()), seal(b, 1, offered())
	b.ReportAllocs()
	for b.Loop() {
		p.ExplainScore(r, &Evidence{})
	}
}

func BenchmarkParseJSON(b *testing.B) {
	raw := []byte(`{"type":"storage","subtype":"ssd","near":{"latitude":37.7,"longitude":-122.4,"radius_km":50},"min_storage_gb":1000,"max_price":0.06,"sort":"price","limit":10}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseJSON(raw); err != nil {
			b.Fatal(err)
		}
	}
}
