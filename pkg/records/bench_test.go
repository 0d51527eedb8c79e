package records_test

import (
	"encoding/json"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/blackhole/blackhole/pkg/records"
)

// typical returns an offer of about 700 bytes when signed.
func typical(tb testing.TB) *records.Record {
	o := storage()
	o.Metadata.Attributes["operator"] = "Example Storage Cooperative, San Francisco"
	o.Metadata.Endpoints = append(o.Metadata.Endpoints, "https://storage-2.example.com/api/v1")
	return sign(tb, key(tb, 1), o, stamp())
}

func BenchmarkOpen(b *testing.B) {
	envelope := typical(b).Envelope()
	b.ReportMetric(float64(len(envelope)), "bytes/record")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := records.Open("test", envelope, t0()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenForged(b *testing.B) {
	envelope := append([]byte(nil), typical(b).Envelope()...)
	envelope[len(envelope)-1] ^= 1
	b.ReportAllocs()
	for b.Loop() {
		if _, err := records.Open("test", envelope, t0()); err == nil {
			b.Fatal("opened")
		}
	}
}

func BenchmarkVerifierHit(b *testing.B) {
	envelope := typical(b).Envelope()
	v, err := records.NewVerifier("test", 16)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Open(envelope, t0()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSeal(b *testing.B) {
	s := typical(b).Service()
	k := key(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := records.Seal("test", k, s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkService(b *testing.B) {
	r := typical(b)
	b.ReportAllocs()
	for b.Loop() {
		r.Service()
	}
}

func BenchmarkCells(b *testing.B) {
	r := typical(b)
	b.ReportAllocs()
	for b.Loop() {
		r.Cells()
	}
}

// BenchmarkHeld measures the memory of a record, with envelope and facts.
func BenchmarkHeld(b *testing.B) {
	const count = 2000
	o, k := storage(), key(b, 1)
	var envelopes [][]byte
	for i := range count {
		o.ID = "ssd-" + strconv.Itoa(i)
		o.Metadata.Attributes = map[string]string{"datacenter": "us-west-1", "tier": "premium", "operator": "Example Storage Cooperative, San Francisco"}
		o.Metadata.Endpoints = []string{"https://storage.example.com/api/v1", "https://storage-2.example.com/api/v1"}
		envelopes = append(envelopes, sign(b, k, o, stamp()).Envelope())
	}
	for b.Loop() {
		held := make([]*records.Record, 0, count)
		before := heap()
		for _, envelope := range envelopes {
			r, err := records.Open("test", envelope, t0().Add(time.Hour))
			if err != nil {
				b.Fatal(err)
			}
			held = append(held, r)
		}
		b.ReportMetric(float64(heap()-before)/count, "B/record")
		b.ReportMetric(float64(len(envelopes[0])), "B/envelope")
		runtime.KeepAlive(held)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkAppendJSON(b *testing.B) {
	r := typical(b)
	buf := make([]byte, 0, 4<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf = r.AppendJSON(buf[:0])
	}
	b.ReportMetric(float64(len(buf)), "B/text")
	b.ReportMetric(float64(len(r.Envelope())), "B/envelope")
}

func BenchmarkMarshalView(b *testing.B) {
	r := typical(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(r.View()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseOffer(b *testing.B) {
	text, err := json.Marshal(storage())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := records.ParseOffer(text); err != nil {
			b.Fatal(err)
		}
	}
}
