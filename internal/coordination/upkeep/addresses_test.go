package upkeep

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

// TestAddressesOf: public addresses come first, a relay is no way to a member, and what a peer tells has a bound.
func TestAddressesOf(t *testing.T) {
	h, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableMetrics())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	_, public, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	other, err := peer.IDFromPublicKey(public)
	require.NoError(t, err)
	require.Empty(t, AddressesOf(h, other))
	relayed := "/ip4/80.20.1.1/tcp/1/p2p/12D3KooWExFKd9gKCrBdxSPxDhjxtbUjAFWEnrXCsuu4W9kfH82c/p2p-circuit"
	for _, text := range []string{relayed, "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/80.20.1.2/tcp/1"} {
		h.Peerstore().AddAddr(other, multiaddr.StringCast(text), peerstore.PermanentAddrTTL)
	}
	require.Equal(t, "[/ip4/80.20.1.2/tcp/1 /ip4/10.0.0.1/tcp/1 /ip4/127.0.0.1/tcp/1]", fmt.Sprint(AddressesOf(h, other)))
	for port := range 2 * maxAddresses {
		h.Peerstore().AddAddr(other, multiaddr.StringCast(fmt.Sprint("/ip4/10.0.0.2/tcp/", port+1)), peerstore.PermanentAddrTTL)
	}
	require.Len(t, AddressesOf(h, other), maxAddresses)
	require.Equal(t, "/ip4/80.20.1.2/tcp/1", AddressesOf(h, other)[0].String())
}
