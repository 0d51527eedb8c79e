// Package disk knows the free space below the data of a peer, and the errors that tell of its end.
package disk

import (
	"errors"
	"syscall"
)

// Low is the free space, in bytes, below which a peer is in danger: its databases stop at a full disk.
const Low = 250e6

// Full reports whether an error says that the disk, or the quota of its user, has no space left.
func Full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
