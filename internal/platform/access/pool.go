package access

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Pool bounds concurrent uses of a resource, such as open watches, in total and for each client of Client. A client may
// have up to three times as many places as are free: alone it leaves a quarter of them to others, and the next greedy one a
// quarter of the rest: 5 clients that keep what they get leave a place of 1024 (dynamic thresholds of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
// Safe for concurrent use.
type Pool struct {
	total int

	mu   sync.Mutex
	used int
	by   map[string]int // places of each client that has any
}

// share is how many places a client may have for each free one.
const share = 3

// NewPool returns a pool with a number of places.
func NewPool(total int) *Pool { return &Pool{total: total, by: map[string]int{}} }

// Take occupies a place for the client of ctx until release is called, once. It fails with LimitReached when no place is
// left, or no more for this client; op and resource name the operation and the resource in the error.
func (p *Pool) Take(ctx context.Context, op, resource string) (release func(), err error) {
	client := Client(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch free, own := p.total-p.used, p.by[client]; {
	case free == 0:
		return nil, fault.New(op, fault.LimitReached, "all %d %s are in use: close one or retry later", p.total, resource)
	case own >= share*free:
		return nil, fault.New(op, fault.LimitReached, "this client has %d of all %d %s, and the rest is for others: close one or retry later", own, p.total, resource)
	}
	p.used++
	p.by[client]++
	return func() { p.release(client) }, nil
}

// Used returns the number of occupied places.
func (p *Pool) Used() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

func (p *Pool) release(client string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used--
	if p.by[client]--; p.by[client] == 0 {
		delete(p.by, client)
	}
}
