package discovery

import (
	"context"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/blackhole/blackhole/internal/platform/trace"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
)

// searches are the searches in the network that are under way. Callers with one question share one search, which
// outlives its first caller. It is safe for concurrent use.
type searches struct {
	group singleflight.Group // by canonical question
	ctx   context.Context    // of all searches
	ask   func(ctx context.Context, plan *queries.Plan) (*ranked, error)

	mu      sync.Mutex // guards closed
	closed  bool
	running sync.WaitGroup
}

// close refuses further searches and waits for those under way. The caller ends ctx first.
func (s *searches) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
}

// enter reports whether a search may run. Then running counts it.
func (s *searches) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// begin starts a search, or joins the one with the same question. The search is part of the trace of the caller that
// started it.
func (s *searches) begin(caller context.Context, plan *queries.Plan) <-chan singleflight.Result {
	return s.group.DoChan(plan.Key(), func() (any, error) {
		if !s.enter() {
			return nil, fault.New("", fault.Unavailable, "the peer is shutting down")
		}
		defer s.running.Done()
		ctx, cancel := context.WithTimeout(trace.Carry(s.ctx, caller), queryTimeout)
		defer cancel()
		return s.ask(ctx, plan)
	})
}

// wait begins a search and returns its answer. Errors: of ask and ctx.
func (s *searches) wait(ctx context.Context, plan *queries.Plan) (*ranked, error) {
	if ctx.Err() != nil { // before a fast answer, so that a canceled call always fails
		return nil, ctx.Err()
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-s.begin(ctx, plan):
		if r.Err != nil {
			return nil, r.Err
		}
		a := *r.Val.(*ranked)
		return &a, nil
	}
}
