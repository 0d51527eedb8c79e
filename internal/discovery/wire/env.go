// Package wire is the protocol between keepers: the bounds of its messages, requests to other keepers, and the verification of what they
// send. Env is what all rooms of a keeper share. Messages travel over package rpc.
package wire

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/witness"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// Router finds peers in the DHT.
type Router interface {
	// Closest returns up to Network peers closest to a key, nearest first, without this peer:
	// fewer in a smaller network. At its deadline it returns an error and the peers found so far.
	// It returns (nil, nil) if this peer is alone.
	Closest(ctx context.Context, key string) ([]peer.ID, error)
	// Nearby returns the n closest known peers to a key, nearest first, without a request.
	Nearby(key string, n int) []peer.ID
	// Size returns the number of peers in the routing table.
	Size() int
	// Serving reports whether this peer is a server of the DHT. Only servers are keepers.
	Serving() bool
}

// Signals tell the operator about a keeper.
type Signals struct {
	Conditions *condition.Set     // nil keeps none
	Tracer     *trace.Tracer      // nil traces nothing
	Metrics    *metrics.Discovery // nil counts nothing
}

// Config configures a keeper. Network, Host, Router, Index and Verifier are required.
type Config struct {
	Network  network.Name
	Host     host.Host // not closed by the keeper
	Router   Router
	Index    *index.Index // stores the accepted records
	Verifier *records.Verifier
	Self     peer.ID          // empty means the host's id
	Now      func() time.Time // nil means time.Now
	Logger   *slog.Logger     // nil logs nothing
	Limits   Limits

	Signals Signals

	// Wanted reports whether this peer needs a record for itself, for example as a result of a
	// subscription. Such a record stays in the index. It must not block. Nil means never.
	Wanted func(*records.Record) bool

	// Draw returns a random number from 0 to n-1: which keeper is asked beside the nearest one, and where others are looked for. Nil always returns 0.
	Draw func(n int) int

	// Heard receives each statement that its measurer delivered, with the measurer's network; Asked each offer whose endpoint another
	// peer shows, and that peer. They must not block. Nil means nobody.
	Heard func(st witness.Statement, from netip.Prefix)
	Asked func(records.Name, peer.ID)
}

// Env is what the parts of a keeper share: its configuration with defaults, and the operations under way. It knows none of the
// parts. It is safe for concurrent use.
type Env struct {
	Config
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc

	mu     sync.Mutex // guards closed, and additions to inside
	closed bool
	inside sync.WaitGroup // goroutines and operations
}

// NewEnv returns the environment of a new keeper. It returns Invalid without a required part.
func NewEnv(c Config) (*Env, error) {
	if c.Host == nil || c.Router == nil || c.Index == nil || c.Verifier == nil {
		return nil, fault.New("keeper.New", fault.Invalid, "the host, the router, the index and the verifier are required")
	}
	if err := c.Network.Validate(); err != nil {
		return nil, fault.In("network", fault.Wrap("keeper.New", err))
	}
	if c.Self == "" {
		c.Self = c.Host.ID()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Draw == nil {
		c.Draw = func(int) int { return 0 }
	}
	c.Limits = c.Limits.withDefaults()
	e := &Env{Config: c}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e, nil
}

// Mix draws an order of peers.
func (e *Env) Mix(ids []peer.ID) {
	for i := range ids {
		j := i + e.Draw(len(ids)-i)
		ids[i], ids[j] = ids[j], ids[i]
	}
}

// Context returns a context that ends with Stop.
func (e *Env) Context() context.Context { return e.ctx }

// Stop ends the operations under way. Later ones are refused.
func (e *Env) Stop() { e.cancel() }

// Wait waits for all operations after Stop.
func (e *Env) Wait() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.inside.Wait()
}

// Go runs a loop in a goroutine, for which Wait waits. The loop ends with its context, which ends with Stop. Go does nothing, and
// reports false, after Wait has begun.
func (e *Env) Go(loop func(context.Context)) bool {
	if !e.enter() {
		return false
	}
	go func() {
		defer e.inside.Done()
		loop(e.ctx)
	}()
	return true
}

// Begin starts an operation. Its context ends with ctx, after timeout, and with Stop. Unless
// Begin fails, the caller must call end with the operation's error.
func (e *Env) Begin(ctx context.Context, op string, timeout time.Duration) (_ context.Context, end func(error), err error) {
	if !e.enter() {
		return nil, nil, fault.New("keeper."+op, fault.Unavailable, "the keeper is closed")
	}
	start := e.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	detach := context.AfterFunc(e.ctx, cancel)
	return ctx, func(err error) {
		detach()
		cancel()
		e.Signals.Metrics.Operation(op, e.Now().Sub(start), err)
		e.inside.Done()
	}, nil
}

// enter reports whether an operation may begin. Then inside counts it.
func (e *Env) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.inside.Add(1)
	}
	return !e.closed
}

// Bounded calls do(0) to do(n-1), at most width at a time, and waits for all.
func Bounded(width, n int, do func(int)) {
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}

// Every calls do at an interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, do func()) {
	for pause.For(ctx, interval) {
		do()
	}
}
