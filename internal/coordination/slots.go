package coordination

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// slots lend identities to commands, so that each can be tried again and is applied once. An
// identity carries one command at a time; its sequence outlives a command whose result
// never came, which the group then either has applied before the next one or never applies.
type slots struct {
	open  func(ctx context.Context) (coord.ClientID, error) // makes an identity in the group
	limit chan struct{}                                     // one for each that may be lent at a time

	mu   sync.Mutex
	free []slot // the last one given back is lent first, so that few stay in use
}

// slot is one identity.
type slot struct {
	client   coord.ClientID
	sequence uint64 // of its last command
}

func newSlots(n int, open func(context.Context) (coord.ClientID, error)) *slots {
	return &slots{open: open, limit: make(chan struct{}, n)}
}

// take lends an identity, made anew when none is free. It waits for one while all are lent.
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

// give takes an identity back. One that the group has forgotten is not lent again.
func (s *slots) give(used slot, forgotten bool) {
	if !forgotten {
		s.mu.Lock()
		s.free = append(s.free, used)
		s.mu.Unlock()
	}
	<-s.limit
}
