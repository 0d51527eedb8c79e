package coordination

import (
	"context"
	"sync"
)

// lifetime owns the goroutines of a plane: none begins once it has ended, and all can be waited for.
type lifetime struct {
	context.Context
	cancel context.CancelFunc

	mu   sync.Mutex // held while work is added, or the context ends
	work sync.WaitGroup
}

func newLifetime() *lifetime {
	l := new(lifetime)
	l.Context, l.cancel = context.WithCancel(context.Background())
	return l
}

// start does work beside the caller; false when the lifetime has ended.
func (l *lifetime) start(work func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.work.Go(work)
	return true
}

// end ends the context; work.Wait waits for what was started.
func (l *lifetime) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel()
}
