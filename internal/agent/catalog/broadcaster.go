package catalog

import "sync/atomic"

// broadcaster wakes all waiters and costs nothing without waiters. A waiter
// takes the channel first and checks its condition afterwards; the sender
// changes the condition first. The zero value is ready.
type broadcaster struct {
	ch atomic.Pointer[chan struct{}]
}

// wait returns a channel closed by the next broadcast.
func (b *broadcaster) wait() <-chan struct{} {
	for {
		if ch := b.ch.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if b.ch.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

// broadcast wakes all waiters.
func (b *broadcaster) broadcast() {
	if ch := b.ch.Swap(nil); ch != nil {
		close(*ch)
	}
}
