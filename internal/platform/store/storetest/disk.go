// Package storetest provides disks that crash or fail, for tests above package store.
package storetest

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// CrashImage is the content of the disk after a crash.
type CrashImage[T any] struct {
	FS    *vfs.MemFS
	Known T // state at the time of the crash
}

// Crashing is a disk in memory that records the result of a crash before each of its writes. Syncing a file
// also makes its name durable, as on all journaled file systems; Pebble depends on that.
type Crashing[T any] struct {
	vfs.FS
	mem   *vfs.MemFS
	kept  int
	known func() T

	mu     sync.Mutex
	images []CrashImage[T] // guarded by mu
}

// NewCrashing creates an empty disk. A crash keeps kept percent of the unsynced data. Each write, in any
// goroutine, first calls known.
func NewCrashing[T any](kept int, known func() T) *Crashing[T] {
	d := &Crashing[T]{mem: vfs.NewCrashableMem(), kept: kept, known: known}
	d.FS = errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.before))
	return d
}

// CrashImages returns the images in order.
func (d *Crashing[T]) CrashImages() []CrashImage[T] {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.images
}

func (d *Crashing[T]) before(op errorfs.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		random := rand.New(rand.NewPCG(uint64(len(d.images)), 1))
		left := d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: d.kept, RNG: random})
		d.images = append(d.images, CrashImage[T]{FS: left, Known: d.known()})
	}
	if op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData {
		return syncDir(d.mem, d.mem.PathDir(op.Path))
	}
	return nil
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Failing is a disk in memory with syncs that fail, or without room, on request.
type Failing struct {
	vfs.FS
	mem      *vfs.MemFS
	on, full atomic.Bool
}

// NewFailing creates an empty disk without failures.
func NewFailing() *Failing {
	d := &Failing{mem: vfs.NewCrashableMem()}
	d.FS = errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.before))
	return d
}

// Fail lets later syncs fail with an I/O error, or succeed again.
func (d *Failing) Fail(on bool) { d.on.Store(on) }

// Fill fills the disk, or frees it. A full disk writes nothing, and takes removals.
func (d *Failing) Fill(full bool) { d.full.Store(full) }

// GetDiskUsage implements vfs.FS.
func (d *Failing) GetDiskUsage(string) (u vfs.DiskUsage, err error) {
	if !d.full.Load() {
		u.AvailBytes = 1 << 40
	}
	return u, nil
}

// Synced returns another disk with the synced content of this one.
func (d *Failing) Synced() vfs.FS { return d.mem.CrashClone(vfs.CrashCloneCfg{}) }

func (d *Failing) before(op errorfs.Op) error {
	sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
	if sync && d.on.Load() {
		return syscall.EIO
	}
	if !d.full.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	switch op.Kind {
	case errorfs.OpRemove, errorfs.OpRemoveAll, errorfs.OpFileClose, errorfs.OpLock:
		return nil
	}
	return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
}

// Breaking returns a disk that writes to fs until it is full: the first allowed writes succeed, all later ones fail with
// err. Names, syncs and removals count as writes.
func Breaking(fs vfs.FS, allowed int64, err error) vfs.FS {
	var writes atomic.Int64
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && writes.Add(1) > allowed {
			return err
		}
		return nil
	}))
}
