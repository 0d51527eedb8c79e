// Package pause waits, and wakes who waits.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns false if ctx ends earlier.
func For(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Wake wakes who receives from c, which has room for one, now or at the next time. Several calls before that count as one.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
