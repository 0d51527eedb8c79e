package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// makeDir makes a directory and its missing parents, durably, and for this user alone: exact
// places and metadata are nobody else's business.
func makeDir(fs vfs.FS, dir string) error {
	parent := fs.PathDir(dir)
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) || parent == dir {
		return err
	}
	if err := makeDir(fs, parent); err != nil {
		return err
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	d, err := fs.OpenDir(parent)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// options keep the database small: nothing is read from it that is not in memory.
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
			BackgroundError: func(err error) { log.Warn("the database failed in the background", "err", err) },
			DataCorruption:  func(i pebble.DataCorruptionInfo) { log.Error("the database is corrupt", "info", i.String()) },
		},
	}
}

// logger passes what the database tells on, as debugging: its own word on compactions is nothing
// that an operator of this program must know.
type logger struct{ log *slog.Logger }

func (l logger) Infof(format string, args ...any) {
	l.log.Debug("the database tells", "event", lazy{format, args})
}

func (l logger) Errorf(format string, args ...any) {
	l.log.Debug("the database tells", "failure", lazy{format, args})
}

// Fatalf must not return. In a commit, the panic becomes the commit's error; in the background,
// where the database has lost its files' state, it ends the process.
func (l logger) Fatalf(format string, args ...any) {
	f := fatal(fmt.Sprintf(format, args...))
	l.log.Error("the database died", "fatal", string(f))
	panic(f)
}

// fatal is what the database died of.
type fatal string

func (f fatal) Error() string { return string(f) }

// lazy formats only what is logged.
type lazy struct {
	format string
	args   []any
}

func (l lazy) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf(l.format, l.args...)) }
