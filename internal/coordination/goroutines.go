package coordination

import (
	"context"
	"sync"
)

// goroutines owns the goroutines of a plane: none begins once it has ended, and all can be waited for.
type goroutines struct {
	context.Context
	cancel context.CancelFunc

	mu   sync.Mutex // held while work is added, or the context ends
	work sync.WaitGroup
}

func newGoroutines() *goroutines {
	l := new(goroutines)
	l.Context, l.cancel = context.WithCancel(context.Background())
	return l
}

// start does work beside the caller; false when the lifetime has ended.
func (l *goroutines) start(work func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.work.Go(work)
	return true
}

// end ends the context; work.Wait waits for what was started.
func (l *goroutines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel()
}
