//go:build unix

package main

import (
	"syscall"
	"time"
)

// used is the processor time that this process has had, user and system.
func used() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
