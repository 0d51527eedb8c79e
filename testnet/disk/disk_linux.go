package disk

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Mount puts a disk of size bytes, in memory, over an existing directory. Error: Unsupported without the right to mount.
func Mount(dir string, size int) (*Disk, error) {
	if err := syscall.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		return nil, fault.New("disk.Mount", fault.Unsupported, "a small disk needs the right to mount: %w", err)
	}
	return &Disk{dir: dir}, nil
}

// Close removes the disk with its content.
func (d *Disk) Close() error {
	return fault.As("disk.Close", fault.Unavailable, syscall.Unmount(d.dir, 0))
}

func full(err error) bool { return errors.Is(err, syscall.ENOSPC) }
