//go:build unix

package child

import (
	"syscall"
	"time"
)

// Used is the processor time that this process has had, user and system; 0 on systems that are no Unix.
func Used() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
