//go:build !linux

package client

import "time"

// systemClock is the clock of a client that is given none: Go's monotonic one. Where it stops
// while the machine sleeps (macOS), a lease that ran out meanwhile is noticed at its next renewal.
func systemClock() func() time.Duration {
	now := time.Now
	start := now()
	return func() time.Duration { return now().Sub(start) }
}
