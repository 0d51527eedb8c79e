package records_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestNextSequence(t *testing.T) {
	ms := uint64(t0().UnixMilli())
	for _, tt := range []struct {
		previous, want uint64
		now            time.Time
	}{
		{0, ms, t0()},
		{ms - 1, ms, t0()},
		{ms, ms + 1, t0()},
		{ms + 500, ms + 501, t0()}, // the clock went back
		{0, 1, time.Time{}},
		{math.MaxUint64, math.MaxUint64, t0()},
	} {
		require.Equal(t, tt.want, records.NextSequence(tt.previous, tt.now))
	}
}

func TestSignFixesCreated(t *testing.T) {
	for _, created := range []time.Time{{}, t0().Add(time.Hour)} {
		st := stamp()
		st.Created = created
		require.Equal(t, t0(), sign(t, key(t, 1), storage(), st).Service().CreatedAt.AsTime())
	}
}

func TestTombstone(t *testing.T) {
	k := key(t, 1)
	last := sign(t, k, storage(), stamp())
	st := records.Stamp{Sequence: last.Sequence() + 1, Issued: t0().Add(time.Hour), Expires: t0().Add(2 * time.Hour)}

	gone, err := records.Tombstone(k, last, st)
	require.NoError(t, err)
	require.True(t, gone.Withdrawn())
	require.Equal(t, last.Name(), gone.Name())
	require.Equal(t, last.Key(), gone.Key())
	require.Equal(t, last.Cells(), gone.Cells())
	require.Equal(t, last.Expires(), gone.Expires(), "outlives what it ends")
	require.Equal(t, t0(), gone.Service().CreatedAt.AsTime())
	require.Positive(t, records.Compare(gone, last))
	require.False(t, gone.Facts().Has(records.KnownStorage))

	st.Expires = t0().Add(30 * time.Hour)
	gone, err = records.Tombstone(k, last, st)
	require.NoError(t, err)
	require.Equal(t, st.Expires, gone.Expires())

	st.Sequence = last.Sequence()
	_, err = records.Tombstone(k, last, st)
	require.Equal(t, "sequence", fault.FieldOf(err))
	st.Sequence++
	_, err = records.Tombstone(key(t, 2), last, st)
	require.Equal(t, "provider_id", fault.FieldOf(err))
	st.Issued = t0().Add(-30 * time.Hour) // last is no longer valid then
	_, err = records.Tombstone(k, last, st)
	require.Equal(t, "expires_at", fault.FieldOf(err))
}

func TestTombstoneOfARecordWithoutPlace(t *testing.T) {
	o := storage()
	o.Location = &records.Location{Country: "NL"}
	last := sign(t, key(t, 1), o, stamp())
	gone, err := records.Tombstone(key(t, 1), last, records.Stamp{Sequence: last.Sequence() + 1, Issued: t0(), Expires: t0().Add(time.Hour)})
	require.NoError(t, err)
	require.Equal(t, last.Key(), gone.Key())
	require.Empty(t, gone.Facts().Country)
}

func TestCoarsen(t *testing.T) {
	o := storage()
	exact := geo.Point{Lat: *o.Location.Latitude, Lon: *o.Location.Longitude}
	require.Equal(t, o, o.Coarsen(0))
	for n := 1; n <= 12; n++ {
		c := o.Coarsen(n)
		got := geo.Point{Lat: *c.Location.Latitude, Lon: *c.Location.Longitude}
		require.Equal(t, geo.CellOf(exact, n).Center(), got)
		require.Equal(t, c, c.Coarsen(n), "twice is once")
		c.Location.Latitude, c.Location.Longitude = o.Location.Latitude, o.Location.Longitude
		require.Equal(t, o, c, "nothing else changes")
	}
	require.Equal(t, storage(), o, "the argument is left alone")

	o.Location.Latitude = p(91.0)
	require.Equal(t, o, o.Coarsen(4))
	o.Location = nil
	require.Equal(t, o, o.Coarsen(4))
}

func TestFacts(t *testing.T) {
	f := sign(t, key(t, 1), storage(), stamp()).Facts()
	place, ok := f.Place()
	require.True(t, ok)
	require.Equal(t, geo.Point{Lat: 37.7749, Lon: -122.4194}, place)
	require.Equal(t, records.KnownPlace|records.KnownStorage|records.KnownPrice|records.KnownUptime|
		records.KnownErrorRate|records.KnownResponseTime|records.KnownEndpoint, f.Known)
	require.Equal(t, uint64(4_500_000_000_000), f.StorageBytes)
	require.Equal(t, 0.05, f.Price)
	require.Equal(t, "USDC", f.Currency)
	require.Equal(t, "per-gb-month", f.PriceUnit)
	require.Equal(t, 99.99, f.Uptime)
	require.Equal(t, uint32(1), f.ErrorRate)
	require.Equal(t, uint64(50), f.ResponseMS)
	require.Equal(t, "HEALTHY", f.Status.String())
	require.Equal(t, "US", f.Country)
	require.Equal(t, "California", f.Region)
	require.Equal(t, []records.Attribute{{Key: "datacenter", Value: "us-west-1"}, {Key: "tier", Value: "premium"}}, f.Attributes)
	require.True(t, f.Has(records.KnownPrice|records.KnownUptime))
	require.False(t, f.Has(records.KnownPrice|records.KnownCPU))

	for name, tt := range map[string]struct {
		kind  string
		c     records.Capabilities
		known records.Known
		want  records.Facts
	}{
		"compute": {"compute", records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 64000, GPUs: make([]records.GPU, 2)}},
			records.KnownCPU | records.KnownMemory | records.KnownGPU, records.Facts{CPUCores: 8, MemoryMB: 64000, GPUs: 2}},
		"cdn": {"cdn", records.Capabilities{CDN: &records.CDN{BandwidthMbps: 900}}, records.KnownBandwidth, records.Facts{Bandwidth: 900}},
		"bandwidth": {"bandwidth", records.Capabilities{Bandwidth: &records.Bandwidth{UploadMbps: 40, DownloadMbps: 100}},
			records.KnownBandwidth, records.Facts{Bandwidth: 40}},
		"bandwidth, other way": {"bandwidth", records.Capabilities{Bandwidth: &records.Bandwidth{UploadMbps: 100, DownloadMbps: 40}},
			records.KnownBandwidth, records.Facts{Bandwidth: 40}},
		"other": {"other", records.Capabilities{}, 0, records.Facts{}},
	} {
		t.Run(name, func(t *testing.T) {
			o := records.Offer{ID: "x", Metadata: records.Metadata{Type: tt.kind}, Capabilities: &tt.c}
			tt.want.Known = tt.known
			require.Equal(t, &tt.want, sign(t, key(t, 1), o, stamp()).Facts())
		})
	}
}

func TestFreeIsKnownAndZeroIsAPlace(t *testing.T) {
	o := storage()
	o.Pricing.BasePrice = p(0.0)
	o.Location = &records.Location{Latitude: p(0.0), Longitude: p(0.0)}
	o.Health = &records.Health{}
	f := sign(t, key(t, 1), o, stamp()).Facts()
	require.True(t, f.Has(records.KnownPrice|records.KnownPlace))
	require.False(t, f.Has(records.KnownUptime))
	require.False(t, f.Has(records.KnownErrorRate))
	require.False(t, f.Has(records.KnownResponseTime))
}

// Compare is a total order of the versions of one service. Every peer sees the same winner in
// any order of arrival.
func TestVersionsAreTotallyOrdered(t *testing.T) {
	k := key(t, 1)
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) *records.Record {
			o := records.Offer{ID: "x", Metadata: records.Metadata{Type: "other"}}
			o.Metadata.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			st := stamp()
			st.Sequence = rapid.Uint64Range(1, 3).Draw(t, "sequence")
			r, err := records.Sign("test", k, o, st)
			if err != nil {
				t.Fatal(err)
			}
			return r
		})
		a, b, c := draw.Draw(t, "a"), draw.Draw(t, "b"), draw.Draw(t, "c")
		ab, ba, bc, ac := records.Compare(a, b), records.Compare(b, a), records.Compare(b, c), records.Compare(a, c)
		same := bytes.Equal(a.Envelope(), b.Envelope())
		switch {
		case ab != -ba:
			t.Fatal("not antisymmetric")
		case (ab == 0) != same:
			t.Fatal("equal to another version")
		case ab <= 0 && bc <= 0 && ac > 0:
			t.Fatal("not transitive")
		case a.Sequence() > b.Sequence() && ab <= 0:
			t.Fatal("the higher sequence loses")
		case a.Equivocates(b) != (a.Sequence() == b.Sequence() && !same):
			t.Fatal("equivocation is misjudged")
		}
	})
}

func TestEquivocationIsOfOneService(t *testing.T) {
	a, b := storage(), storage()
	b.Metadata.Name = "another"
	ra, rb := sign(t, key(t, 1), a, stamp()), sign(t, key(t, 1), b, stamp())
	require.True(t, ra.Equivocates(rb))
	require.False(t, ra.Equivocates(ra))
	require.False(t, ra.Equivocates(sign(t, key(t, 2), b, stamp())))
	b.ID = "other"
	require.False(t, ra.Equivocates(sign(t, key(t, 1), b, stamp())))
}

func TestNames(t *testing.T) {
	a := records.Name{Provider: "a", ID: "1"}
	require.Negative(t, a.Compare(records.Name{Provider: "a", ID: "2"}))
	require.Negative(t, a.Compare(records.Name{Provider: "b", ID: "0"}))
	require.Zero(t, a.Compare(a))
	require.Equal(t, provider+"/x", records.Name{Provider: idOf(t, key(t, 1)), ID: "x"}.String())
}
