package records_test

import (
	"bytes"
	"crypto/ed25519"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// t0 is the current time in these tests.
func t0() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// key returns the nth provider's key.
func key(tb testing.TB, n byte) crypto.PrivKey {
	tb.Helper()
	raw := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
	k, err := crypto.UnmarshalEd25519PrivateKey(raw)
	require.NoError(tb, err)
	return k
}

func idOf(tb testing.TB, k crypto.PrivKey) peer.ID {
	tb.Helper()
	id, err := peer.IDFromPrivateKey(k)
	require.NoError(tb, err)
	return id
}

func p[T any](v T) *T { return &v }

// storage returns the offer in the specification's example ("U06 Service Discovery Protocol",
// section 10).
func storage() records.Offer {
	return records.Offer{
		ID: "ssd-1",
		Metadata: records.Metadata{
			Type:        "storage",
			Subtype:     "ssd",
			Name:        "Fast SSD Storage",
			Description: "High-performance SSD storage with encryption",
			Version:     "1.0.0",
			Endpoints:   []string{"https://storage.example.com/api/v1"},
			Protocols:   []string{"s3", "ipfs"},
			Attributes:  map[string]string{"datacenter": "us-west-1", "tier": "premium"},
		},
		Capabilities: &records.Capabilities{Storage: &records.Storage{
			TotalSpace:          5_000_000_000_000,
			AvailableSpace:      4_500_000_000_000,
			MaxObjectSize:       5000,
			StorageClasses:      []string{"hot", "cold"},
			EncryptionSupported: true,
			VersioningSupported: true,
		}},
		Location: &records.Location{
			Latitude: p(37.7749), Longitude: p(-122.4194),
			Country: "US", Region: "California", City: "San Francisco",
		},
		Pricing: &records.Pricing{
			Currency: "USDC", BasePrice: p(0.05), PriceUnit: "per-gb-month",
			TierPricing: map[string]float64{"0-100": 0.05, "100-1000": 0.04, "1000+": 0.03},
		},
		Health: &records.Health{
			Status: "HEALTHY", UptimePercent: p(99.99), ResponseTimeMs: p(uint64(50)), ErrorRate: p(uint32(1)),
		},
	}
}

// stamp describes a first version, issued now, for a day.
func stamp() records.Stamp {
	return records.Stamp{
		Sequence: records.NextSequence(0, t0()), Created: t0(), Issued: t0(), Expires: t0().Add(24 * time.Hour),
	}
}

func sign(tb testing.TB, k crypto.PrivKey, o records.Offer, st records.Stamp) *records.Record {
	tb.Helper()
	r, err := records.Sign("test", k, o, st)
	require.NoError(tb, err)
	return r
}

func TestSignAndOpen(t *testing.T) {
	k := key(t, 1)
	signed := sign(t, k, storage(), stamp())
	r, err := records.Open("test", signed.Envelope(), t0().Add(time.Hour))
	require.NoError(t, err)

	require.Equal(t, signed, r)
	require.Equal(t, records.Name{Provider: idOf(t, k), ID: "ssd-1"}, r.Name())
	require.Equal(t, "storage", r.Type())
	require.Equal(t, "ssd", r.Subtype())
	require.Equal(t, uint64(t0().UnixMilli()), r.Sequence())
	require.Equal(t, t0(), r.Issued())
	require.Equal(t, t0().Add(24*time.Hour), r.Expires())
	require.False(t, r.Withdrawn())
	require.Equal(t, "/blackhole/services/storage/ssd/9q8yyk/"+idOf(t, k).String()+"/ssd-1", r.Key().String())
	require.Equal(t, storage(), records.OfferOf(r.Service()))
	require.Len(t, r.Service().Signature, 64)
	require.Len(t, r.Cells(), 15)
	for _, c := range r.Cells() {
		require.True(t, r.In(c), c.String())
	}
}

// update rewrites the golden files.
var _ = flag.Bool("update", false, "rewrite the files of testdata")

// TestMemory: the estimate is near the memory that records take.
func TestMemory(t *testing.T) {
	const n = 300
	o := storage()
	o.Metadata.Attributes = map[string]string{}
	for i := range 8 {
		o.Metadata.Attributes[fmt.Sprint("key", i)] = strings.Repeat("v", 60)
	}
	var envelopes [][]byte
	for i := range n {
		o.ID = fmt.Sprint("service-", i)
		envelopes = append(envelopes, sign(t, key(t, 1), o, stamp()).Envelope())
	}
	v, err := records.NewVerifier("test", 1)
	require.NoError(t, err)
	all, before, estimate := make([]*records.Record, n), heap(), 0
	for i, e := range envelopes {
		all[i], err = v.Open(e, stamp().Issued)
		require.NoError(t, err)
		estimate += all[i].Memory()
	}
	require.InEpsilon(t, int64(heap()-before), estimate, 0.15)
	runtime.KeepAlive(all)
	runtime.KeepAlive(envelopes)
}
