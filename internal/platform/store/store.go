// Package store stores the values of one owner on disk, about a kilobyte each, by name, and a floor: a number
// that only rises. Each commit is atomic and durable on return.
//
// It suits data that is in memory anyway: it is read once, at Open. After a crash, the database contains all
// commits that returned, and the interrupted one or not. Damaged content, and content without the last acknowledged
// commits, is refused and left unchanged, for an operator to decide.
//
// The database is a Pebble database with the key "meta", which names the owner, the key "writes" with the Count of the
// last write, and one key for each value: Config.Prefix and the name. The file "mark" beside Pebble's files is its Mark.
package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
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
	// ReadOnly opens a database that exists and changes nothing, not even its format.
	ReadOnly bool
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
	latch *Latch
	mark  *Mark
	count Count // of the last write
	sums  sums
	floor atomic.Uint64
	full  atomic.Bool // the last write was refused for lack of room
	// format of the database now; it differs from Config.Format only during a migration.
	format uint32
}

// Open opens the database, or creates it with floor 0. Errors:
//
//   - Conflict: it belongs to another owner;
//   - Unsupported: it has a later format, or format 0;
//   - Unavailable: another process uses it, this user may not read it, or its disk fails;
//   - Internal: its content is damaged, or acknowledged commits are missing.
//
// The last two tell a problem, see Place.
func Open(c Config) (*Store, error) {
	s := &Store{c: c, sums: sums{of: map[string]uint64{}}, latch: NewLatch(c.Logger.With("database", c.Dir))}
	err := s.open()
	if err != nil {
		return nil, errors.Join(c.place().Refused(err), s.Close())
	}
	return s, nil
}

func (s *Store) open() (err error) {
	if !s.c.ReadOnly {
		if err := MakeDir(s.c.FS, s.c.Dir); err != nil {
			return err
		}
	}
	if s.db, err = pebble.Open(s.c.Dir, options(s.c, s.latch)); err != nil {
		return err
	}
	if err = s.latch.Err(); err != nil {
		return err
	}
	return s.load()
}

func (s *Store) load() (err error) {
	if s.mark, err = OpenMark(s.c.FS, s.c.FS.PathJoin(s.c.Dir, "mark"), s.c.ReadOnly); err != nil {
		return err
	}
	if err := s.get(countKey, func(b []byte) (err error) { s.count, err = DecodeCount(b); return err }); err != nil {
		return unusable(countKey, err)
	}
	if err := s.mark.Check(s.count, Position{}); err != nil {
		return err
	}
	err = s.scan(func(key string, value []byte) error { s.sums.set(key, value); return nil })
	if err == nil && s.count.Write > 0 && s.sums.total != s.count.State {
		err = errors.New("some values are missing, or are earlier versions")
	}
	if err != nil {
		return err
	}
	if s.count.Origin == 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s.c.Role + "/" + s.c.Owner))
		s.count.Origin = h.Sum64()
	}
	return s.identify()
}

// get calls use with the value of a key, if there is one.
func (s *Store) get(key string, use func([]byte) error) error {
	data, closer, err := s.db.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(use(data), closer.Close())
}

// identify reads the meta value, or writes it into an empty database.
func (s *Store) identify() error {
	var data []byte
	if err := s.get(metaKey, func(b []byte) error { data = bytes.Clone(b); return nil }); err != nil {
		return unusable(metaKey, err)
	}
	if data == nil {
		if err := s.scan(func(string, []byte) error { return errors.New("the database has values but no owner") }); err != nil {
			return err
		}
		if s.format = s.c.Format.Version(); s.c.ReadOnly {
			return nil
		}
		return s.write(func(b *pebble.Batch) error {
			return b.Set([]byte(metaKey), s.c.encodeMeta(s.c.Format.Version(), 0), nil)
		})
	}
	m, err := s.c.decodeMeta(data)
	if err != nil {
		return unusable(metaKey, err)
	}
	if m.format > s.c.Format.Version() {
		return s.upgrade(m.format)
	}
	if m.owner != s.c.Owner {
		return fault.Problem{
			What: fmt.Sprintf("the %s in %s belongs to %s %s, not to %s", s.c.Format.Name, s.c.Dir, s.c.Role, m.owner, s.c.Owner), Effect: s.c.place().Effect,
			Remedy: "Use the directory of this identity; or " + Aside(s.c.Dir) + ", and start with an empty one",
		}.Err(fault.Conflict, nil)
	}
	s.floor.Store(m.floor)
	return s.upgrade(m.format)
}

// upgrade migrates the database from an earlier format, or refuses a later one.
func (s *Store) upgrade(is uint32) error {
	s.format = is
	if s.c.ReadOnly {
		return s.c.Format.Check(s.c.Dir, is)
	}
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

// Failure is the error, Unavailable, with which the database refuses writes, or nil: after a failed one until the
// next Open, on a full disk until it has room. It waits for the disk only after a refusal for lack of room.
func (s *Store) Failure() error {
	if err := s.latch.Err(); err != nil {
		return fault.New("", fault.Unavailable, "the database failed and accepts no writes until a restart: %w", err)
	}
	if s.full.Load() {
		return s.room()
	}
	return nil
}

// room refuses a write that the disk may have no room for: the write itself, the next log, and the table that the
// last one becomes. So a full disk changes nothing, and writes succeed again as soon as it has room. Where the free
// space is unknown, the write finds out.
func (s *Store) room() error {
	usage, err := s.c.FS.GetDiskUsage(s.c.Dir)
	needed := 2*s.c.MemTable + 1<<20
	s.full.Store(err == nil && usage.AvailBytes < needed)
	if s.full.Load() {
		return fault.New("", fault.Unavailable, "the disk is full: writes go on when %d KiB are free below %s", needed>>10, s.c.Dir)
	}
	return nil
}

// All calls visit for each value, by name, until visit fails. The error names the key; it is Unsupported if
// visit's is, otherwise Internal. The value is valid during the call.
func (s *Store) All(visit func(name string, value []byte) error) error {
	err := s.scan(func(key string, value []byte) error {
		if key == metaKey {
			return nil
		}
		name, ok := strings.CutPrefix(key, s.c.Prefix)
		if !ok {
			return errors.New("the key does not belong to this database")
		}
		return visit(name, value)
	})
	if err != nil {
		return s.c.place().Refused(err)
	}
	return nil
}

func (s *Store) scan(visit func(key string, value []byte) error) (err error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	defer func() { err = errors.Join(err, fault.As("", fault.Internal, it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		value, err := it.ValueAndErr()
		if err == nil && string(it.Key()) != countKey {
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

// write commits the batch of stage and notes it in the mark. After its first error, all later calls fail with it.
func (s *Store) write(stage func(*pebble.Batch) error) error {
	err := s.Failure()
	if err == nil {
		err = s.room()
	}
	if err != nil {
		return err
	}
	if err := s.try(stage); err != nil {
		s.latch.Fail(err)
	}
	return s.Failure()
}

func (s *Store) try(stage func(*pebble.Batch) error) error {
	b := s.db.NewBatch()
	if err := stage(b); err != nil {
		return err
	}
	if err := s.sums.apply(b); err != nil {
		return err
	}
	next := s.count.Next(b.Repr(), s.sums.total)
	if err := b.Set([]byte(countKey), next.Append(nil), nil); err != nil {
		return err
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return err
	}
	if err := s.latch.Err(); err != nil {
		return err
	}
	s.count = next
	return errors.Join(b.Close(), s.mark.Set(next, Position{}))
}

// Close releases the database. Call it once.
func (s *Store) Close() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	if s.mark != nil {
		err = errors.Join(err, s.mark.Close())
	}
	return fault.As("", fault.Internal, err)
}

// unusable adds the key to an error about its content.
func unusable(key string, err error) error {
	if k := fault.KindOf(err); k == fault.Unsupported {
		return fault.As("", k, fmt.Errorf("key %q of the database: %w", key, err))
	}
	return fault.As("", fault.Internal, fmt.Errorf("key %q: %w", key, err))
}
