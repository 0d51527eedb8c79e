package instances

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// The keys of the database.
const (
	metaKey        = "meta"
	instancePrefix = "instance/" // and namespace/service/id, none of which has a slash
)

// storeFormat is the version of the whole layout.
const storeFormat = 1

// meta is the value of metaKey.
type meta struct {
	Format int    `json:"format"`
	Peer   string `json:"peer"`
	Floor  uint64 `json:"floor"` // no revision above it was ever given out
}

// edit is one change of the database; a nil value deletes.
type edit struct {
	key   string
	value []byte
}

// store is the database, of which each commit is on disk when it returns. It is not safe for
// concurrent use, but for failure.
type store struct {
	db   *pebble.DB
	self string

	// broken is why the database takes no more writes. After a failed write or fsync it is not
	// known what is on disk, and trying again could report success for what is lost (Rebello et
	// al., "Can Applications Recover from fsync Failures?"); only opening it anew tells.
	broken atomic.Pointer[fault.Error]
}

// failure is why the database takes no more writes, Unavailable; nil when it does take them.
func (s *store) failure() error {
	if e := s.broken.Load(); e != nil {
		return e
	}
	return nil
}

// openStore opens the database of a peer in dir, or makes it, and checks that it is the peer's.
func openStore(fs vfs.FS, dir, self string, log *slog.Logger) (*store, meta, error) {
	if err := makeDir(fs, dir); err != nil {
		return nil, meta{}, fault.As("", fault.Unavailable, err)
	}
	db, err := pebble.Open(dir, options(fs, log))
	if err != nil {
		return nil, meta{}, fault.As("", fault.Unavailable, fmt.Errorf("the database in %s does not open: %w", dir, err))
	}
	s := &store{db: db, self: self}
	m, err := s.identify()
	if err != nil {
		return nil, meta{}, errors.Join(err, s.close())
	}
	return s, m, nil
}

// makeDir makes a directory and its missing parents, durably, and for this user alone: metadata
// may hold what is nobody else's business.
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

// options suit ten thousand values of about a kilobyte, all of which are in memory anyway: it is
// read only when it is opened.
func options(fs vfs.FS, log *slog.Logger) *pebble.Options {
	return &pebble.Options{
		FS:                          fs,
		FormatMajorVersion:          pebble.FormatNewest,
		CacheSize:                   1 << 20,
		MemTableSize:                2 << 20,
		MemTableStopWritesThreshold: 2,
		MaxOpenFiles:                32,
		MaxManifestFileSize:         1 << 20,
		Logger:                      pebbleLogger{log},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { log.Warn("instances database", "err", err) },
			DataCorruption:  func(i pebble.DataCorruptionInfo) { log.Error("instances database is corrupt", "info", i.String()) },
		},
	}
}

// identify reads the meta value; that of an empty database is made up.
func (s *store) identify() (meta, error) {
	data, closer, err := s.db.Get([]byte(metaKey))
	if errors.Is(err, pebble.ErrNotFound) {
		return meta{}, s.scan(func(string, []byte) error { return errors.New("has content but no owner") })
	}
	if err != nil {
		return meta{}, corrupt(metaKey, err)
	}
	var m meta
	switch err := errors.Join(json.Unmarshal(data, &m), closer.Close()); {
	case err != nil:
		return meta{}, corrupt(metaKey, err)
	case m.Format != storeFormat:
		return meta{}, fault.New("", fault.Unsupported, "the database has format %d, this program knows %d", m.Format, storeFormat)
	case m.Peer != s.self:
		return meta{}, fault.New("", fault.Conflict, "the database belongs to peer %s, not to %s: use the directory of this identity, or another one", m.Peer, s.self)
	}
	return m, nil
}

// editFloor is the edit that raises the floor.
func (s *store) editFloor(floor uint64) edit {
	data, err := json.Marshal(meta{Format: storeFormat, Peer: s.self, Floor: floor})
	if err != nil {
		panic("instances: meta does not encode: " + err.Error()) // impossible: numbers and a string
	}
	return edit{key: metaKey, value: data}
}

// editInstance is the edit that keeps what has to outlive this process: neither status nor
// revision does.
func editInstance(i *instance.Instance) edit {
	kept := *i
	kept.Status, kept.Revision = instance.StatusUnknown, 0
	return edit{key: instancePrefix + i.Key.String(), value: instance.Marshal(&kept)}
}

func editGone(k instance.Key) edit { return edit{key: instancePrefix + k.String()} }

// instances calls visit for every instance, by key.
func (s *store) instances(visit func(*instance.Instance)) error {
	return s.scan(func(key string, value []byte) error {
		if key == metaKey {
			return nil
		}
		name, ok := strings.CutPrefix(key, instancePrefix)
		if !ok {
			return errors.New("not a key of instances")
		}
		i, err := instance.Unmarshal(value)
		switch {
		case err != nil:
			return err
		case i.Key.String() != name:
			return fmt.Errorf("holds instance %s", i.Key)
		case i.Lease == "" || i.Peer != s.self:
			return fmt.Errorf("holds an instance of peer %q with lease %q", i.Peer, i.Lease)
		}
		visit(i)
		return nil
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

// commit writes all edits at once and returns when they are on disk. After an error, which is
// Unavailable, it is open whether they are; all later commits fail.
func (s *store) commit(edits []edit) (err error) {
	if err := s.failure(); err != nil {
		return err
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
			s.broken.Store(fault.New("", fault.Unavailable, "the database failed and takes no more writes until it is opened again: %w", err))
			err = s.failure()
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
	return fault.As("", fault.Internal, fmt.Errorf("key %q of the database cannot be used, and was left as it is: %w", key, err))
}

// pebbleLogger passes what the database tells on, as debugging: its own word on compactions is
// nothing that an operator of this program must know.
type pebbleLogger struct{ log *slog.Logger }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.log.Debug("instances database", "event", lazy{format, args})
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Debug("instances database", "failure", lazy{format, args})
}

// Fatalf must not return. In a commit, the panic becomes the commit's error; in the background,
// where the database has lost its files' state, it ends the process.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	f := fatal(fmt.Sprintf(format, args...))
	l.log.Error("instances database", "fatal", string(f))
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
