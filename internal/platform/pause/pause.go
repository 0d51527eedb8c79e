// Package pause waits, and wakes who waits.
package pause

import (
	"context"
	"sync/atomic"
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

// Broadcast wakes all who wait, and costs nothing without them. Who waits takes the channel first and looks at what it waits for
// afterwards; who wakes changes that first. The zero value is ready.
type Broadcast struct{ next atomic.Pointer[chan struct{}] }

// Wait returns a channel that the next Wake closes.
func (b *Broadcast) Wait() <-chan struct{} {
	for {
		if next := b.next.Load(); next != nil {
			return *next
		}
		next := make(chan struct{})
		if b.next.CompareAndSwap(nil, &next) {
			return next
		}
	}
}

// Wake wakes all who wait.
func (b *Broadcast) Wake() {
	if next := b.next.Swap(nil); next != nil {
		close(*next)
	}
}
