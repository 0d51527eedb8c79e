package nemesis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// resource is an object outside the group, written under a lock, that checks tokens. A real
// resource is a file or a row; it knows only the tokens of earlier writes.
type resource struct {
	mu    sync.Mutex // guards the fence
	fence coord.Fence
}

func (r *resource) write(token coord.Token) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fence.Check(token)
}

// begun starts a session if needed; false without a session.
func (w *worker) begun(ctx context.Context) bool {
	if w.session != nil && w.session.Err() == nil {
		return true
	}
	o := w.begin(history.Op{Client: w.id, Kind: history.Open})
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := w.client.Locks().Session(limited, client.TTL(ttl))
	w.end(o, w.outcome(ctx, err), err)
	w.session = s
	return err == nil
}

// claim acquires a lock, with or without waiting. The result is nil without the lock.
func (w *worker) claim(ctx context.Context, o history.Op, options ...client.LockOption) (*client.Held, history.Op) {
	o.Client = w.id
	o = w.begin(o)
	options = append(options, client.Metadata(fmt.Appendf(nil, "%d", o.ID)))
	limited, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	take := w.session.Lock
	if o.Kind == history.Try {
		take = w.session.TryLock
	} else {
		options = append(options, client.Wait(500*time.Millisecond+time.Duration(w.rng.Int64N(int64(4*time.Second)))))
	}
	held, err := take(limited, o.Object, options...)
	if err != nil {
		return nil, w.end(o, w.outcome(ctx, err), err)
	}
	o.Token = int64(held.Token())
	o = w.end(o, history.OK, nil)
	w.seen.beliefs.Enter(o, permits, held)
	return held, o
}

// contend acquires an exclusive lock and writes under it.
func (w *worker) contend(ctx context.Context) {
	if w.muse(ctx, 40*time.Millisecond); !w.begun(ctx) {
		return
	}
	o := history.Op{Kind: history.Lock, Object: fmt.Sprintf("%s/%d", contended, w.rng.IntN(lockKeys)), Mode: history.Exclusive}
	if w.chance(15) {
		o.Kind = history.Try
	}
	held, o := w.claim(ctx, o)
	if held == nil {
		return
	}
	for range w.rng.IntN(4) {
		w.guarded(ctx, o, held)
		w.muse(ctx, 20*time.Millisecond)
	}
	if w.chance(1) { // longer than an unrenewed lease
		w.think(ctx, 2*ttl)
		w.guarded(ctx, o, held)
	}
	w.part(ctx, o, held)
}

// guarded writes to a key of the group and to the outside resource as lock holder, and reads the
// key.
func (w *worker) guarded(ctx context.Context, by history.Op, belief history.Belief) {
	token := coord.Token(by.Token)
	o := history.Op{Kind: history.Guarded, Object: fencedBy + by.Object, Lock: by.Object, Token: by.Token}
	if o = w.put(ctx, o, ops.IfHolds(by.Object, token)); o.Outcome == history.Refused {
		w.seen.beliefs.Lost(o, belief)
	}
	o = w.begin(history.Op{Client: w.id, Kind: history.Fenced, Object: "resource", Lock: by.Object, Token: by.Token})
	if err := w.resources[by.Object].write(token); err != nil {
		o = w.end(o, history.Refused, err)
		w.seen.beliefs.Lost(o, belief)
	} else {
		w.end(o, history.OK, nil)
	}
	if w.chance(30) {
		w.read(ctx, history.Op{Kind: history.Read, Object: fencedBy + by.Object, Lock: by.Object})
	}
}

// part releases a lock in one of the ways of real clients.
func (w *worker) part(ctx context.Context, by history.Op, held *client.Held) {
	o := history.Op{Client: w.id, Kind: history.Unlock, Object: by.Object, Token: by.Token}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch x := w.rng.IntN(100); {
	case x < 4:
		o.Kind = history.Abandon
		w.end(w.begin(o), history.OK, nil)
		w.leave()
	case x < 8:
		c := w.begin(history.Op{Client: w.id, Kind: history.Close})
		err := w.session.Close(limited)
		w.end(c, w.outcome(ctx, err), err)
		w.session = nil
	default:
		o = w.begin(o)
		err := held.Unlock(limited)
		w.end(o, w.outcome(ctx, err), err)
		if err != nil && !errors.Is(err, client.ErrLost) {
			w.leave() // the client would continue to try in the name of the session
		}
	}
}

// try acquires an uncontended lock.
func (w *worker) try(ctx context.Context) {
	if w.muse(ctx, 100*time.Millisecond); !w.begun(ctx) {
		return
	}
	held, o := w.claim(ctx, history.Op{Kind: history.Try, Object: fmt.Sprintf("%s/%d", tried, w.rng.IntN(lockKeys)), Mode: history.Exclusive})
	if held != nil {
		w.muse(ctx, 30*time.Millisecond)
		w.part(ctx, o, held)
	} else if o.Outcome == history.Unknown {
		w.leave() // the claim may be in flight, and the session would refuse a second claim
	}
}

// share acquires a shared lock: readers together, or a number of permits.
func (w *worker) share(ctx context.Context) {
	if w.muse(ctx, 40*time.Millisecond); !w.begun(ctx) {
		return
	}
	o, options := history.Op{Kind: history.Lock, Object: mixed, Mode: history.Shared}, []client.LockOption{client.Shared()}
	switch x := w.rng.IntN(100); {
	case x < 40:
		o.Object, o.Mode, options = permitted, history.Permit, []client.LockOption{client.Permits(permits)}
	case x < 60:
		o.Mode, options = history.Exclusive, nil
	}
	if held, o := w.claim(ctx, o, options...); held != nil {
		w.muse(ctx, 60*time.Millisecond)
		w.part(ctx, o, held)
	}
}

// term is a belief by the clock alone: it ends with an unrenewed lease.
type term struct {
	run  *run
	ends time.Duration
}

// Check implements history.Belief.
func (t term) Check() error {
	if t.run.now() < t.ends {
		return nil
	}
	return fault.New("nemesis.term", fault.Timeout, "the lease has run out")
}

// neglect plays a paused holder without knowledge of its loss: it acquires an exclusive lock
// under an unrenewed lease and continues to write after the end of the lease.
func (w *worker) neglect(ctx context.Context) {
	w.think(ctx, 2*time.Second)
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o := w.begin(history.Op{Client: w.id, Kind: history.Open})
	lease, granted, err := w.client.Locks().Grant(limited, ttl)
	if w.end(o, w.outcome(ctx, err), err); err != nil {
		return
	}
	belief := term{w.run, o.Call + granted - granted/20}
	o = w.begin(history.Op{Client: w.id, Kind: history.Lock, Object: contended + "/0", Mode: history.Exclusive})
	r, _, err := ops.Of(w.client.Coordination()).Acquire(limited, ops.Command{Op: &ops.Lock{
		Name: o.Object, Lease: coord.LeaseID(lease), Wait: true, Metadata: fmt.Appendf(nil, "%d", o.ID),
	}}, ttl/2)
	if err == nil && !r.Lock.Granted {
		err = client.ErrNotAcquired
	}
	if err == nil && belief.Check() != nil {
		err = fault.New("nemesis.neglect", fault.Timeout, "granted too late to be of use")
	}
	if err != nil {
		w.end(o, w.outcome(ctx, err), err)
		return
	}
	o.Token = int64(r.Lock.Token)
	o = w.end(o, history.OK, nil)
	w.seen.beliefs.Enter(o, permits, belief)
	w.guarded(ctx, o, belief)
	for range 3 {
		w.think(ctx, 2*ttl)
		w.guarded(ctx, o, belief)
	}
}
