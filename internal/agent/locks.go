package agent

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// maxParallel bounds concurrent waits for the disk, which share its commits.
const maxParallel = 64

// parallel calls do for 0 to n-1, at most maxParallel at a time, and waits.
func parallel(n int, do func(int)) {
	var work errgroup.Group
	work.SetLimit(maxParallel)
	for i := range n {
		work.Go(func() error { do(i); return nil })
	}
	_ = work.Wait() // no error
}

// keyLocks serialises writers of one key, so that an undo reverts only the
// caller's change. The zero value is ready.
type keyLocks struct {
	mu   sync.Mutex                     // guards held
	held map[instance.Key]chan struct{} // closed by unlock
}

// lock waits for a key. Errors: Timeout, Canceled.
func (l *keyLocks) lock(ctx context.Context, k instance.Key) (unlock func(), err error) {
	for {
		l.mu.Lock()
		wait := l.held[k]
		if wait == nil {
			if l.held == nil {
				l.held = make(map[instance.Key]chan struct{})
			}
			l.held[k] = make(chan struct{})
			l.mu.Unlock()
			return func() { l.unlock(k) }, nil
		}
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fault.Wrap("", ctx.Err())
		}
	}
}

func (l *keyLocks) unlock(k instance.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[k])
	delete(l.held, k)
}

// maxAliases bounds remembered leases. An application with a forgotten lease has
// to register again.
const maxAliases = 10_000
