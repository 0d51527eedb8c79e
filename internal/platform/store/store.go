// Package store stores the values of one owner on disk, about a kilobyte each, by name, and a floor: a number
// that only rises. Each commit is atomic and durable on return.
//
// It suits data that is in memory anyway: it is read once, at Open. After a crash, the database contains all
// commits that returned, and the interrupted one or not. Damaged content is refused and left unchanged, for an
// operator to decide.
//
// The database is a Pebble database with the key "meta", which names the owner, and one key for each value:
// Config.Prefix and the name.
package store

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Config are the settings of a Store. All are required. Role and Prefix are part of the format on disk: a
// database opens only with the same ones.
type Config struct {
	Dir    string // of the database, created if missing, used by this store only
	FS     vfs.FS
	Logger *slog.Logger

	Role   string // relation of the owner to the values: "provider"
	Owner  string
	Prefix string // of the values' keys, with a final slash
	// Format is the version of the whole database: keys and values. Its steps read by All and write by Commit;
	// the number follows durably.
	Format Format[*Store]

	MemTable uint64 // bytes of writes in memory, and in a log on disk, before they become a table
}

// Edit is one change of a value. A nil Value deletes.
type Edit struct {
	Name  string
	Value []byte
}

// Store is an open database. Only Floor and Failure are safe for concurrent use.
type Store struct {
	c     Config
	db    *pebble.DB
	floor atomic.Uint64
	// format of the database now; it differs from Config.Format only during a migration.
	format uint32

	// broken is the error after which the database accepts no writes. After a failed write or fsync, the
	// content of the disk is unknown, and a retry could report success for lost data (Rebello et al., "Can
	// Applications Recover from fsync Failures?"). Only the next Open shows the content.
	broken atomic.Pointer[fault.Error]
}

// Open opens the database, or creates it with floor 0. Errors:
//
//   - Conflict: it belongs to another owner;
//   - Unsupported: it has a later format, or format 0;
//   - Unavailable: opening fails, for example while another process uses it;
//   - Internal: its content is damaged. The error names the key.
func Open(c Config) (*Store, error) {
	if err := MakeDir(c.FS, c.Dir); err != nil {
		return nil, fault.As("", fault.Unavailable, err)
	}
	db, err := pebble.Open(c.Dir, options(c))
	if err != nil {
		return nil, fault.As("", fault.Unavailable, fmt.Errorf("the database in %s does not open, perhaps another process uses it: %w", c.Dir, err))
	}
	s := &Store{c: c, db: db}
	if err := s.identify(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// identify reads the meta value, or writes it into an empty database.
func (s *Store) identify() error {
	data, closer, err := s.db.Get([]byte(metaKey))
	if errors.Is(err, pebble.ErrNotFound) {
		if err := s.scan(func(string, []byte) error { return errors.New("the database has values but no owner") }); err != nil {
			return err
		}
		s.format = s.c.Format.Version()
		return s.write(func(b *pebble.Batch) error {
			return b.Set([]byte(metaKey), s.c.encodeMeta(s.c.Format.Version(), 0), nil)
		})
	}
	if err != nil {
		return unusable(metaKey, err)
	}
	m, err := s.c.decodeMeta(data)
	if err := errors.Join(err, closer.Close()); err != nil {
		return unusable(metaKey, err)
	}
	if m.format > s.c.Format.Version() {
		return s.upgrade(m.format)
	}
	if m.owner != s.c.Owner {
		return fault.New("", fault.Conflict, "the database belongs to %s %s, not to %s: use the directory of this identity or a new one",
			s.c.Role, m.owner, s.c.Owner)
	}
	s.floor.Store(m.floor)
	return s.upgrade(m.format)
}

// upgrade migrates the database from an earlier format, or refuses a later one.
func (s *Store) upgrade(is uint32) error {
	s.format = is
	err := s.c.Format.Upgrade(s.c.Dir, is, s, func(version uint32) error {
		s.format = version
		return s.write(func(b *pebble.Batch) error { return b.Set([]byte(metaKey), s.c.encodeMeta(version, s.Floor()), nil) })
	})
	if err == nil && is != s.format {
		s.c.Logger.Info("migrated the "+s.c.Format.Name, "dir", s.c.Dir, "from", is, "to", s.format)
	}
	return err
}

// Floor is the floor on disk. It does not wait for the disk.
func (s *Store) Floor() uint64 { return s.floor.Load() }

// Failure is the error, Unavailable, after which the database accepts no writes until the next Open, or nil. It
// does not wait for the disk.
func (s *Store) Failure() error {
	if e := s.broken.Load(); e != nil {
		return e
	}
	return nil
}

// All calls visit for each value, by name, until visit fails. The error names the key; it is Unsupported if
// visit's is, otherwise Internal. The value is valid during the call.
func (s *Store) All(visit func(name string, value []byte) error) error {
	return s.scan(func(key string, value []byte) error {
		if key == metaKey {
			return nil
		}
		name, ok := strings.CutPrefix(key, s.c.Prefix)
		if !ok {
			return errors.New("the key does not belong to this database")
		}
		return visit(name, value)
	})
}

func (s *Store) scan(visit func(key string, value []byte) error) (err error) {
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
			return unusable(string(it.Key()), err)
		}
	}
	return nil // Close returns an error that ended the scan
}

// Commit applies all edits, the last one for each name, raises a lower floor, and returns after this is
// durable. Without a change it writes nothing. After an error, Unavailable, the content of the disk is unknown
// and all later commits fail.
func (s *Store) Commit(edits []Edit, floor uint64) error {
	raised := floor > s.Floor()
	if len(edits) == 0 && !raised {
		return nil
	}
	err := s.write(func(b *pebble.Batch) error {
		if raised {
			if err := b.Set([]byte(metaKey), s.c.encodeMeta(s.format, floor), nil); err != nil {
				return err
			}
		}
		return s.stage(b, edits)
	})
	if err == nil && raised {
		s.floor.Store(floor)
	}
	return err
}

func (s *Store) stage(b *pebble.Batch, edits []Edit) (err error) {
	for _, e := range edits {
		key := []byte(s.c.Prefix + e.Name)
		if e.Value == nil {
			err = b.Delete(key, nil)
		} else {
			err = b.Set(key, e.Value, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// write commits the batch of stage. After its first error, all later calls fail with it.
func (s *Store) write(stage func(*pebble.Batch) error) (err error) {
	if err := s.Failure(); err != nil {
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
			s.broken.Store(fault.New("", fault.Unavailable, "the database failed and accepts no writes until a restart: %w", err))
			err = s.Failure()
		}
	}()
	b := s.db.NewBatch()
	if err := stage(b); err != nil {
		return err
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return err
	}
	return b.Close()
}

// Close releases the database. Call it once.
func (s *Store) Close() error { return fault.As("", fault.Internal, s.db.Close()) }

// unusable adds the key to an error about its content.
func unusable(key string, err error) error {
	if k := fault.KindOf(err); k == fault.Unsupported {
		return fault.As("", k, fmt.Errorf("key %q of the database: %w", key, err))
	}
	return fault.As("", fault.Internal, fmt.Errorf("key %q of the database is damaged and was left unchanged: %w", key, err))
}
