package routing

import (
	"errors"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// remotes caches the connections to other peers' members.
type remotes struct {
	dial func(peer.ID) (Remote, error)

	mu   sync.Mutex
	open map[peer.ID]Remote // nil after Close
}

// maxRemotes bounds the connections: all members of a group, and some more.
const maxRemotes = 16

func (r *remotes) get(p peer.ID) (Remote, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		return nil, fault.New("group.remotes", fault.Unavailable, "is closed")
	}
	if got, ok := r.open[p]; ok {
		return got, nil
	}
	for old, one := range r.open {
		if len(r.open) < maxRemotes {
			break
		}
		delete(r.open, old)
		_ = one.Close() // callers repeat the interrupted calls
	}
	made, err := r.dial(p)
	if err != nil {
		return nil, err
	}
	r.open[p] = made
	return made, nil
}

func (r *remotes) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, one := range r.open {
		errs = append(errs, one.Close())
	}
	r.open = nil
	return errors.Join(errs...)
}
