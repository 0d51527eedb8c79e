// Package discoverytest is for tests above package discovery: a service in memory with a controllable network,
// and the contract suite for all forms of the service.
package discoverytest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/pkg/records"
)

// MaxServices bounds the services of the peer under test.
const MaxServices = 20

// Harness is a discovery service in memory with its fakes.
type Harness struct {
	*engine.Service
	Network *Network
	Peers   *Peers
	Node    *Node
}

// New starts a service that ends with the test.
func New(t testing.TB) *Harness {
	t.Helper()
	now := time.Now
	own, err := offers.Open(offers.Config{
		Network: "test",
		Dir:     "/registry", FS: vfs.NewMem(), Key: newKey(t), MaxServices: MaxServices,
	}, now())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	known := index.New(index.Config{})
	h := &Harness{Network: newNetwork(known, now), Peers: newPeers(), Node: &Node{}}
	h.Service, err = engine.NewService(engine.Parts{
		Registry: own, Index: known, Keepers: h.Network, Updates: updates{}, Peers: h.Peers, Now: now, Random: random,
	}, engine.Settings{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Service.Close()) })
	return h
}

// Foreign signs an offer as another provider and stores it in the network.
func (h *Harness) Foreign(t testing.TB, o records.Offer) *records.Record {
	t.Helper()
	issued := h.Now()
	r, err := records.Sign("test", newKey(t), o, records.Stamp{Sequence: 1, Issued: issued, Expires: issued.Add(time.Hour)})
	require.NoError(t, err)
	h.Network.keep(r)
	return r
}

// Offer returns a healthy compute service in Berlin for 1 USDC per hour, with edits.
func Offer(id string, edits ...func(*records.Offer)) records.Offer {
	lat, lon, price := 52.52, 13.405, 1.0
	o := records.Offer{
		ID:           id,
		Metadata:     records.Metadata{Type: "compute", Subtype: "gpu", Name: "Service " + id},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 16000}},
		Location:     &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE"},
		Pricing:      &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
		Health:       &records.Health{Status: "HEALTHY"},
	}
	for _, edit := range edits {
		edit(&o)
	}
	return o
}

// Priced is an edit of Offer.
func Priced(price float64) func(*records.Offer) {
	return func(o *records.Offer) { o.Pricing.BasePrice = &price }
}

// At is an edit of Offer: degrees.
func At(latitude, longitude float64) func(*records.Offer) {
	return func(o *records.Offer) { o.Location.Latitude, o.Location.Longitude = &latitude, &longitude }
}

// updates is a live path without messages.
type updates struct{}

func (updates) Publish(context.Context, *records.Record) error { return nil }

func newKey(t testing.TB) crypto.PrivKey {
	t.Helper()
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	return key
}

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // cannot fail: rand.Read ends the process instead
	return binary.LittleEndian.Uint64(b[:])
}
