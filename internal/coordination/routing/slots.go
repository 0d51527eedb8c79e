package routing

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// slots lends client ids to commands, so that a repeated command is applied once. An id serves one command at
// a time. Its sequence number outlives a command without a result, which the group applies before the next
// command or never.
type slots struct {
	open  func(ctx context.Context) (coord.ClientID, error) // makes a client id in the group
	limit chan struct{}                                     // one entry for each lent id

	mu   sync.Mutex
	free []slot // a stack, so that few ids stay in use
}

// slot is one client id.
type slot struct {
	client   coord.ClientID
	sequence uint64 // of its last command
}

func newSlots(n int, open func(context.Context) (coord.ClientID, error)) *slots {
	return &slots{open: open, limit: make(chan struct{}, n)}
}

// take lends an id, or makes one. It waits while all are lent.
func (s *slots) take(ctx context.Context) (slot, error) {
	select {
	case s.limit <- struct{}{}:
	case <-ctx.Done():
		return slot{}, fault.Wrap("group.slots", ctx.Err())
	}
	s.mu.Lock()
	if n := len(s.free); n > 0 {
		taken := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		return taken, nil
	}
	s.mu.Unlock()
	id, err := s.open(ctx)
	if err != nil {
		<-s.limit
		return slot{}, err
	}
	return slot{client: id}, nil
}

// give takes an id back. An id forgotten by the group is dropped.
func (s *slots) give(used slot, forgotten bool) {
	if !forgotten {
		s.mu.Lock()
		s.free = append(s.free, used)
		s.mu.Unlock()
	}
	<-s.limit
}
