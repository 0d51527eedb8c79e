// Package disk knows the free space below the data of a peer, and the errors that tell of its end.
package disk

import (
	"errors"
	"runtime"
	"syscall"
)

// Low is the free space, in bytes, below which a peer is in danger: its databases stop at a full disk.
const Low = 250e6

// Full reports whether an error says that the disk, or the quota of its user, has no space left.
func Full(err error) bool {
	var number syscall.Errno
	if runtime.GOOS == "windows" && errors.As(err, &number) {
		return number == 39 || number == 112 // ERROR_HANDLE_DISK_FULL, ERROR_DISK_FULL
	}
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
