package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime reads CLOCK_BOOTTIME, which goes on while the machine sleeps. CLOCK_MONOTONIC, on
// which Go's timers run, stops: a laptop that slept for an hour would believe in its locks.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("client: clock_gettime: " + err.Error()) // impossible since Linux 2.6.39
	}
	return time.Duration(t.Nano())
}

// systemClock is the clock of a client that is given none.
func systemClock() func() time.Duration { return bootTime }
