package coordination

import (
	"context"
	"sync"
)

// goroutines owns the goroutines of a plane. None starts after the end, and Close waits for all.
type goroutines struct {
	context.Context
	cancel context.CancelFunc

	mu   sync.Mutex // guards additions to work, and the end of the context
	work sync.WaitGroup
}

func newGoroutines() *goroutines {
	l := new(goroutines)
	l.Context, l.cancel = context.WithCancel(context.Background())
	return l
}

// start runs work in a goroutine; false after the end.
func (l *goroutines) start(work func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.work.Go(work)
	return true
}

// end ends the context; work.Wait waits for the goroutines.
func (l *goroutines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel()
}
