// Package pause waits.
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
