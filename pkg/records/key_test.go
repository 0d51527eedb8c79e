package records_test

import (
	"strings"
	"testing"

	"github.com/ipfs/go-cid"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

const provider = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5" // of key(1)

func TestParseKey(t *testing.T) {
	const space = "/blackhole/services/"
	long := strings.Repeat("a", 65)
	asCID := peer.ToCid(idOf(t, key(t, 1))).String()
	for s, good := range map[string]bool{
		space + "storage/ssd/9q8yyk/" + provider + "/ssd-1":       true,
		space + "storage/_/global/" + provider + "/A._-z":         true,
		space + "storage/ssd/9q8y/" + provider + "/ssd-1":         true,
		space + "storage/ssd/9q8yyk8ytpxr/" + provider + "/ssd-1": true,
		"":    false,
		space: false,
		"/blackhole/service/storage/ssd/9q8yyk/" + provider + "/ssd-1":                       false,
		"blackhole/services/storage/ssd/9q8yyk/" + provider + "/ssd-1":                       false,
		space + "storage/ssd/9q8yyk/" + provider:                                             false,
		space + "storage/ssd/9q8yyk/" + provider + "/ssd-1/":                                 false,
		space + "storage/ssd/9q8yyk/" + provider + "/":                                       false,
		space + "storage/ssd/9q8yyk/" + provider + "/..":                                     false,
		space + "storage/ssd/9q8yyk/" + provider + "/" + long:                                false,
		space + "storage/ssd/9q8yyk/" + provider + "/a b":                                    false,
		space + "storage//9q8yyk/" + provider + "/ssd-1":                                     false,
		space + "/ssd/9q8yyk/" + provider + "/ssd-1":                                         false,
		space + "_/ssd/9q8yyk/" + provider + "/ssd-1":                                        false,
		space + "Storage/ssd/9q8yyk/" + provider + "/ssd-1":                                  false,
		space + "storage/SSD/9q8yyk/" + provider + "/ssd-1":                                  false,
		space + "storage/ssd/9q8/" + provider + "/ssd-1":                                     false,
		space + "storage/ssd/9q8yyk8ytpxrs/" + provider + "/ssd-1":                           false,
		space + "storage/ssd/9Q8YYK/" + provider + "/ssd-1":                                  false,
		space + "storage/ssd/9q8yya/" + provider + "/ssd-1":                                  false,
		space + "storage/ssd/_/" + provider + "/ssd-1":                                       false,
		space + "storage/ssd//" + provider + "/ssd-1":                                        false,
		space + "storage/ssd/9q8yyk/" + provider[1:] + "/ssd-1":                              false,
		space + "storage/ssd/9q8yyk/" + asCID + "/ssd-1":                                     false,
		space + "storage/ssd/9q8yyk/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N/ssd-1":    false,
		space + "storage/ssd/9q8yyk/" + provider + "/ssd-1" + strings.Repeat("/", 256):       false,
		space + "storage/ssd/9q8yyk/" + provider + "/ssd-1?x":                                false,
		space + "storage/ssd/9q8yyk/16Uiu2HAmDWi6GZfqyAG3bTLWpqxCNSiLKeKJvBeHvpqXbWMBTUWi/x": false,
	} {
		t.Run(s, func(t *testing.T) {
			k, err := records.ParseKey(s)
			if good {
				require.NoError(t, err)
				require.Equal(t, s, k.String())
				return
			}
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, "key", fault.FieldOf(err))
		})
	}
}

func TestLongKeysAreNotLookedAt(t *testing.T) {
	_, err := records.ParseKey(strings.Repeat("/", records.MaxKey+1))
	require.ErrorContains(t, err, "must be at most 256 bytes, not 257")
	require.Nil(t, fault.ValueOf(err))
}

func TestParseCellKey(t *testing.T) {
	const space, providers = "/blackhole/services/", "/blackhole/providers/"
	provider := idOf(t, key(t, 1))
	id, asCID := provider.String(), peer.ToCid(provider).String()
	for s, good := range map[string]bool{
		space + "storage/ssd/9q":                        true,
		space + "storage/_/9q8yyk":                      true,
		space + "storage/_/global":                      true,
		space + "storage/_/9":                           true,
		space + "storage/_/9q8yyk8":                     true,
		space + "storage/_/9q8yyk8y":                    true,
		space + "storage/_/9q8yyk8ytp":                  false,
		space + "storage/_/9a":                          false,
		space + "storage/_/":                            false,
		space + "storage//9q":                           false,
		space + "_/_/9q":                                false,
		space + "storage/__/9q":                         false,
		space + "storage/ssd/9q/":                       false,
		space + "storage/ssd":                           false,
		"/blackhole/storage/ssd/9q":                     false,
		"x" + space + "storage/ssd/9q":                  false,
		providers + id:                                  true,
		providers:                                       false,
		providers + "nobody":                            false,
		providers + id + "/":                            false,
		providers + asCID:                               false,
		providers + strings.Repeat("1", records.MaxKey): false,
	} {
		t.Run(s, func(t *testing.T) {
			c, err := records.ParseCellKey(s)
			if good {
				require.NoError(t, err)
				require.Equal(t, s, c.String())
				return
			}
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, "key", fault.FieldOf(err))
		})
	}
}

func TestCellIDIsTheHashOfTheKey(t *testing.T) {
	c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: "u4"}
	hash, err := cid.V1Builder{Codec: cid.Raw, MhType: 0x12}.Sum([]byte("/blackhole/services/compute/_/u4")) // sha2-256
	require.NoError(t, err)
	require.Equal(t, hash, c.CID())
}

func TestKeyMatches(t *testing.T) {
	placed := sign(t, key(t, 1), storage(), stamp())
	o := storage()
	o.Location, o.Metadata.Subtype = nil, ""
	nowhere := sign(t, key(t, 1), o, stamp())

	require.NoError(t, placed.Key().Matches(placed))
	require.NoError(t, nowhere.Key().Matches(nowhere))
	require.Equal(t, geo.Global, nowhere.Key().Cell)
	for name, tt := range map[string]struct {
		r     *records.Record
		do    func(*records.Key)
		match bool
	}{
		"shorter cell":    {placed, func(k *records.Key) { k.Cell = k.Cell[:4] }, true},
		"longer cell":     {placed, func(k *records.Key) { k.Cell = geo.CellOf(placed.Facts().Point, 9) }, true},
		"other cell":      {placed, func(k *records.Key) { k.Cell = "u4pruy" }, false},
		"global":          {placed, func(k *records.Key) { k.Cell = geo.Global }, false},
		"other type":      {placed, func(k *records.Key) { k.Type = "compute" }, false},
		"other subtype":   {placed, func(k *records.Key) { k.Subtype = "" }, false},
		"other id":        {placed, func(k *records.Key) { k.Name.ID = "ssd-2" }, false},
		"other provider":  {placed, func(k *records.Key) { k.Name.Provider = idOf(t, key(t, 2)) }, false},
		"place of none":   {nowhere, func(k *records.Key) { k.Cell = "9q8yyk" }, false},
		"subtype of none": {nowhere, func(k *records.Key) { k.Subtype = "ssd" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := tt.r.Key()
			tt.do(&k)
			err := k.Matches(tt.r)
			if tt.match {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, "key", fault.FieldOf(err))
		})
	}
}

func TestPrecisionOfTheKey(t *testing.T) {
	for precision, length := range map[uint32]int{0: 6, 4: 4, 12: 12} {
		o := storage()
		o.Location.Precision = precision
		r := sign(t, key(t, 1), o, stamp())
		require.Len(t, string(r.Key().Cell), length)
		k, err := records.ParseKey(r.Key().String())
		require.NoError(t, err)
		require.Equal(t, r.Key(), k)
	}
}

func TestLongestKeyFits(t *testing.T) {
	o := storage()
	o.ID, o.Metadata.Subtype = strings.Repeat("i", 64), strings.Repeat("s", 32)
	o.Metadata.Type, o.Capabilities = strings.Repeat("t", 32), nil
	o.Location.Precision = 12
	r := sign(t, key(t, 1), o, stamp())
	require.LessOrEqual(t, len(r.Key().String()), records.MaxKey)
	_, err := records.ParseKey(r.Key().String())
	require.NoError(t, err)
}

func TestCells(t *testing.T) {
	placed := sign(t, key(t, 1), storage(), stamp())
	var names []string
	for _, c := range placed.Cells() {
		names = append(names, strings.TrimPrefix(c.String(), "/blackhole/services/storage/"))
	}
	require.Equal(t, []string{
		"_/global", "_/9", "_/9q", "_/9q8", "_/9q8y", "_/9q8yy", "_/9q8yyk",
		"ssd/global", "ssd/9", "ssd/9q", "ssd/9q8", "ssd/9q8y", "ssd/9q8yy", "ssd/9q8yyk",
		records.ProviderCell(placed.Name().Provider).String(),
	}, names)

	o := storage()
	o.Metadata.Subtype, o.Location = "", nil
	require.Len(t, sign(t, key(t, 1), o, stamp()).Cells(), 2)
}

// In agrees with Cells, its naive version, on any cell.
func TestInAgreesWithCells(t *testing.T) {
	k := key(t, 1)
	rapid.Check(t, func(t *rapid.T) {
		point := rapid.Custom(func(t *rapid.T) *records.Location {
			if rapid.IntRange(0, 3).Draw(t, "placed") == 0 {
				return nil
			}
			return &records.Location{
				Latitude:  p(rapid.Float64Range(-90, 90).Draw(t, "lat")),
				Longitude: p(rapid.Float64Range(-180, 180).Draw(t, "lon")),
			}
		})
		subtype := rapid.SampledFrom([]string{"", "a", "b"})
		draw := func() *records.Record {
			o := records.Offer{ID: "x", Metadata: records.Metadata{Type: "other"}}
			o.Metadata.Subtype, o.Location = subtype.Draw(t, "subtype"), point.Draw(t, "location")
			r, err := records.Sign("test", k, o, stamp())
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		a, b := draw(), draw()
		own := make(map[records.CellKey]bool)
		for _, c := range a.Cells() {
			own[c] = true
		}
		for _, c := range append(a.Cells(), b.Cells()...) {
			if a.In(c) != own[c] {
				t.Fatalf("In(%s) is %v", c, a.In(c))
			}
		}
	})
}
