// Package disk makes small disks that tests fill.
package disk

import (
	"os"
	"path/filepath"

	"github.com/blackhole/blackhole/pkg/fault"
)

// ballast is the file that fills a disk.
const ballast = "ballast"

// Disk is a file system of a bounded size at a directory. Callers must call Close after the last process that uses it.
type Disk struct{ dir string }

// Fill writes until the disk is full.
func (d *Disk) Fill() error {
	f, err := os.Create(filepath.Join(d.dir, ballast))
	if err != nil {
		return fault.As("disk.Fill", fault.Unavailable, err)
	}
	defer func() { _ = f.Close() }() // the writes are checked
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !full(err) {
		return fault.As("disk.Fill", fault.Unavailable, err)
	}
	return nil
}

// Free undoes Fill.
func (d *Disk) Free() error {
	return fault.As("disk.Free", fault.Unavailable, os.Remove(filepath.Join(d.dir, ballast)))
}
