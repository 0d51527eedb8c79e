package loopback

import (
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Answering starts a host that is connected with peers until the test ends. It answers pings and takes part in nothing, as the peer of a provider
// whom they must find alive.
func Answering(t testing.TB, key crypto.PrivKey, peers []peer.AddrInfo) {
	t.Helper()
	h, err := libp2p.New(libp2p.Identity(key), libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	for _, p := range peers {
		if err := h.Connect(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}
