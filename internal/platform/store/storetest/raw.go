package storetest

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// Read returns all keys of the database in dir with their values, except the count of writes.
func Read(t testing.TB, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	values := make(map[string]string)
	raw(t, fs, dir, func(db *pebble.DB) {
		it, err := db.NewIter(nil)
		require.NoError(t, err)
		for it.First(); it.Valid(); it.Next() {
			if string(it.Key()) != "writes" {
				values[string(it.Key())] = string(it.Value())
			}
		}
		require.NoError(t, it.Close())
	})
	return values
}

// Write sets keys of the database in dir. It creates a missing database. It forgets the count of writes with its mark,
// which would show the change.
func Write(t testing.TB, fs vfs.FS, dir string, values map[string]string) {
	t.Helper()
	_ = fs.Remove(fs.PathJoin(dir, "mark"))
	raw(t, fs, dir, func(db *pebble.DB) {
		require.NoError(t, db.Delete([]byte("writes"), pebble.Sync))
		for key, value := range values {
			require.NoError(t, db.Set([]byte(key), []byte(value), pebble.Sync))
		}
	})
}

func raw(t testing.TB, fs vfs.FS, dir string, do func(*pebble.DB)) {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{t}})
	require.NoError(t, err)
	do(db)
	require.NoError(t, db.Close())
}

// quiet logs only fatal messages.
type quiet struct{ testing.TB }

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
