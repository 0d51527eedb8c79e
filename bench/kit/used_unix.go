//go:build unix

package kit

import (
	"syscall"
	"time"
)

// Used is the processor time of this process, user and system.
func Used() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
