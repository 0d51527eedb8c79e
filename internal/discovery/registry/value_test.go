package registry

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/records"
)

// FuzzDecodeService decodes arbitrary values without a panic. An accepted value survives encoding and decoding.
func FuzzDecodeService(f *testing.F) {
	i := signer{key: key(f, 1), ttl: DefaultTTL}
	self, err := peer.IDFromPrivateKey(i.key)
	require.NoError(f, err)
	name := records.Name{Provider: self, ID: "a"}

	s, err := i.nextVersion(nil, 0, at(offer("a"), 52.52, 13.40), epoch())
	require.NoError(f, err)
	moved, err := i.nextVersion(s, 0, at(offer("a"), 48.85, 2.35), epoch().Add(time.Hour))
	require.NoError(f, err)
	withdrawn, err := i.withdraw(moved, epoch().Add(2*time.Hour))
	require.NoError(f, err)
	for _, s := range []*service{s, moved, withdrawn} {
		data, err := s.encode()
		require.NoError(f, err)
		back, err := decodeService(name, data)
		require.NoError(f, err)
		require.Equal(f, s.offer, back.offer)
		require.Equal(f, s.created, back.created)
		require.Equal(f, s.until, back.until)
		require.Len(f, back.versions(), len(s.versions()))
		f.Add(data)
	}
	f.Add([]byte(`{"format":1,"current":{"envelope":""}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeService(name, data)
		if err != nil {
			return
		}
		once, err := s.encode()
		require.NoError(t, err)
		again, err := decodeService(name, once)
		require.NoError(t, err)
		twice, err := again.encode()
		require.NoError(t, err)
		require.Equal(t, once, twice)
	})
}
