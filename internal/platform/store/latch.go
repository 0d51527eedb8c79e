package store

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

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
	log   *slog.Logger
	first atomic.Pointer[error]
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

// FS returns the file system for the database: errors of the write-ahead log and of folders go to the latch instead of
// Pebble. After an error nothing is removed.
func (l *Latch) FS(fs vfs.FS) vfs.FS { return latchFS{fs, l} }

type latchFS struct {
	vfs.FS
	latch *Latch
}

// file returns a file of the write-ahead log. Without one, Pebble goes on with a file in memory that nobody reads.
func (f latchFS) file(name string, file vfs.File, err error) (vfs.File, error) {
	if !strings.HasSuffix(name, ".log") {
		return file, err
	}
	if err != nil {
		f.latch.Fail(err)
		if file, err = vfs.NewMem().Create("lost", vfs.WriteCategoryUnspecified); err != nil {
			return nil, err
		}
	}
	return latchFile{file, f.latch}, nil
}

func (f latchFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	return f.file(name, file, err)
}

func (f latchFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, category)
	return f.file(to, file, err)
}

func (f latchFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return latchFile{file, f.latch}, nil
}

func (f latchFS) Remove(name string) error {
	if err := f.latch.Err(); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f latchFS) Unwrap() vfs.FS { return f.FS }

type latchFile struct {
	vfs.File
	latch *Latch
}

func (f latchFile) pass(err error) error {
	if err != nil {
		f.latch.Fail(err)
	}
	return nil
}

func (f latchFile) Write(b []byte) (int, error) {
	_, err := f.File.Write(b)
	return len(b), f.pass(err)
}

func (f latchFile) Preallocate(offset, length int64) error {
	return f.pass(f.File.Preallocate(offset, length))
}

func (f latchFile) Sync() error { return f.pass(f.File.Sync()) }

func (f latchFile) SyncData() error { return f.pass(f.File.SyncData()) }

func (f latchFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.pass(err)
}

func (f latchFile) Close() error { return f.pass(f.File.Close()) }
