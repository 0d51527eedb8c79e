package discovery

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/blackhole/blackhole/internal/discovery/index"
	queries "github.com/blackhole/blackhole/internal/query"
)

// feed applies the changes of the index to the cache. Each watch reads them by itself, with a cursor.
type feed struct {
	index *index.Index
	cache *cache
	exits *exits
	epoch uint64 // of cursors: random, to distinguish those of an earlier process

	mu    sync.Mutex    // guards the fields below
	done  uint64        // newest sequence that the cache has processed
	grown chan struct{} // closed and replaced with each change of done
}

// newFeed begins after the present changes of the index; the caller must run run.
func newFeed(x *index.Index, epoch uint64, c *cache) *feed {
	f := &feed{index: x, cache: c, epoch: epoch, done: x.Seq(), grown: make(chan struct{})}
	f.exits = newExits(x) // after done, so that no change is missed
	return f
}

// run processes changes until ctx ends. If it falls behind the index, all cached answers may be wrong.
func (f *feed) run(ctx context.Context) {
	const batch = 64
	for seq := f.done; ctx.Err() == nil; {
		changes, wait, lost := f.index.After(seq, batch)
		switch {
		case lost:
			seq = f.index.Seq()
			f.cache.dropAll()
			f.exits.learn(f.index)
		case len(changes) == 0:
			select {
			case <-ctx.Done():
			case <-wait:
			}
			continue
		}
		for _, ch := range changes {
			seq = ch.Seq
			f.exits.change(ch)
			f.cache.invalidate(ch)
		}
		f.setDone(seq)
	}
}

func (f *feed) setDone(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = seq
	close(f.grown)
	f.grown = make(chan struct{})
}

// waitFor waits until the changes up to seq have taken effect, or for the end of ctx.
func (f *feed) waitFor(ctx context.Context, seq uint64) {
	for {
		f.mu.Lock()
		reached, wait := f.done >= seq, f.grown
		f.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		}
	}
}

// after returns up to most changes that follow a cursor. If there is none yet, wait closes with the next one.
// lost: the position is no longer available.
func (f *feed) after(epoch, seq uint64, most int) (next []index.Change, wait <-chan struct{}, lost bool) {
	if epoch != f.epoch {
		return nil, nil, true
	}
	return f.index.After(seq, most)
}

// altered reports whether a change after seq affects the plan. It returns true for positions that the index has lost.
func (f *feed) altered(p *queries.Plan, seq uint64) bool {
	changes, _, lost := f.index.After(seq, math.MaxInt)
	return lost || slices.ContainsFunc(changes, func(ch index.Change) bool { return ch.Concerns(p) })
}
