// Package fence guards what stands behind a lock against holders that lost it and do not know.
//
// A holder can be paused by its machine, its runtime or its network for longer than its lease
// lives, and go on to write when another holds the lock. No lock service can prevent that; the
// resource can. Each holder sends its fencing token with its writes. Tokens of later holders are
// greater. The resource remembers the greatest it has seen and refuses what comes with a
// smaller one: the write of the sleeper fails instead of undoing that of its successor.
//
// Three resources are served: a file (File), a row of a database (Exec), and an HTTP endpoint
// (Handler, and Sign for its clients). Guard is what they have in common, in memory. A guard is
// for one lock, and must live as long as the resource and see every write to it.
//
// Fencing tokens in this form are from M. Kleppmann, "How to do distributed locking" (2016).
package fence

import (
	"sync"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Token is a fencing token.
type Token = coord.Token

// Guarded is a resource that writes only with a token that is not stale.
type Guarded interface {
	// Do calls write if no greater token has been seen. No other write is at work meanwhile.
	// Errors: Invalid for no token; Conflict for a stale one; that of write.
	Do(token Token, write func() error) error
}

var (
	_ Guarded = (*Guard)(nil)
	_ Guarded = (*File)(nil)
)

// Guard is a fence in memory, for a resource that lives and dies with the process. The zero
// Guard has seen no token. It is safe for concurrent use.
type Guard struct {
	mu    sync.Mutex // held while something is written
	fence coord.Fence
}

// Do implements Guarded. The check and the write are one step: a greater token that came between
// them would be overtaken by the smaller.
func (g *Guard) Do(token Token, write func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.fence.Check(token); err != nil {
		return fault.Wrap("fence.Do", err)
	}
	return write()
}

// Check is Do for a write that another mutex guards: call it with that mutex held, up to
// the end of the write.
func (g *Guard) Check(token Token) error {
	return fault.Wrap("fence.Check", g.Do(token, func() error { return nil }))
}

// Highest gives the greatest token seen; 0 when there was none.
func (g *Guard) Highest() Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fence.Highest
}
