package query

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/geo"
)

// keyVersion is the first byte of every key. It changes with the encoding or with the
// meaning of a field.
const keyVersion = 2

// smallList is how many elements of a list are ordered without allocating.
const smallList = 16

// AppendKey appends the canonical key of a question to dst: equal for two queries exactly
// when they ask for the same. Lists are sets, case counts only where it does when
// matching, and the defaults of Sort, Health, Currency and PriceUnit are applied. Every
// field is written, lengths first, so that no two questions share a key. Explain is part
// of the key, as answers differ by it; Exclude, which the asker finds out itself, is not.
//
// The query need not be valid. A limit or a radius left out is written as left out: what
// it means is known to the Defaults alone. Whoever looks for what Plan.Key names applies
// Defaults.Fill first.
//
// It does not allocate when dst has room, lists have at most 16 elements and all text
// compared without case is ASCII.
func AppendKey(dst []byte, q *Query) []byte {
	currency, unit := q.pricing()
	dst = append(dst, keyVersion)
	dst = appendText(dst, q.Type)
	dst = appendText(dst, q.Subtype)
	dst = appendNear(dst, q.Near)
	dst = appendSet(dst, q.Countries)
	dst = appendSet(dst, q.Regions)
	dst = appendCapacity(dst, &q.Capacity)
	dst = appendOptional(dst, q.MaxPrice)
	dst = appendFolded(dst, currency)
	dst = appendFolded(dst, unit)
	dst = appendQuality(dst, &q.Quality)
	dst = appendText(dst, string(q.health()))
	dst = appendText(dst, canonicalID(q.ProviderID))
	dst = appendAttributes(dst, q.Attributes)
	dst = appendText(dst, string(q.order()))
	dst = binary.AppendVarint(dst, int64(q.Limit))
	dst = binary.AppendUvarint(dst, q.permutation())
	dst = appendBool(dst, q.Explain)
	return appendBool(dst, q.ExactTotal)
}

func appendNear(dst []byte, n *Near) []byte {
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

func appendCapacity(dst []byte, c *Capacity) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.MinCPUCores))
	dst = binary.AppendUvarint(dst, c.MinMemoryMB)
	dst = appendBool(dst, c.RequireGPU)
	dst = binary.AppendUvarint(dst, c.MinStorageGB)
	return binary.AppendUvarint(dst, c.MinBandwidthMbps)
}

func appendQuality(dst []byte, q *Quality) []byte {
	dst = appendOptional(dst, q.MinUptime)
	if q.MaxErrorRate == nil {
		return append(dst, 0)
	}
	return binary.AppendUvarint(append(dst, 1), uint64(*q.MaxErrorRate))
}

// appendSet appends a list of strings whose order, repetition and case mean nothing.
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

// canonicalID gives the base58 form of a peer id, or s where it is none.
func canonicalID(s string) string {
	if s == "" || s[0] == '1' || strings.HasPrefix(s, "Qm") {
		return s // base58 already, the only form that begins so
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
