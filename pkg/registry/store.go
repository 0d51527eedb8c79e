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

// What the directory holds, apart from a lock. Exact places are nobody else's business.
const (
	database = "db"
	draft    = "db.new" // the database while it is made
	private  = 0o700
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
	lock     *pebble.Lock // on the directory around the database
	provider peer.ID

	// broken is why the database no longer takes writes. After a failed write or fsync it
	// is not known what is on disk, and trying again could report success for what is
	// lost; only opening it anew tells.
	broken error
}

// openStore opens the database of a provider in dir, or makes it, and checks that it is
// the provider's.
func openStore(fs vfs.FS, dir string, provider peer.ID, log *slog.Logger) (_ *store, _ meta, err error) {
	if err := makeDir(fs, dir); err != nil {
		return nil, meta{}, fault.As("", fault.Unavailable, err)
	}
	lock, err := pebble.LockDirectory(dir, fs)
	if err != nil {
		return nil, meta{}, fault.As("", fault.Unavailable, fmt.Errorf("%s is in use by another process: %w", dir, err))
	}
	s := &store{provider: provider, lock: lock}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	path := fs.PathJoin(dir, database)
	if _, err := fs.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := s.create(fs, dir, log); err != nil {
			return nil, meta{}, err
		}
	}
	if err := s.open(path, fs, log); err != nil {
		return nil, meta{}, err
	}
	m, err := s.identify()
	return s, m, err
}

// create makes the database beside its place and moves it there when it is whole, with its
// owner's name in it: a crash while a database is made could leave one that does not open.
// What an earlier attempt left has never been used.
func (s *store) create(fs vfs.FS, dir string, log *slog.Logger) error {
	path := fs.PathJoin(dir, draft)
	if err := fs.RemoveAll(path); err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	if err := fs.MkdirAll(path, private); err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	if err := s.open(path, fs, log); err != nil {
		return err
	}
	err := errors.Join(s.commit([]edit{s.editFloor(0)}), s.db.Close())
	s.db = nil
	if err == nil {
		err = fs.Rename(path, fs.PathJoin(dir, database))
	}
	if err == nil {
		err = syncDir(fs, dir)
	}
	return fault.As("", fault.Unavailable, err)
}

func (s *store) open(path string, fs vfs.FS, log *slog.Logger) (err error) {
	if s.db, err = pebble.Open(path, options(fs, log)); err != nil {
		s.db = nil
		return fault.As("", fault.Unavailable, fmt.Errorf("the database in %s does not open: %w", path, err))
	}
	return nil
}

// makeDir makes a directory and its missing parents, durably.
func makeDir(fs vfs.FS, dir string) error {
	parent := fs.PathDir(dir)
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) || parent == dir {
		return err
	}
	if err := makeDir(fs, parent); err != nil {
		return err
	}
	if err := fs.MkdirAll(dir, private); err != nil {
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

// identify reads the meta value, which is there since the database was made.
func (s *store) identify() (meta, error) {
	data, closer, err := s.db.Get([]byte(metaKey))
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
func (s *store) services(visit func(id string, value []byte) error) (err error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	defer func() { err = errors.Join(err, fault.As("", fault.Internal, it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		key := string(it.Key())
		if key == metaKey {
			continue
		}
		id, ok := strings.CutPrefix(key, servicePrefix)
		if !ok {
			return corrupt(key, errors.New("not a key of the registry"))
		}
		value, err := it.ValueAndErr()
		if err == nil {
			err = visit(id, value)
		}
		if err != nil {
			return corrupt(key, err)
		}
	}
	return nil
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

func (s *store) close() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return fault.As("", fault.Internal, errors.Join(err, s.lock.Close()))
}

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
