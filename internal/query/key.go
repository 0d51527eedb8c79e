package query

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
)

// keyVersion is the first byte of every key. It changes with the encoding or the meaning of a
// field.
const keyVersion = 7

// smallList is the number of list elements that AppendKey sorts without allocating.
const smallList = 16

// AppendKey appends the canonical key of a query to dst. Two queries have equal keys exactly if
// they ask for the same answer. Lists count as sets, case matters only where it matters for
// matches, and the defaults of Sort, Health, Currency and PriceUnit apply. Length prefixes make
// the encoding of the fields unambiguous. The key contains Explain, which changes the answer.
//
// The query may be invalid. A missing limit or radius stays missing in the key, because only
// Defaults know the value: Defaults.Fill before AppendKey yields Plan.Key.
//
// AppendKey does not allocate for sufficient room in dst, lists of at most 16 elements and ASCII
// text.
func AppendKey(dst []byte, q *query.Query) []byte {
	currency, unit := pricingOf(q)
	kind, kinds := kindsOf(q)
	dst = append(dst, keyVersion)
	dst = appendText(dst, kind)
	dst = appendSet(dst, kinds)
	dst = appendText(dst, q.Subtype)
	dst = appendNear(dst, q.Near)
	dst = appendSet(dst, q.Countries)
	dst = appendSet(dst, q.Regions)
	dst = appendCapacity(dst, &q.Capacity)
	dst = appendOptional(dst, q.MaxPrice)
	dst = appendFolded(dst, currency)
	dst = appendFolded(dst, unit)
	dst = appendQuality(dst, &q.Quality)
	dst = appendText(dst, string(healthOf(q)))
	dst = appendText(dst, canonicalID(q.ProviderID))
	dst = appendAttributes(dst, q.Attributes)
	dst = appendWhere(dst, q.Where)
	dst = appendText(dst, q.Domain)
	dst = appendOptional(dst, q.Volume)
	dst = appendBool(dst, q.GroupPrices)
	dst = binary.AppendVarint(dst, int64(q.Cells))
	dst = appendText(dst, string(orderOf(q)))
	dst = appendText(dst, string(claimsOf(q)))
	dst = binary.AppendVarint(dst, int64(q.Limit))
	dst = binary.AppendUvarint(dst, permutationOf(q))
	dst = appendText(dst, q.After)
	dst = appendBool(dst, q.Explain)
	return appendBool(dst, q.ExactTotal)
}

func appendNear(dst []byte, n *query.Near) []byte {
	if n == nil {
		return append(dst, 0)
	}
	lat, lon := n.Latitude, n.Longitude
	if p, err := geo.NewPoint(lat, lon); err == nil {
		lat, lon = p.Lat, p.Lon // 180 and -180 are one meridian
	}
	dst = append(dst, 1)
	dst = appendFloat(dst, lat)
	dst = appendFloat(dst, lon)
	return appendOptional(dst, n.RadiusKM)
}

func appendCapacity(dst []byte, c *query.Capacity) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.MinCPUCores))
	dst = binary.AppendUvarint(dst, c.MinMemoryMB)
	dst = appendBool(dst, c.RequireGPU)
	dst = binary.AppendUvarint(dst, c.MinStorageGB)
	return binary.AppendUvarint(dst, c.MinBandwidthMbps)
}

func appendQuality(dst []byte, q *query.Quality) []byte {
	dst = appendOptional(dst, q.MinUptime)
	if q.MaxErrorRate == nil {
		return append(dst, 0)
	}
	return binary.AppendUvarint(append(dst, 1), uint64(*q.MaxErrorRate))
}

// appendSet appends a list of strings without regard to order, repetition and case.
func appendSet(dst []byte, list []string) []byte {
	var small [smallList]string
	set := append(small[:0], list...)
	slices.SortFunc(set, compareFold)
	set = slices.CompactFunc(set, func(a, b string) bool { return compareFold(a, b) == 0 })
	dst = binary.AppendUvarint(dst, uint64(len(set)))
	for _, s := range set {
		dst = appendFolded(dst, s)
	}
	return dst
}

func appendAttributes(dst []byte, attributes map[string]string) []byte {
	var small [smallList]string
	keys := small[:0]
	for key := range attributes {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, strings.Compare)
	dst = binary.AppendUvarint(dst, uint64(len(keys)))
	for _, key := range keys {
		dst = appendText(dst, key)
		dst = appendText(dst, attributes[key])
	}
	return dst
}

// canonicalID returns the base58 form of a peer id, or an invalid id unchanged.
func canonicalID(s string) string {
	if s == "" || s[0] == '1' || strings.HasPrefix(s, "Qm") {
		return s // already base58, the only form with this prefix
	}
	id, err := peer.Decode(s)
	if err != nil {
		return s
	}
	return id.String()
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendFolded(dst []byte, s string) []byte {
	if !isASCII(s) {
		return appendText(dst, Fold(s))
	}
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	for i := range len(s) {
		dst = append(dst, lower(s[i]))
	}
	return dst
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendOptional(dst []byte, f *float64) []byte {
	if f == nil {
		return append(dst, 0)
	}
	return appendFloat(append(dst, 1), *f)
}

func appendFloat(dst []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(f+0)) // adding 0 turns -0 into 0
}
