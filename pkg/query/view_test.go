package query

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

func t0() time.Time { return time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC) }

// seal signs an offer of the n-th provider.
func seal(tb require.TestingT, n byte) *records.Record {
	key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize)))
	require.NoError(tb, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(tb, err)
	r, err := records.Seal("test", key, &pb.ServiceRecord{
		Id: "offer", ProviderId: id.String(),
		Metadata: &pb.ServiceMetadata{
			Type: "storage", Subtype: "ssd", Name: "Disks <fast> & \"cheap\"",
			Attributes: map[string]string{"tier": "premium", "datacenter": "us-west-1", "rack": "7"},
		},
		Capabilities: &pb.ServiceCapabilities{Storage: &pb.StorageCapabilities{TotalSpace: 5e12, AvailableSpace: 4e12}},
		Location:     &pb.GeoLocation{Latitude: new(37.8), Longitude: new(-122.4), Country: "US", Region: "California"},
		Pricing:      &pb.PricingInfo{Currency: "USDC", BasePrice: new(0.05), PriceUnit: "per-gb-month"},
		CreatedAt:    timestamppb.New(t0()), UpdatedAt: timestamppb.New(t0()), ExpiresAt: timestamppb.New(t0().Add(time.Hour)),
		Sequence: uint64(t0().UnixMilli()),
	})
	require.NoError(tb, err)
	return r
}

func finiteGen() *rapid.Generator[float64] {
	return rapid.OneOf(
		rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1e-7, 1e-6, 1e21, 1e-10, 99.5, math.MaxFloat64, math.SmallestNonzeroFloat64}),
		rapid.Float64(),
	)
}

func durationGen() *rapid.Generator[time.Duration] {
	return rapid.OneOf(
		rapid.SampledFrom([]time.Duration{0, 1, time.Millisecond, math.MaxInt64}),
		rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) }),
	)
}

func linesGen() *rapid.Generator[[]string] {
	return rapid.SliceOfN(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a<b> & \"c\"\\", "\u2028\xff"})), 0, 3)
}

func measuredGen() *rapid.Generator[records.Measured] {
	return rapid.Custom(func(t *rapid.T) records.Measured {
		m := records.Measured{
			State:     rapid.SampledFrom([]records.Reachability{"", records.Reachable, records.Busy, records.Unreachable}).Draw(t, "state"),
			RoundTrip: durationGen().Draw(t, "round_trip"), Peers: rapid.IntRange(0, 3).Draw(t, "peers"),
		}
		if rapid.Bool().Draw(t, "checked") {
			m.Since = t0()
			m.CheckedAt = t0().Add(durationGen().Draw(t, "checked_at")).In(time.FixedZone("", 60*rapid.IntRange(-720, 720).Draw(t, "zone")))
		}
		return m
	})
}

// answerGen draws answers about sealed records.
func answerGen(tb require.TestingT) *rapid.Generator[*Answer] {
	return rapid.Custom(func(t *rapid.T) *Answer {
		a := &Answer{
			Total: rapid.Int().Draw(t, "total"), AtLeast: rapid.Bool().Draw(t, "at least"), Source: rapid.SampledFrom([]Source{SourceCache, SourceLocal, SourceNetwork, ""}).Draw(t, "source"),
			ExcludedTotal: rapid.IntRange(0, 300).Draw(t, "excluded"),
			Complete:      rapid.Bool().Draw(t, "complete"), Reason: rapid.String().Draw(t, "reason"),
			Age: durationGen().Draw(t, "age"), Took: durationGen().Draw(t, "took"), Notes: linesGen().Draw(t, "notes"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "records") {
			a.Results = append(a.Results, Result{
				Record: seal(tb, rapid.ByteRange(1, 3).Draw(t, "provider")), DistanceKM: rapid.Ptr(finiteGen(), true).Draw(t, "distance_km"), Score: finiteGen().Draw(t, "score"),
				Measured: rapid.Ptr(measuredGen(), true).Draw(t, "measured"), Explain: linesGen().Draw(t, "explain"),
			})
		}
		if rapid.Bool().Draw(t, "cells") {
			a.Cells = &Cells{Length: 2, Counts: []CellCount{}, Unplaced: rapid.IntRange(0, 3).Draw(t, "unplaced")}
			for n := range rapid.IntRange(0, 3).Draw(t, "cells counted") {
				a.Cells.Counts = append(a.Cells.Counts, CellCount{Cell: "u3", Count: n, Least: rapid.Ptr(rapid.Float64Range(0, 9), true).Draw(t, "least")})
			}
		}
		if rapid.Bool().Draw(t, "beyond") {
			a.Beyond = &LeftOut{Records: rapid.IntRange(0, 3).Draw(t, "records beyond"), AtLeast: rapid.Bool().Draw(t, "more"), Features: linesGen().Draw(t, "features")}
		}
		for range rapid.IntRange(0, 3).Draw(t, "excluded shown") {
			e := Excluded{Provider: rapid.String().Draw(t, "provider"), Reason: rapid.String().Draw(t, "reason")}
			if rapid.Bool().Draw(t, "since known") {
				e.Since = t0()
			}
			a.Excluded = append(a.Excluded, e)
		}
		return a
	})
}

func TestAppendJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := answerGen(t).Draw(t, "answer")
		want, err := json.Marshal(a.View())
		require.NoError(t, err)
		require.Equal(t, "before "+string(want), string(a.AppendJSON([]byte("before "))))
	})
}

// A number without a JSON form must not spoil the rest of the answer.
func TestAppendJSONOfNoNumber(t *testing.T) {
	a := ten(t)
	a.Results[0].Score, a.Results[0].DistanceKM = math.NaN(), new(math.Inf(1))
	var back AnswerView
	require.NoError(t, json.Unmarshal(a.AppendJSON(nil), &back))
	require.Len(t, back.Results, 10)
	require.Nil(t, back.Results[0].DistanceKM)
}

func TestResultsAllocateNothing(t *testing.T) {
	a, buf := ten(t), make([]byte, 0, 32<<10)
	allocs := func() float64 { return testing.AllocsPerRun(5, func() { a.AppendJSON(buf) }) }
	all := allocs()
	a.Results = nil
	require.Equal(t, allocs(), all)
}

// ten returns an answer of ten records, typical for a busy peer.
func ten(tb testing.TB) *Answer {
	a := &Answer{Total: 4711, Source: SourceLocal, Complete: true, Took: 812_345}
	for n := range byte(10) {
		a.Results = append(a.Results, Result{
			Record: seal(tb, n+1), DistanceKM: new(float64(n) * math.Pi), Score: 90 - float64(n)/7,
			Measured: &records.Measured{State: records.Reachable, RoundTrip: 23_456_789, CheckedAt: t0()},
		})
	}
	return a
}

func BenchmarkAppendJSON(b *testing.B) {
	a, buf := ten(b), []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		buf = a.AppendJSON(buf[:0])
	}
	b.ReportMetric(float64(len(buf)), "B/text")
}

func BenchmarkMarshalView(b *testing.B) {
	a := ten(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(a.View()); err != nil {
			b.Fatal(err)
		}
	}
}
