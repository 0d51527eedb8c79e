package join

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func somePeers(t testing.TB, n, addrs int) []peer.AddrInfo {
	t.Helper()
	var out []peer.AddrInfo
	for range n {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		id, err := peer.IDFromPrivateKey(key)
		require.NoError(t, err)
		p := peer.AddrInfo{ID: id}
		for i := range addrs {
			p.Addrs = append(p.Addrs, multiaddr.StringCast(fmt.Sprintf("/ip4/10.0.%d.1/tcp/4801", i)))
		}
		out = append(out, p)
	}
	return out
}

func knownIn(t *testing.T, store ds.Datastore) *Known {
	t.Helper()
	k, err := OpenKnown(t.Context(), store, "dev", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return k
}

// The list is stable on disk. A list of a later version is refused and stays.
func TestKnownPeersAreGolden(t *testing.T) {
	store, ctx := dssync.MutexWrap(ds.NewMapDatastore()), t.Context()
	id, err := peer.Decode("12D3KooWAv8hUGd6VQF1XqRTPJ7DjzxBiJgArki9TgowzA7MzJmi")
	require.NoError(t, err)
	require.NoError(t, knownIn(t, store).save(ctx, []peer.AddrInfo{{ID: id, Addrs: []multiaddr.Multiaddr{multiaddr.StringCast("/ip4/10.0.0.1/tcp/4801")}}}))
	at := ds.NewKey("/p2p/known/dev")
	data, err := store.Get(ctx, at)
	require.NoError(t, err)
	require.Equal(t, "list of known peers, format 1\n"+
		`[{"ID":"12D3KooWAv8hUGd6VQF1XqRTPJ7DjzxBiJgArki9TgowzA7MzJmi","Addrs":["/ip4/10.0.0.1/tcp/4801"]}]`, string(data))

	later := []byte("list of known peers, format 2\n?")
	require.NoError(t, store.Put(ctx, at, later))
	_, err = OpenKnown(ctx, store, "dev", slog.New(slog.DiscardHandler))
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "the list of known peers in key /p2p/known/dev of the datastore has format 2, this program reads formats 1 to 1")
	data, err = store.Get(ctx, at)
	require.NoError(t, err)
	require.Equal(t, later, data)
}

func TestKnownPeersAreKeptWithinBounds(t *testing.T) {
	store, ctx := dssync.MutexWrap(ds.NewMapDatastore()), t.Context()
	k := knownIn(t, store)
	require.Empty(t, k.Peers())
	first, second := somePeers(t, maxKnown, 20), somePeers(t, 3, 1)
	require.NoError(t, k.save(ctx, first))
	require.NoError(t, k.save(ctx, second))
	require.NoError(t, k.save(ctx, nil), "a peer without contact keeps its list")
	require.NoError(t, k.save(ctx, []peer.AddrInfo{{ID: first[0].ID}}), "without addresses")

	again := knownIn(t, store).Peers()
	require.Equal(t, k.Peers(), again)
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
	w, ctx := &writes{Batching: dssync.MutexWrap(ds.NewMapDatastore())}, t.Context()
	k := knownIn(t, w)
	list := somePeers(t, 3, 2)
	require.NoError(t, k.save(ctx, list))
	list[0], list[2] = list[2], list[0] // the order of the table is random
	list[1].Addrs = []multiaddr.Multiaddr{list[1].Addrs[1], list[1].Addrs[0]}
	require.NoError(t, k.save(ctx, list))
	require.Equal(t, 1, w.n)

	w.fail = errors.New("disk full")
	require.Error(t, k.save(ctx, somePeers(t, 1, 1)))
	require.Len(t, k.Peers(), 3)
	w.fail = nil
	require.NoError(t, k.save(ctx, somePeers(t, 1, 1)))
	require.Len(t, k.Peers(), 4)
}

func TestDamagedKnownPeersAreForgotten(t *testing.T) {
	store := dssync.MutexWrap(ds.NewMapDatastore())
	for _, data := range []string{"", "{", `[{"ID":"x","Addrs":["y"]}]`, "null", "list of known peers, format 1\n{"} {
		require.NoError(t, store.Put(t.Context(), ds.NewKey("/p2p/known/dev"), []byte(data)))
		k := knownIn(t, store)
		require.Empty(t, k.Peers())
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
