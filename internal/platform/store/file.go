package store

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// WriteNew writes data to a new file of mode 0600, durably, and whole or not at all. Error: fs.ErrExist for a file that
// exists.
func WriteNew(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Link(f.Name(), path); err != nil { // unlike a rename, a link fails after a faster process
		return err
	}
	return SyncDir(vfs.Default, dir)
}
