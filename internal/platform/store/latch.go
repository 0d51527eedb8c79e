package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Latch keeps the first disk error of a database. After a failed write or fsync, the content of the disk is unknown, and
// a retry could report success for lost data (Rebello et al., "Can Applications Recover from fsync Failures?"). So an
// owner checks the latch after each write, and refuses everything after the first error. Only the next opening shows the
// content. It is safe for concurrent use.
//
// A Latch is a pebble.Logger, because Pebble reports its gravest errors there, and makes the file system of the
// database, because Pebble panics with a locked mutex when it cannot write or replace its write-ahead log. That ends the
// process, whoever recovers.
type Latch struct {
	// Synced receives the duration of each sync of the write-ahead log; nil: nobody. It is set before the first one.
	Synced func(time.Duration)

	log    *slog.Logger
	first  atomic.Pointer[error]
	warned atomic.Bool // of a failure in the background
}

// NewLatch returns a latch without an error.
func NewLatch(log *slog.Logger) *Latch { return &Latch{log: log} }

// Fail keeps an error if it is the first one.
func (l *Latch) Fail(err error) {
	err = fault.As("", fault.Internal, err)
	if l.first.CompareAndSwap(nil, &err) {
		l.log.Error("the database failed and accepts no writes until it is opened again", "error", err)
	}
}

// Err returns the first error, Internal, or nil.
func (l *Latch) Err() error {
	if p := l.first.Load(); p != nil {
		return *p
	}
	return nil
}

// Background logs the first failure of a flush or a compaction. Pebble repeats them without a pause.
func (l *Latch) Background(err error) {
	if l.Err() == nil && l.warned.CompareAndSwap(false, true) {
		l.log.Warn("the database failed in the background; a write will report the error", "err", err.Error())
	}
}

// Infof implements pebble.Logger. Operators need no news of compactions.
func (l *Latch) Infof(format string, args ...any) {
	l.log.Debug("message of the database", "event", lazy{format, args})
}

// Errorf implements pebble.Logger.
func (l *Latch) Errorf(format string, args ...any) {
	l.log.Debug("error message of the database", "failure", lazy{format, args})
}

// Fatalf implements pebble.Logger, which expects no return. It must not end the process here.
func (l *Latch) Fatalf(format string, args ...any) { l.Fail(fmt.Errorf(format, args...)) }

// lazy formats a message only if it is logged.
type lazy struct {
	format string
	args   []any
}

func (l lazy) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf(l.format, l.args...)) }

// FS returns the file system for the database. After the first error nothing reaches the disk, so it keeps the content of
// that moment, and all that Pebble does afterwards happens in memory and seems to succeed. Pebble would otherwise panic
// (write-ahead log), give up (list of files) or repeat a flush for ever without a pause (tables), even before Open returns.
func (l *Latch) FS(fs vfs.FS) vfs.FS { return latchFS{fs, l, vfs.NewMem()} }

type latchFS struct {
	vfs.FS
	latch *Latch
	lost  vfs.FS // what is written after an error, by the base names
}

// file returns a file, or after an error one in memory.
func (f latchFS) file(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if f.latch.Err() == nil {
		file, err := open()
		if err == nil {
			return latchFile{file, f.latch, isTable(name)}, nil
		}
		f.latch.Fail(err)
	}
	return f.lost.Create(f.PathBase(name), vfs.WriteCategoryUnspecified)
}

func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

func (f latchFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file(name, func() (vfs.File, error) { return f.FS.Create(name, category) })
}

func (f latchFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file(to, func() (vfs.File, error) { return f.FS.ReuseForWrite(from, to, category) })
}

// Open finds what was written after an error.
func (f latchFS) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	if f.latch.Err() != nil {
		if file, err := f.lost.Open(f.PathBase(name), options...); err == nil {
			return file, nil
		}
	}
	return f.FS.Open(name, options...)
}

func (f latchFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return latchFile{file, f.latch, false}, nil
}

func (f latchFS) Remove(name string) error {
	return f.do(func() error {
		if err := f.FS.Remove(name); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	})
}

func (f latchFS) Rename(from, to string) error {
	return f.do(func() error { return f.FS.Rename(from, to) })
}

// do changes names, unless an error came before.
func (f latchFS) do(change func() error) error {
	if f.latch.Err() == nil {
		if err := change(); err != nil {
			f.latch.Fail(err)
		}
	}
	return nil
}

func (f latchFS) Unwrap() vfs.FS { return f.FS }

// latchFile is a file on the disk. Its errors go to the latch instead of Pebble, except those of a table: Pebble would
// read it, and writes another one, in memory.
type latchFile struct {
	vfs.File
	latch *Latch
	table bool
}

func (f latchFile) pass(err error) error {
	if err != nil {
		f.latch.Fail(err)
	}
	if f.table {
		return err
	}
	return nil
}

// do changes the file, unless an error came before.
func (f latchFile) do(change func() error) error {
	if err := f.latch.Err(); err != nil {
		return f.pass(err)
	}
	return f.pass(change())
}

func (f latchFile) Write(b []byte) (int, error) {
	err := f.do(func() error { _, err := f.File.Write(b); return err })
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

func (f latchFile) Preallocate(offset, length int64) error {
	return f.do(func() error { return f.File.Preallocate(offset, length) })
}

// timed runs a sync and reports its duration.
func (f latchFile) timed(sync func() error) error {
	if f.latch.Synced == nil {
		return f.do(sync)
	}
	start := time.Now()
	err := f.do(sync)
	f.latch.Synced(time.Since(start))
	return err
}

func (f latchFile) Sync() error { return f.timed(f.File.Sync) }

func (f latchFile) SyncData() error { return f.timed(f.File.SyncData) }

func (f latchFile) SyncTo(length int64) (full bool, err error) {
	err = f.timed(func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

func (f latchFile) Close() error { return f.pass(f.File.Close()) }
