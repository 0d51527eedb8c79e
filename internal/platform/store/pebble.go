package store

import (
	"errors"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// MakeDir creates a directory and its missing parents, durably, readable for this user only: values may contain
// exact places.
func MakeDir(fs vfs.FS, dir string) error {
	parent := fs.PathDir(dir)
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) || parent == dir {
		return err
	}
	if err := MakeDir(fs, parent); err != nil {
		return err
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return SyncDir(fs, parent)
}

// SyncDir makes the names in a directory durable.
func SyncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// options keep the database small: all values are in memory, so caches are useless.
func options(c Config, latch *Latch) *pebble.Options {
	return &pebble.Options{
		FS:                          latch.FS(c.FS),
		ReadOnly:                    c.ReadOnly,
		FormatMajorVersion:          pebble.FormatNewest,
		CacheSize:                   1 << 20,
		MemTableSize:                c.MemTable,
		MemTableStopWritesThreshold: 2,
		MaxOpenFiles:                32,
		MaxManifestFileSize:         1 << 20,
		Logger:                      latch,
		EventListener: &pebble.EventListener{
			BackgroundError: latch.Background,
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				latch.Fail(corrupted(i))
			},
		},
	}
}
