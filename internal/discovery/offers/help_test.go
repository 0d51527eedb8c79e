package offers

import (
	"bytes"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// epoch is the start time of the tests.
func epoch() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func key(t require.TestingT, seed byte) crypto.PrivKey {
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	k, err := crypto.UnmarshalEd25519PrivateKey(private)
	require.NoError(t, err)
	return k
}

func config(t require.TestingT, fs vfs.FS) Config {
	return Config{Network: "test", Dir: "/home/registry", FS: fs, Key: key(t, 1)}
}

func open(t testing.TB, c Config, now time.Time) *Registry {
	t.Helper()
	r, err := Open(c, now)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func offer(id string) records.Offer {
	return records.Offer{ID: id, Metadata: records.Metadata{Type: "relay", Name: "Relay " + id}}
}

// at sets the place of an offer.
func at(o records.Offer, latitude, longitude float64) records.Offer {
	o.Location = &records.Location{Latitude: &latitude, Longitude: &longitude}
	return o
}

// register expects success for all offers.
func register(t require.TestingT, r *Registry, now time.Time, offers ...records.Offer) []*records.Record {
	accepted, errs := r.Register(offers, now)
	require.Len(t, accepted, len(offers))
	require.Len(t, errs, len(offers))
	for i := range offers {
		require.NoError(t, errs[i])
	}
	return accepted
}

func created(r *records.Record) time.Time { return r.Service().GetCreatedAt().AsTime() }

func self(t require.TestingT, c Config) peer.ID {
	id, err := peer.IDFromPrivateKey(c.Key)
	require.NoError(t, err)
	return id
}

func ids(list []*records.Record) []string {
	names := make([]string, 0, len(list))
	for _, r := range list {
		names = append(names, r.Name().ID)
	}
	return names
}

// done reports complete announcements.
func done(r *Registry, now time.Time, list ...*records.Record) {
	for _, v := range list {
		r.Announced(v.Name(), v.Sequence(), records.Stored{On: 10, Of: 10}, now)
	}
}

// failed reports incomplete announcements.
func failed(r *Registry, now time.Time, list ...*records.Record) {
	for _, v := range list {
		r.Announced(v.Name(), v.Sequence(), records.Stored{On: 3, Of: 10}, now)
	}
}

// Offer returns the original offer of a service, with its exact place, which Get's record may lack. The caller
// owns it.
func (r *Registry) Offer(id string) (records.Offer, bool) {
	r.mu.RLock()
	s := r.services[id]
	r.mu.RUnlock()
	if !s.live() {
		return records.Offer{}, false
	}
	o, err := s.decodeOffer()
	return o, err == nil // encoded here, or decoded by Open
}
