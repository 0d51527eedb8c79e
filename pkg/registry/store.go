package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// The keys of the database.
const (
	metaKey       = "meta"
	servicePrefix = "service/" // and the service's id
)

// storeFormat is the version of the whole layout.
const storeFormat = 1

// meta is the value of metaKey.
type meta struct {
	Format   int    `json:"format"`
	Provider string `json:"provider"`
	Floor    uint64 `json:"floor"` // no new version gets this sequence or a lower one
}

// edit is one change of the database; a nil value deletes.
type edit struct {
	key   string
	value []byte
}

// store is the database: a few small values, of which each commit is on disk when it
// returns. It is not safe for concurrent use.
type store struct {
	db       *pebble.DB
	provider peer.ID

	// broken is why the database no longer takes writes. After a failed write or fsync it
	// is not known what is on disk, and trying again could report success for what is
	// lost; only opening it anew tells.
	broken error
}

// openStore opens the database of a provider in dir, or makes it, and checks that it is
// the provider's.
func openStore(fs vfs.FS, dir string, provider peer.ID, log *slog.Logger) (*store, meta, error) {
	if err := makeDir(fs, dir); err != nil {
		return nil, meta{}, fault.As("", fault.Unavailable, err)
	}
	db, err := pebble.Open(dir, options(fs, log))
	if err != nil {
		return nil, meta{}, fault.As("", fault.Unavailable, fmt.Errorf("the database in %s does not open: %w", dir, err))
	}
	s := &store{db: db, provider: provider}
	m, err := s.identify()
	if err != nil {
		return nil, meta{}, errors.Join(err, s.close())
	}
	return s, m, nil
}

// makeDir makes a directory and its missing parents, durably, and for this user alone:
// exact places are nobody else's business.
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
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// options keep an idle database small: it holds a few hundred values of a few kilobytes.
func options(fs vfs.FS, log *slog.Logger) *pebble.Options {
	logger := pebbleLogger{log}
	return &pebble.Options{
		FS:                          fs,
		FormatMajorVersion:          pebble.FormatNewest,
		CacheSize:                   1 << 20,
		MemTableSize:                256 << 10,
		MemTableStopWritesThreshold: 2,
		MaxOpenFiles:                32,
		MaxManifestFileSize:         1 << 20,
		Logger:                      logger,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { log.Warn("registry database", "err", err) },
			DataCorruption:  func(i pebble.DataCorruptionInfo) { log.Error("registry database is corrupt", "info", i.String()) },
		},
	}
}

// identify reads the meta value, or writes it into an empty database.
func (s *store) identify() (meta, error) {
	data, closer, err := s.db.Get([]byte(metaKey))
	if errors.Is(err, pebble.ErrNotFound) {
		if err := s.scan(func(key string, _ []byte) error { return errors.New("has content but no owner") }); err != nil {
			return meta{}, err
		}
		return meta{}, s.commit([]edit{s.editFloor(0)})
	}
	if err != nil {
		return meta{}, corrupt(metaKey, err)
	}
	var m meta
	switch err := errors.Join(decodeStrict(data, &m), closer.Close()); {
	case err != nil:
		return meta{}, corrupt(metaKey, err)
	case m.Format != storeFormat:
		return meta{}, corrupt(metaKey, fault.New("", fault.Unsupported, "the database has format %d, this program knows %d", m.Format, storeFormat))
	case m.Provider != s.provider.String():
		return meta{}, fault.New("", fault.Conflict, "the database belongs to provider %s, not to %s: use the directory of this identity, or another one", m.Provider, s.provider)
	}
	return m, nil
}

// editFloor is the edit that raises the floor.
func (s *store) editFloor(floor uint64) edit {
	data, err := json.Marshal(meta{Format: storeFormat, Provider: s.provider.String(), Floor: floor})
	if err != nil {
		panic("registry: meta does not encode: " + err.Error()) // impossible: numbers and a string
	}
	return edit{key: metaKey, value: data}
}

// services calls visit for every service, by id. The value is valid during the call.
func (s *store) services(visit func(id string, value []byte) error) error {
	return s.scan(func(key string, value []byte) error {
		if key == metaKey {
			return nil
		}
		id, ok := strings.CutPrefix(key, servicePrefix)
		if !ok {
			return errors.New("not a key of the registry")
		}
		return visit(id, value)
	})
}

// scan visits every key until one is refused, which the error names.
func (s *store) scan(visit func(key string, value []byte) error) (err error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	defer func() { err = errors.Join(err, fault.As("", fault.Internal, it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		value, err := it.ValueAndErr()
		if err == nil {
			err = visit(string(it.Key()), value)
		}
		if err != nil {
			return corrupt(string(it.Key()), err)
		}
	}
	return nil // an error that ended the scan is told by Close
}

// commit writes all edits at once and returns when they are on disk. After an error,
// which is Unavailable, it is open whether they are; all later commits fail.
func (s *store) commit(edits []edit) (err error) {
	if s.broken != nil {
		return s.broken
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case fatal:
			err = p
		default:
			panic(p)
		}
		if err != nil {
			s.broken = fault.As("", fault.Unavailable, fmt.Errorf("the database failed and takes no more writes until it is opened again: %w", err))
			err = s.broken
		}
	}()
	b := s.db.NewBatch()
	for _, e := range edits {
		if e.value == nil {
			err = b.Delete([]byte(e.key), nil)
		} else {
			err = b.Set([]byte(e.key), e.value, nil)
		}
		if err != nil {
			return err
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return err
	}
	return b.Close()
}

func (s *store) close() error { return fault.As("", fault.Internal, s.db.Close()) }

// corrupt names the key whose content cannot be used. Nothing is deleted: people decide.
func corrupt(key string, err error) error {
	if k := fault.KindOf(err); k == fault.Unsupported {
		return fault.As("", k, fmt.Errorf("key %q of the database: %w", key, err))
	}
	return fault.As("", fault.Internal, fmt.Errorf("key %q of the database cannot be used, and was left as it is: %w", key, err))
}

// pebbleLogger passes what the database tells on, as debugging: its own word on
// compactions is nothing that an operator of this program must know.
type pebbleLogger struct{ log *slog.Logger }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.log.Debug("registry database", "event", lazy{format, args})
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Debug("registry database", "failure", lazy{format, args})
}

// Fatalf must not return. In a commit, the panic becomes the commit's error; in the
// background, where the database has lost its files' state, it ends the process.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	f := fatal(fmt.Sprintf(format, args...))
	l.log.Error("registry database", "fatal", string(f))
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
