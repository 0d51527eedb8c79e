// Package storetest has disks that crash and fail, for tests of what stands on a ledger.
package storetest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// CrashImage is what a crash left on disk.
type CrashImage[T any] struct {
	FS    *vfs.MemFS
	Known T // when it came
}

// Crashing is a disk in memory that keeps what a crash before each of its writes would leave. A
// file that is synced has a name, as on all journaled file systems: Pebble relies on that.
type Crashing[T any] struct {
	vfs.FS
	mem   *vfs.MemFS
	kept  int
	known func() T

	mu     sync.Mutex
	images []CrashImage[T] // guarded by mu
}

// NewCrashing makes an empty disk, of whose data a crash leaves kept percent of what was not
// synced. known is called before each write, by any goroutine.
func NewCrashing[T any](kept int, known func() T) *Crashing[T] {
	d := &Crashing[T]{mem: vfs.NewCrashableMem(), kept: kept, known: known}
	d.FS = errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.before))
	return d
}

// CrashImages gives what was left, in the order of the crashes.
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

// Failing is a disk in memory whose syncs fail while it is told to.
type Failing struct {
	vfs.FS
	mem *vfs.MemFS
	on  atomic.Bool
}

// NewFailing makes an empty disk that does not fail yet.
func NewFailing() *Failing {
	d := &Failing{mem: vfs.NewCrashableMem()}
	d.FS = errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.before))
	return d
}

// Fail has syncs fail from now on, with "no space left on device", or work again.
func (d *Failing) Fail(on bool) { d.on.Store(on) }

// Synced is another disk, with what was synced to this one.
func (d *Failing) Synced() vfs.FS { return d.mem.CrashClone(vfs.CrashCloneCfg{}) }

func (d *Failing) before(op errorfs.Op) error {
	sync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
	if sync && d.on.Load() {
		return errors.New("no space left on device")
	}
	return nil
}
