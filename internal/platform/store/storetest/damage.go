package storetest

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// Damages returns copies of a disk, each with one damage to a file below dir: a flipped bit or a cut at each step-th
// byte, or the loss of the file. The disk must be made by vfs.NewCrashableMem and must not be in use. A step below the size
// of a record damages each record.
func Damages(t testing.TB, disk *vfs.MemFS, dir string, step int) iter.Seq2[string, *vfs.MemFS] {
	return func(yield func(string, *vfs.MemFS) bool) {
		for _, path := range files(t, disk, dir) {
			content := readFile(t, disk, path)
			if !yield(path+" is lost", without(t, disk, path)) {
				return
			}
			for at := 0; at < len(content); at += step {
				flipped := slices.Clone(content)
				flipped[at] ^= 0x10
				if !yield(fmt.Sprintf("bit in byte %d of %s", at, path), with(t, disk, path, flipped)) ||
					!yield(fmt.Sprintf("%s is cut at byte %d of %d", path, at, len(content)), with(t, disk, path, content[:at])) {
					return
				}
			}
		}
	}
}

// Copy returns the disk as a process that is killed leaves it.
func Copy(disk *vfs.MemFS) *vfs.MemFS {
	return disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
}

func files(t testing.TB, fs vfs.FS, dir string) (all []string) {
	names, err := fs.List(dir)
	require.NoError(t, err)
	slices.Sort(names)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		require.NoError(t, err)
		if info.IsDir() {
			all = append(all, files(t, fs, path)...)
		} else {
			all = append(all, path)
		}
	}
	return all
}

func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	file, err := fs.Open(path)
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	b := make([]byte, info.Size())
	if len(b) > 0 {
		_, err = file.ReadAt(b, 0)
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
	return b
}

func without(t testing.TB, disk *vfs.MemFS, path string) *vfs.MemFS {
	fs := Copy(disk)
	require.NoError(t, fs.Remove(path))
	return fs
}

func with(t testing.TB, disk *vfs.MemFS, path string, content []byte) *vfs.MemFS {
	fs := Copy(disk)
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = file.Write(content)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
	return fs
}
