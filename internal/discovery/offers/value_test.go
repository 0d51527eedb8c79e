package offers

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// FuzzDecodeService decodes arbitrary values without a panic. An accepted value survives encoding and decoding.
func FuzzDecodeService(f *testing.F) {
	i := signer{network: "test", key: key(f, 1), ttl: DefaultTTL}
	self, err := peer.IDFromPrivateKey(i.key)
	require.NoError(f, err)
	name := records.Name{Provider: self, ID: "a"}

	s, err := i.nextVersion(nil, 0, at(offer("a"), 52.52, 13.40), nil, epoch())
	require.NoError(f, err)
	moved, err := i.nextVersion(s, 0, at(offer("a"), 48.85, 2.35), nil, epoch().Add(time.Hour))
	require.NoError(f, err)
	withdrawn, err := i.withdraw(moved, 0, epoch().Add(2*time.Hour))
	require.NoError(f, err)
	for _, s := range []*service{s, moved, withdrawn} {
		data, err := s.encode()
		require.NoError(f, err)
		back, err := decodeService("test", name, data)
		require.NoError(f, err)
		require.Equal(f, s.offer, back.offer)
		require.Equal(f, s.created, back.created)
		require.Equal(f, s.until, back.until)
		require.Len(f, back.versions(), len(s.versions()))
		f.Add(data)
	}
	f.Add([]byte(`{"format":1,"current":{"envelope":""}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeService("test", name, data)
		if err != nil {
			return
		}
		once, err := s.encode()
		require.NoError(t, err)
		again, err := decodeService("test", name, once)
		require.NoError(t, err)
		twice, err := again.encode()
		require.NoError(t, err)
		require.Equal(t, once, twice)
	})
}

// An offer of another network, or with a member of a later version, is not signed again.
func TestDowngradeIsRefused(t *testing.T) {
	i := signer{network: "test", key: key(t, 1), ttl: DefaultTTL}
	self, err := peer.IDFromPrivateKey(i.key)
	require.NoError(t, err)
	s, err := i.nextVersion(nil, 0, offer("a"), nil, epoch())
	require.NoError(t, err)
	data, err := s.encode()
	require.NoError(t, err)
	_, err = decodeService("another", records.Name{Provider: self, ID: "a"}, data)
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "of the network test, and this peer belongs to another")
	s.offer = append([]byte(`{"auction":true,`), s.offer[1:]...)
	data, err = s.encode()
	require.NoError(t, err)
	_, err = decodeService("test", records.Name{Provider: self, ID: "a"}, data)
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "auction")
}
