// Package store keeps what one owner has under its name on disk: values of a kilobyte or so by
// name, and a floor, a number that only rises. Each commit is on disk as a whole when it returns.
//
// It is for what is held in memory anyway. It is read once, when it is opened; after a crash at
// any point there are the commits that returned and the one under way or not. What it cannot use
// it refuses and leaves as it is: people decide.
//
// The database is one of Pebble with the key "meta", which says whose it is, and a key for each
// value, its name after Config.Prefix.
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

// Config says what a ledger is. All of it is required. Role and Prefix are part of what is on disk:
// a ledger is opened with those that it was made with.
type Config struct {
	Dir    string // of the database: made if missing, and of nobody else's
	FS     vfs.FS
	Logger *slog.Logger

	Role   string // what the owner is to what is kept: "provider"
	Owner  string
	Prefix string // of the keys of values, with a slash at its end

	MemTable uint64 // bytes of writes that are held in memory, and in a log on disk, before they become a table
}

// Edit is one change of a value. A nil Value deletes.
type Edit struct {
	Name  string
	Value []byte
}

// Store is an open database. It is not safe for concurrent use, but for Floor and Failure.
type Store struct {
	c     Config
	db    *pebble.DB
	floor atomic.Uint64

	// broken is why the database takes no more writes. After a failed write or fsync it is not
	// known what is on disk, and trying again could report success for what is lost (Rebello et
	// al., "Can Applications Recover from fsync Failures?"); only opening it anew tells.
	broken atomic.Pointer[fault.Error]
}

// Open opens the database, or makes it with floor 0. Errors are
//
//   - Conflict: it is of another owner;
//   - Unsupported: it has a format that is not known;
//   - Unavailable: it does not open, for example because another process has it open;
//   - Internal: it cannot be used. The error names the key.
func Open(c Config) (*Store, error) {
	if err := makeDir(c.FS, c.Dir); err != nil {
		return nil, fault.As("", fault.Unavailable, err)
	}
	db, err := pebble.Open(c.Dir, options(c))
	if err != nil {
		return nil, fault.As("", fault.Unavailable, fmt.Errorf("the database in %s does not open: %w", c.Dir, err))
	}
	l := &Store{c: c, db: db}
	if err := l.identify(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// identify reads the meta value, or writes it into an empty database.
func (l *Store) identify() error {
	data, closer, err := l.db.Get([]byte(metaKey))
	if errors.Is(err, pebble.ErrNotFound) {
		if err := l.scan(func(string, []byte) error { return errors.New("has content but no owner") }); err != nil {
			return err
		}
		return l.write(func(b *pebble.Batch) error { return b.Set([]byte(metaKey), l.c.encodeMeta(0), nil) })
	}
	if err != nil {
		return unusable(metaKey, err)
	}
	m, err := l.c.decodeMeta(data)
	if err := errors.Join(err, closer.Close()); err != nil {
		return unusable(metaKey, err)
	}
	if m.owner != l.c.Owner {
		return fault.New("", fault.Conflict, "the database belongs to %s %s, not to %s: use the directory of this identity, or another one",
			l.c.Role, m.owner, l.c.Owner)
	}
	l.floor.Store(m.floor)
	return nil
}

// Floor is the floor on disk. It does not wait for the disk.
func (l *Store) Floor() uint64 { return l.floor.Load() }

// Failure is why the database takes no more writes until it is opened again, Unavailable; nil
// when it does take them. It does not wait for the disk.
func (l *Store) Failure() error {
	if e := l.broken.Load(); e != nil {
		return e
	}
	return nil
}

// All calls visit for every value, by name, until one is refused, which the error names: it is
// Unsupported if visit's is, or else Internal. The value is valid during the call.
func (l *Store) All(visit func(name string, value []byte) error) error {
	return l.scan(func(key string, value []byte) error {
		if key == metaKey {
			return nil
		}
		name, ok := strings.CutPrefix(key, l.c.Prefix)
		if !ok {
			return errors.New("not a key of this database")
		}
		return visit(name, value)
	})
}

func (l *Store) scan(visit func(key string, value []byte) error) (err error) {
	it, err := l.db.NewIter(nil)
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
	return nil // an error that ended the scan is told by Close
}

// Commit makes all edits at once, of those of one name the last, raises the floor if it is lower,
// and returns when this is on disk. When there is nothing to do, it writes nothing and succeeds.
// After an error, which is Unavailable, it is open what is on disk, and all later commits fail.
func (l *Store) Commit(edits []Edit, floor uint64) error {
	raised := floor > l.Floor()
	if len(edits) == 0 && !raised {
		return nil
	}
	err := l.write(func(b *pebble.Batch) error {
		if raised {
			if err := b.Set([]byte(metaKey), l.c.encodeMeta(floor), nil); err != nil {
				return err
			}
		}
		return l.stage(b, edits)
	})
	if err == nil && raised {
		l.floor.Store(floor)
	}
	return err
}

func (l *Store) stage(b *pebble.Batch, edits []Edit) (err error) {
	for _, e := range edits {
		key := []byte(l.c.Prefix + e.Name)
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

// write commits what stage puts into a batch. Its first error is that of all that follow.
func (l *Store) write(stage func(*pebble.Batch) error) (err error) {
	if err := l.Failure(); err != nil {
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
			l.broken.Store(fault.New("", fault.Unavailable, "the database failed and takes no more writes until it is opened again: %w", err))
			err = l.Failure()
		}
	}()
	b := l.db.NewBatch()
	if err := stage(b); err != nil {
		return err
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return err
	}
	return b.Close()
}

// Close releases the database. It is called once.
func (l *Store) Close() error { return fault.As("", fault.Internal, l.db.Close()) }

// unusable names the key whose content cannot be used.
func unusable(key string, err error) error {
	if k := fault.KindOf(err); k == fault.Unsupported {
		return fault.As("", k, fmt.Errorf("key %q of the database: %w", key, err))
	}
	return fault.As("", fault.Internal, fmt.Errorf("key %q of the database cannot be used, and was left as it is: %w", key, err))
}
