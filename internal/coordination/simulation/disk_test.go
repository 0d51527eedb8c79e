package simulation

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// disk is one member's disk. It survives processes; unsynced data may not.
type disk struct {
	fs    *vfs.MemFS // without faults
	armed atomic.Bool
	fails atomic.Bool               // its last sync fails, and the process knows
	torn  atomic.Pointer[vfs.MemFS] // durable data at the planned failure
	syncs atomic.Int64
	past  *vfs.MemFS // durable data of an earlier moment
	mark  []byte     // of the same moment, as acknowledged
	kept  promise    // of the same moment
	lacks bool       // it lost acknowledged writes, or will with the process
}

func newDisk() *disk { return &disk{fs: vfs.NewCrashableMem()} }

// open returns the file system for a process.
func (d *disk) open() vfs.FS {
	d.armed.Store(false)
	d.torn.Store(nil)
	return errorfs.Wrap(d.fs, errorfs.InjectorFunc(d.before))
}

// before sees each operation before its execution, on any goroutine of the store.
func (d *disk) before(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileFlush:
		d.syncs.Add(1)
		// The process dies in this sync. It goes on, but its messages are lost.
		if d.armed.CompareAndSwap(true, false) {
			d.torn.Store(d.fs.CrashClone(vfs.CrashCloneCfg{}))
			if d.fails.Load() {
				return syscall.EIO
			}
		}
	}
	return nil
}

// dieInSync makes the process die in its next sync: see died.
func (d *disk) dieInSync(fails bool) {
	d.fails.Store(fails)
	d.armed.Store(true)
}

// died reports whether that sync has come.
func (d *disk) died() bool { return d.torn.Load() != nil }

// crash loses unsynced data of a dead process, all or some. Survivors are drawn by sector, in the order of
// names: background work of the store must not make two runs differ.
func (d *disk) crash(rng *rand.Rand) {
	if d.lacks {
		d.fs = d.past
		d.torn.Store(nil)
		return
	}
	d.past = nil // a power cut may take the mark's last writes too
	durable := d.torn.Load()
	if durable == nil {
		durable = d.fs.CrashClone(vfs.CrashCloneCfg{})
	}
	survival := []float64{0, 0, 0.5, 1}[rng.IntN(4)]
	seed := rng.Uint64()
	if survival > 0 && d.torn.Load() != nil {
		tear(durable, d.fs, "", survival, rand.New(rand.NewPCG(seed, 1)))
		durable = durable.CrashClone(vfs.CrashCloneCfg{})
	}
	d.fs = durable
	d.torn.Store(nil)
}

const markFile = "group/mark"

// remember keeps the durable data of this moment, for forget.
func (d *disk) remember(now promise) {
	d.past, d.mark, d.kept = d.fs.CrashClone(vfs.CrashCloneCfg{}), content(d.fs, markFile), now
}

// forget makes the next crash lose all that was synced since the last remember, but for the mark: the drive lied about its
// flushes, or the end of the log is damaged. It reports false if nothing was acknowledged since, by its owner's word or by the
// mark, or the process died since.
func (d *disk) forget(now promise) bool {
	mark := content(d.fs, markFile)
	if d.lacks = d.past != nil && (now != d.kept || !bytes.Equal(mark, d.mark)); d.lacks {
		replace(d.past, markFile, mark)
	}
	return d.lacks
}

func replace(fs *vfs.MemFS, path string, b []byte) {
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return
	}
	_, _ = file.Write(b)
	_ = file.Sync()
	_ = file.Close()
}

const sector = 512

// tear keeps some of a log's unsynced sectors, in any order.
func tear(durable, written *vfs.MemFS, dir string, survival float64, rng *rand.Rand) {
	names, _ := durable.List(dir)
	slices.Sort(names)
	for _, name := range names {
		path := durable.PathJoin(dir, name)
		if info, err := durable.Stat(path); err == nil && info.IsDir() {
			tear(durable, written, path, survival, rng)
		} else if strings.HasSuffix(name, ".log") {
			tearFile(durable, written, path, survival, rng)
		}
	}
}

func tearFile(durable, written *vfs.MemFS, path string, survival float64, rng *rand.Rand) {
	old, more := content(durable, path), content(written, path)
	if len(more) <= len(old) || string(more[:len(old)]) != string(old) {
		return
	}
	torn := slices.Clone(old)
	for at := len(old); at < len(more); {
		end := min(len(more), (at/sector+1)*sector)
		if rng.Float64() < survival {
			torn = append(torn, make([]byte, at-len(torn))...)
			torn = append(torn, more[at:end]...)
		}
		at = end
	}
	replace(durable, path, torn)
}

func content(fs *vfs.MemFS, path string) []byte {
	file, err := fs.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	b := make([]byte, info.Size())
	n, _ := file.ReadAt(b, 0)
	return b[:n]
}
