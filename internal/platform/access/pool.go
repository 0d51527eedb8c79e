package access

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Pool bounds concurrent uses of a resource, such as open watches, in total and for each client of Client. A client may
// have up to three times as many places as are free: alone it leaves a quarter of them to others, and the next greedy one a
// quarter of the rest: 5 clients that keep what they get leave a place of 1024 (dynamic thresholds of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
// Safe for concurrent use.
type Pool struct {
	resource string
	total    int
	refused  func(Refusal)

	mu   sync.Mutex
	used int
	by   map[string]int // places of each client that has any
}

// share is how many places a client may have for each free one.
const share = 3

// PoolField is the first segment of the field of a refusal; the resource of the pool follows, as in "pool.watches".
const PoolField = "pool."

// Refusal is a place that a pool did not give.
type Refusal struct {
	Resource string // of the pool
	Full     bool   // no place is left; otherwise the client has its share
	Client   string // see Client
	Err      error  // for the client
}

// Reason names the cause in metrics: full or share.
func (r Refusal) Reason() string {
	if r.Full {
		return "full"
	}
	return "share"
}

// NewPool returns a pool of a resource, a plural in lower case with underscores, with a number of places. It calls
// refused for each refusal; nil calls nothing. The function must not block.
func NewPool(resource string, total int, refused func(Refusal)) *Pool {
	return &Pool{resource: resource, total: total, refused: refused, by: map[string]int{}}
}

// Take occupies a place for the client of ctx until release is called, once. It fails with LimitReached, field PoolField
// and the resource, when no place is left, or no more for this client. op names the operation in the error.
func (p *Pool) Take(ctx context.Context, op string) (release func(), err error) {
	client := Client(ctx)
	free, own, ok := p.take(client)
	if ok {
		return func() { p.release(client) }, nil
	}
	what := strings.ReplaceAll(p.resource, "_", " ")
	cause := fmt.Errorf("all %d %s are in use: close one or retry later", p.total, what)
	if free > 0 {
		cause = fmt.Errorf("this client has %d of all %d %s, and the rest is for others: close one or retry later", own, p.total, what)
	}
	err = &fault.Error{Op: op, Kind: fault.LimitReached, Field: PoolField + p.resource, Err: cause}
	if p.refused != nil {
		p.refused(Refusal{Resource: p.resource, Full: free == 0, Client: client, Err: err})
	}
	return nil, err
}

// take occupies a place, if the client may have one of the free ones beside its own.
func (p *Pool) take(client string) (free, own int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	free, own = p.total-p.used, p.by[client]
	if free == 0 || own >= share*free {
		return free, own, false
	}
	p.used++
	p.by[client]++
	return free, own, true
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
