package protocol

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Life is what all rooms of a keeper share: who and when they are, where they log, trace and count, and the operations under way.
// It knows none of the rooms. It is safe for concurrent use.
type Life struct {
	Self   peer.ID
	Now    func() time.Time // the time of the records
	Logger *slog.Logger

	signals Signals
	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc

	mu     sync.Mutex // guards closed, and additions to inside
	closed bool
	inside sync.WaitGroup // goroutines and operations
}

// NewLife returns the life of a keeper with a checked configuration.
func NewLife(c Config) *Life {
	l := &Life{Self: c.Self, Now: c.Now, Logger: c.Logger, signals: c.Signals}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Refused counts a refusal.
func (l *Life) Refused(reason string) { l.signals.Metrics.Refused(reason) }

// CountLeft counts a record that was left out.
func (l *Life) CountLeft(left error) {
	switch {
	case Untimely(left):
		l.Refused("untimely")
	case records.OfOtherNetwork(left):
		l.Refused("other_network")
	default:
		l.Refused(fault.KindOf(left).String())
	}
}

// Context returns a context that ends with Stop.
func (l *Life) Context() context.Context { return l.ctx }

// Stop ends the operations under way. Later ones are refused.
func (l *Life) Stop() { l.cancel() }

// Wait waits for all operations after Stop.
func (l *Life) Wait() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.inside.Wait()
}

// Go runs a loop in a goroutine, for which Wait waits. The loop ends with its context, which ends with Stop. Go does nothing, and
// reports false, after Wait has begun.
func (l *Life) Go(loop func(context.Context)) bool {
	if !l.enter() {
		return false
	}
	go func() {
		defer l.inside.Done()
		loop(l.ctx)
	}()
	return true
}

// Begin starts an operation. Its context ends with ctx, after timeout, and with Stop. Unless
// Begin fails, the caller must call end with the operation's error.
func (l *Life) Begin(ctx context.Context, op string, timeout time.Duration) (_ context.Context, end func(error), err error) {
	if !l.enter() {
		return nil, nil, fault.New("keeper."+op, fault.Unavailable, "the keeper is closed")
	}
	start := l.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	detach := context.AfterFunc(l.ctx, cancel)
	return ctx, func(err error) {
		detach()
		cancel()
		l.signals.Metrics.Operation(op, l.Now().Sub(start), err)
		l.inside.Done()
	}, nil
}

// enter reports whether an operation may begin. Then inside counts it.
func (l *Life) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.inside.Add(1)
	}
	return !l.closed
}
