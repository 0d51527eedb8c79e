package member

import (
	"crypto/sha256"
	"slices"
	"sync"

	"github.com/blackhole/blackhole/internal/coordination/replica"
)

// StateHash is the hash of a member's state after an empty entry; see machine.Image.Hash.
type StateHash struct {
	Index, Term uint64
	Hash        [sha256.Size]byte
}

// maxHashes bounds the hashes that a member keeps. The leader asks for the last one.
const maxHashes = 8

// Checkpoints hashes states beside the loop, one at a time. A newer checkpoint replaces one that waits. It is safe for
// concurrent use.
type Checkpoints struct {
	mark func()

	mu      sync.Mutex
	working bool
	next    *replica.Checkpoint
	hashes  []StateHash // oldest first
}

// put queues a checkpoint, and reports whether the caller must run work.
func (c *Checkpoints) put(next *replica.Checkpoint) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = next
	begins := !c.working
	c.working = true
	return begins
}

// work hashes until no checkpoint waits.
func (c *Checkpoints) work() {
	for {
		c.mu.Lock()
		now := c.next
		c.next, c.working = nil, now != nil
		c.mu.Unlock()
		if now == nil {
			return
		}
		c.keep(StateHash{now.Index, now.Term, now.State.Hash()})
	}
}

func (c *Checkpoints) keep(h StateHash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.hashes) == maxHashes {
		c.hashes = slices.Delete(c.hashes, 0, 1)
	}
	c.hashes = append(c.hashes, h)
}

// Mark makes all members hash their state at one entry, if this member leads.
func (c *Checkpoints) Mark() { c.mark() }

// Last returns the hash of the last checkpoint; false before the first.
func (c *Checkpoints) Last() (StateHash, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.hashes); n > 0 {
		return c.hashes[n-1], true
	}
	return StateHash{}, false
}

// At returns the hash after an entry; false if it is not known here, or no longer.
func (c *Checkpoints) At(index, term uint64) (StateHash, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.hashes {
		if h.Index == index && h.Term == term {
			return h, true
		}
	}
	return StateHash{}, false
}
