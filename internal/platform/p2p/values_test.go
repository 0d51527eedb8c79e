package p2p

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func valuesAt(t *testing.T, path string, log *bytes.Buffer) *Values {
	t.Helper()
	v, err := OpenValues(path, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	return v
}

// TestValuesReturn: values return after a restart. A damaged file costs the values, a file of a later version is refused.
func TestValuesReturn(t *testing.T) {
	path, ctx, log := filepath.Join(t.TempDir(), "values"), t.Context(), new(bytes.Buffer)
	v := valuesAt(t, path, log)
	require.NoError(t, v.Put(ctx, ds.NewKey("/dht/a"), []byte("1")))
	require.NoError(t, v.Put(ctx, ds.NewKey("/p2p/b"), []byte{0, 255}))
	require.NoError(t, v.Put(ctx, ds.NewKey("/dht/c"), []byte("3")))
	require.NoError(t, v.Delete(ctx, ds.NewKey("/dht/c")))
	require.NoError(t, v.Close())

	v = valuesAt(t, path, log)
	b, err := v.Get(ctx, ds.NewKey("/p2p/b"))
	require.NoError(t, err)
	require.Equal(t, []byte{0, 255}, b)
	_, err = v.Get(ctx, ds.NewKey("/dht/c"))
	require.ErrorIs(t, err, ds.ErrNotFound)
	found, err := v.Query(ctx, query.Query{Prefix: "/dht"})
	require.NoError(t, err)
	all, err := found.Rest()
	require.NoError(t, err)
	require.Equal(t, []query.Entry{{Key: "/dht/a", Value: []byte("1"), Size: 1}}, all)
	require.Empty(t, log.String())

	file, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, file[:len(file)-1], 0o600))
	v = valuesAt(t, path, log)
	has, err := v.Has(ctx, ds.NewKey("/dht/a"))
	require.NoError(t, err)
	require.False(t, has)
	require.Contains(t, log.String(), "unreadable")

	require.NoError(t, os.WriteFile(path, []byte("values of the DHT, format 2\n?"), 0o600))
	_, err = OpenValues(path, slog.New(slog.DiscardHandler))
	require.ErrorIs(t, err, fault.Unsupported)
}

// TestValuesWithoutDisk: a disk that fails costs one warning. Its return ends that.
func TestValuesWithoutDisk(t *testing.T) {
	dir, ctx, log := filepath.Join(t.TempDir(), "later"), t.Context(), new(bytes.Buffer)
	v := valuesAt(t, filepath.Join(dir, "values"), log)
	for range 3 {
		require.NoError(t, v.Put(ctx, ds.NewKey("/a"), []byte("1")))
		require.NoError(t, v.Sync(ctx, ds.NewKey("/")))
	}
	size, err := v.GetSize(ctx, ds.NewKey("/a"))
	require.NoError(t, err)
	require.Equal(t, 1, size)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log)
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, v.Sync(ctx, ds.NewKey("/")))
	require.Contains(t, log.String(), "saved again")
}

// TestValuesAreBounded: a value without room is refused, and a deletion makes room.
func TestValuesAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values")
	v := valuesAt(t, path, &bytes.Buffer{})
	big := make([]byte, maxValuesBytes-len("/a"))
	require.NoError(t, v.Put(t.Context(), ds.NewKey("a"), big))
	require.NoError(t, v.Put(t.Context(), ds.NewKey("a"), big), "a replacement needs no more room")
	err := v.Put(t.Context(), ds.NewKey("b"), nil)
	require.Equal(t, fault.TooLarge, fault.KindOf(err), err)
	require.NoError(t, v.Close())

	v = valuesAt(t, path, &bytes.Buffer{})
	require.Error(t, v.Put(t.Context(), ds.NewKey("b"), nil), "the bound holds after a restart")
	require.NoError(t, v.Delete(t.Context(), ds.NewKey("a")))
	require.NoError(t, v.Put(t.Context(), ds.NewKey("b"), big))
}
