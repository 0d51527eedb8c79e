package p2p

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	ds "github.com/ipfs/go-datastore"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func somePeers(t testing.TB, n, addrs int) []peer.AddrInfo {
	t.Helper()
	var out []peer.AddrInfo
	for range n {
		id, err := peer.IDFromPrivateKey(testKey(t))
		require.NoError(t, err)
		p := peer.AddrInfo{ID: id}
		for i := range addrs {
			p.Addrs = append(p.Addrs, addr(t, fmt.Sprintf("/ip4/10.0.%d.1/tcp/4801", i)))
		}
		out = append(out, p)
	}
	return out
}

func TestKnownPeersAreKeptWithinBounds(t *testing.T) {
	store, ctx := memory(), t.Context()
	k := openKnown(ctx, store, "dev", discardLog())
	require.Empty(t, k.peers())
	first, second := somePeers(t, maxKnown, 20), somePeers(t, 3, 1)
	require.NoError(t, k.save(ctx, first))
	require.NoError(t, k.save(ctx, second))
	require.NoError(t, k.save(ctx, nil), "a peer without contact keeps its list")
	require.NoError(t, k.save(ctx, []peer.AddrInfo{{ID: first[0].ID}}), "without addresses")

	again := openKnown(ctx, store, "dev", discardLog()).peers()
	require.Equal(t, k.peers(), again)
	require.Len(t, again, maxKnown)
	require.ElementsMatch(t, second, again[:3], "the newest first")
	for _, p := range again {
		require.LessOrEqual(t, len(p.Addrs), maxKnownAddrs)
	}
}

// writes counts the writes to disk.
type writes struct {
	ds.Batching
	n    int
	fail error
}

func (w *writes) Put(ctx context.Context, k ds.Key, v []byte) error {
	if w.n++; w.fail != nil {
		return w.fail
	}
	return w.Batching.Put(ctx, k, v)
}

func TestKnownPeersAreWrittenOnChangeOnly(t *testing.T) {
	w, ctx := &writes{Batching: memory()}, t.Context()
	k := openKnown(ctx, w, "dev", discardLog())
	list := somePeers(t, 3, 2)
	require.NoError(t, k.save(ctx, list))
	list[0], list[2] = list[2], list[0] // the order of the table is random
	list[1].Addrs = []multiaddr.Multiaddr{list[1].Addrs[1], list[1].Addrs[0]}
	require.NoError(t, k.save(ctx, list))
	require.Equal(t, 1, w.n)

	w.fail = errors.New("disk full")
	require.Error(t, k.save(ctx, somePeers(t, 1, 1)))
	require.Len(t, k.peers(), 3)
	w.fail = nil
	require.NoError(t, k.save(ctx, somePeers(t, 1, 1)))
	require.Len(t, k.peers(), 4)
}

func TestDamagedKnownPeersAreForgotten(t *testing.T) {
	store := memory()
	for _, data := range []string{"", "{", `[{"ID":"x","Addrs":["y"]}]`, "null"} {
		require.NoError(t, store.Put(t.Context(), ds.NewKey("/p2p/known/dev"), []byte(data)))
		k := openKnown(t.Context(), store, "dev", discardLog())
		require.Empty(t, k.peers())
		require.NoError(t, k.save(t.Context(), somePeers(t, 1, 1)))
	}
	_, err := decodeKnown(make([]byte, maxKnownBytes+1))
	require.Error(t, err)
}

func FuzzDecodeKnown(f *testing.F) {
	f.Add([]byte(`[{"ID":"12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN","Addrs":["/ip4/10.0.0.1/tcp/1"]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := decodeKnown(data)
		require.LessOrEqual(t, len(list), maxKnown)
		if err == nil {
			require.Equal(t, list, mergeKnown(list, list))
		}
	})
}
