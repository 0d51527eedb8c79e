package route

import (
	"context"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// foresight holds the likely keepers of the lookups under way, by routing key. It is safe for concurrent use.
type foresight struct {
	mu      sync.Mutex // guards the fields below
	sets    map[string]*Set
	changed chan struct{} // closed and replaced with each change, and with the end of each lookup
}

func newForesight() *foresight {
	return &foresight{sets: make(map[string]*Set), changed: make(chan struct{})}
}

func (f *foresight) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *foresight) set(key string, set *Set) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sets[key] = set
	f.notify()
}

// end forgets a lookup that ended.
func (f *foresight) end(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sets, key)
	f.notify()
}

// of returns the likely keepers of a key, nil without any.
func (f *foresight) of(key string) *Set {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sets[key]
}

func (f *foresight) change() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// foresee notes the closest peers that a lookup found so far.
func (p *Closest) foresee(key string, others []peer.ID) {
	self := p.Self
	if !p.Router.Serving() {
		self = ""
	}
	if set, whole := settle(key, self, others, p.Router.Size(), nil); !whole {
		p.likely.set(key, set)
	}
}

// Foreseen returns the keepers of some cells once each of them has a known or a likely set; nil at the end of ctx.
func (p *Closest) Foreseen(ctx context.Context, cells []records.CellKey) map[records.CellKey]*Set {
	sets := make(map[records.CellKey]*Set, len(cells))
	for {
		changed, missing := p.likely.change(), false
		for _, c := range cells {
			key := KeyOf(c)
			if known, _ := p.remembered(key, p.Now()); known.set != nil {
				sets[c] = known.set
			} else if set := p.likely.of(key); set != nil {
				sets[c] = set
			} else {
				missing = true
			}
		}
		if !missing {
			return sets
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
