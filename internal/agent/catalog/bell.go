package catalog

import "sync/atomic"

// bell wakes all who wait, and costs nothing while nobody does. Who waits takes the channel first and
// looks at what it waits for then; who rings makes the change first. The zero value is ready.
type bell struct {
	ch atomic.Pointer[chan struct{}]
}

// wait gives the channel that the next ring closes.
func (b *bell) wait() <-chan struct{} {
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

// ring wakes those who wait.
func (b *bell) ring() {
	if ch := b.ch.Swap(nil); ch != nil {
		close(*ch)
	}
}
