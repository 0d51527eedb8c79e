// Package fence guards the resource behind a lock against holders that have lost the lock without
// noticing.
//
// The machine, the runtime or the network can pause a holder for longer than its lease. It then
// writes while another client holds the lock. No lock service can prevent that, but the resource
// can. Each holder sends its fencing token with its writes, and later holders have greater
// tokens. The resource remembers the greatest token and refuses writes with smaller ones: the
// late write fails instead of undoing the write of the next holder.
//
// The package guards a file (File), a row of a database (Exec), and an HTTP endpoint (Handler,
// and Sign for its clients). Guard is their common part, in memory. A guard is for one lock. It
// must live as long as the resource and see every write.
//
// Fencing tokens in this form are from M. Kleppmann, "How to do distributed locking" (2016).
package fence

import (
	"sync"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Token is the fencing token of a held lock: each holder has a greater one than all before. 0 means no token.
type Token int64

// Guarded is a resource that refuses writes with a stale token.
type Guarded interface {
	// Do calls write unless a greater token was seen. No other write runs at the same time.
	// Errors: Invalid for a missing token; Conflict for a stale token; the error of write.
	Do(token Token, write func() error) error
}

var (
	_ Guarded = (*Guard)(nil)
	_ Guarded = (*File)(nil)
)

// Guard is a fence in memory, for a resource with the lifetime of the process. The zero Guard has
// seen no token. It is safe for concurrent use.
type Guard struct {
	mu    sync.Mutex // held during a write
	fence coord.Fence
}

// Do implements Guarded. The check and the write are one step: otherwise a write with a greater
// token could come between them, and the smaller one would overwrite it.
func (g *Guard) Do(token Token, write func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.fence.Check(coord.Token(token)); err != nil {
		return fault.Wrap("fence.Do", err)
	}
	return write()
}

// Check is Do for a write under another mutex: hold that mutex from the call to the end of the
// write.
func (g *Guard) Check(token Token) error {
	return fault.Wrap("fence.Check", g.Do(token, func() error { return nil }))
}

// Highest returns the greatest token seen, or 0 for none.
func (g *Guard) Highest() Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Token(g.fence.Highest)
}
