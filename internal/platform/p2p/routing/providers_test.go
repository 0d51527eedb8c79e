package routing

import (
	"testing"

	"github.com/ipfs/go-cid"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multihash"
	"github.com/stretchr/testify/require"
)

// TestProvidersAreAView: any client of the DHT gets what the view finds now. What it says of itself leaves nothing.
func TestProvidersAreAView(t *testing.T) {
	sum := func(text string) multihash.Multihash {
		h, err := multihash.Sum([]byte(text), multihash.SHA2_256, -1)
		require.NoError(t, err)
		return h
	}
	key, other := cid.NewCidV1(cid.Raw, sum("cell")), cid.NewCidV1(cid.Raw, sum("other"))
	var seller peer.ID
	server := newHost(t, dht.ModeServer, nil, func(c *Config) {
		c.Providers = func(multihash []byte) []peer.ID {
			if string(multihash) == string(key.Hash()) && seller != "" {
				return []peer.ID{seller, c.Host.ID()}
			}
			return nil
		}
	})
	self := server.finder.host.ID()
	client := newHost(t, dht.ModeClient, []*Routing{server}, func(c *Config) { c.Providers = func([]byte) []peer.ID { return nil } })
	found := func(c cid.Cid) (ids []peer.ID) {
		infos, err := client.dht.FindProviders(t.Context(), c)
		require.NoError(t, err)
		for _, i := range infos {
			ids = append(ids, i.ID)
			if i.ID == self {
				require.NotEmpty(t, i.Addrs)
			}
		}
		return ids
	}
	require.Empty(t, found(key))
	seller = peer.ID("\x00\x01s")
	require.ElementsMatch(t, []peer.ID{seller, self}, found(key))
	require.Empty(t, found(other))
	seller = ""
	require.Empty(t, found(key), "at once")

	known := len(server.finder.host.Peerstore().Peers())
	for range 300 { // more than kad-dht's buffer of writes
		_ = client.dht.Provide(t.Context(), other, true) // the server refuses it, which the client does not hear
	}
	stored, err := server.dht.ProviderStore().GetProviders(t.Context(), other.Hash())
	require.NoError(t, err)
	require.Empty(t, stored)
	require.Len(t, server.finder.host.Peerstore().Peers(), known)
}

// TestProvidersWithoutAView: such a peer gives no answer.
func TestProvidersWithoutAView(t *testing.T) {
	require.Nil(t, newHost(t, dht.ModeServer, nil).dht.ProviderStore())
}
