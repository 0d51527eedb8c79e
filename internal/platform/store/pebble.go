package store

import (
	"errors"
	"fmt"
	"log/slog"
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
func options(c Config) *pebble.Options {
	log := c.Logger.With("database", c.Dir)
	return &pebble.Options{
		FS:                          c.FS,
		FormatMajorVersion:          pebble.FormatNewest,
		CacheSize:                   1 << 20,
		MemTableSize:                c.MemTable,
		MemTableStopWritesThreshold: 2,
		MaxOpenFiles:                32,
		MaxManifestFileSize:         1 << 20,
		Logger:                      logger{log},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				log.Warn("the database failed in the background; a write will report the error", "err", err)
			},
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				log.Error("the database is corrupt; restore its folder or start with an empty one", "info", i.String())
			},
		},
	}
}

// logger logs the database's messages at debug level: operators need no news of compactions.
type logger struct{ log *slog.Logger }

func (l logger) Infof(format string, args ...any) {
	l.log.Debug("message of the database", "event", lazy{format, args})
}

func (l logger) Errorf(format string, args ...any) {
	l.log.Debug("error message of the database", "failure", lazy{format, args})
}

// Fatalf must not return. During a commit, the panic becomes the commit's error. In the background, after a
// failure of the database's files, it ends the process.
func (l logger) Fatalf(format string, args ...any) {
	f := fatal(fmt.Sprintf(format, args...))
	l.log.Error("the database failed and cannot continue; restart the peer", "fatal", string(f))
	panic(f)
}

// fatal is the database's last error.
type fatal string

func (f fatal) Error() string { return string(f) }

// lazy formats a message only if it is logged.
type lazy struct {
	format string
	args   []any
}

func (l lazy) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf(l.format, l.args...)) }
