package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// database is the Pebble store, with one reused batch, and its high-water mark.
type database struct {
	*pebble.DB
	latch   *store.Latch
	batch   *pebble.Batch
	scratch []byte // for a value
	key     []byte // of an entry

	mark  *store.Mark
	count store.Count // of the last write
	now   summary     // with the writes of the batch
}

// openMark opens the mark. A recovery replaces a damaged one.
func (d *database) openMark(fs vfs.FS, path string, o Options) (err error) {
	if err := d.latch.Err(); err != nil {
		return err
	}
	if d.mark, err = store.OpenMark(fs, path, o.ReadOnly); err != nil && o.Salvage {
		if err = fs.Remove(path); err == nil {
			d.mark, err = store.OpenMark(fs, path, false)
		}
	}
	return err
}

// check compares the database with its mark, and with its summary.
func (d *database) check(salvage bool) error {
	lost := d.mark.Check(d.count, store.Position{Index: d.now.end.index, Term: d.now.end.term})
	if lost == nil && d.count.Write > 0 && d.count.State != d.sum() {
		lost = damaged("database: its parts are of different times, one of its files")
	}
	if lost != nil && salvage {
		d.count = d.mark.Beyond(d.count) // later writes must be above the mark
		return nil
	}
	return lost
}

func (d *database) read(key string, use func([]byte) error) error {
	b, closer, err := d.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	defer func() { _ = closer.Close() }()
	return use(b)
}

func (d *database) failed(err error) error {
	d.latch.Fail(err)
	return d.latch.Err()
}

func (d *database) set(key, value []byte) { _ = d.batch.Set(key, value, nil) } // a batch fails at commit

func (d *database) setMessage(key []byte, m proto.Message) {
	b, err := proto.MarshalOptions{}.MarshalAppend(d.scratch[:0], m)
	if err != nil {
		d.latch.Fail(err) // impossible: a required field is missing
		return
	}
	d.scratch = b
	d.set(key, b)
}

// summary is the whole content but the entries, which the checksum of the last one covers.
type summary struct {
	header        header
	hard          *pb.HardState
	cut, snapshot position
	end           position
}

// sum returns the checksum of the summary.
func (d *database) sum() uint64 {
	s := &d.now
	b := s.header.append(d.scratch[:0])
	for _, p := range [...]position{s.cut, s.snapshot, s.end, {s.hard.GetTerm(), s.hard.GetVote(), 0}, {s.hard.GetCommit(), 0, 0}} {
		b = p.append(b)
	}
	d.scratch = b
	return uint64(crc32.Checksum(b, castagnoli()))
}

// setEntry sets an entry behind the checksum of the log up to it, and returns this checksum.
func (d *database) setEntry(before uint32, e *pb.Entry) uint32 {
	b, err := proto.MarshalOptions{}.MarshalAppend(append(d.scratch[:0], 0, 0, 0, 0), e)
	if err != nil {
		d.latch.Fail(err) // impossible: a required field is missing
		return 0
	}
	d.scratch = b
	sum := crc32.Update(before, castagnoli(), b[4:])
	binary.BigEndian.PutUint32(b, sum)
	d.key = appendEntryKey(d.key[:0], e.GetIndex())
	d.set(d.key, b)
	return sum
}

// sumAt returns the checksum of the log up to an entry.
func (d *database) sumAt(index uint64) (sum uint32, err error) {
	switch index {
	case d.now.end.index:
		return d.now.end.sum, nil
	case d.now.cut.index:
		return d.now.cut.sum, nil
	}
	found := false
	err = d.read(string(entryKey(index)), func(b []byte) (err error) {
		found = true
		sum, _, err = decodeEntry(b)
		return err
	})
	if err == nil && !found {
		err = damaged(fmt.Sprintf("entry %d", index))
	}
	return sum, err
}

// decodeEntry reads the value of setEntry.
func decodeEntry(b []byte) (sum uint32, e *pb.Entry, err error) {
	if len(b) < 4 {
		return 0, nil, damaged("entry")
	}
	e = new(pb.Entry)
	return binary.BigEndian.Uint32(b), e, proto.Unmarshal(b[4:], e)
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// deleteEntries deletes [from, to) in the batch.
func (d *database) deleteEntries(from, to uint64) error {
	if err := d.batch.DeleteRange(entryKey(from), entryKey(to), nil); err != nil {
		return fault.As("", fault.Internal, err)
	}
	return nil
}

// commit writes the batch with its count. With sync, the mark follows before anybody can acknowledge the write.
func (d *database) commit(sync bool) error {
	if err := d.latch.Err(); err != nil {
		return err
	}
	options := pebble.NoSync
	if sync {
		options = pebble.Sync
	}
	next := d.count.Next(d.batch.Repr(), d.sum())
	d.scratch = next.Append(d.scratch[:0])
	d.set([]byte(keyCount), d.scratch)
	if err := d.batch.Commit(options); err != nil {
		return d.failed(err)
	}
	if err := d.latch.Err(); err != nil {
		return err
	}
	d.count = next
	if sync {
		if err := d.mark.Set(next, store.Position{Index: d.now.end.index, Term: d.now.end.term}); err != nil {
			return d.failed(err)
		}
	}
	return nil
}
