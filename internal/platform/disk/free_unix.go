//go:build linux || darwin || freebsd

package disk

import (
	"golang.org/x/sys/unix"
)

// Free is the space on the disk of a directory for users without privileges, in bytes. The error of a missing one is fs.ErrNotExist.
func Free(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return freeOf(&s), nil
}
