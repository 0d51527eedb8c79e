package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// Keys share one prefix, and the watches follow it.
const (
	prefix    = "nemesis/"
	registers = prefix + "register"
	fencedBy  = prefix + "fenced/" // and the name of the lock
	probes    = prefix + "probe"
	lockNames = prefix + "lock/"
	contended = lockNames + "exclusive"
	mixed     = lockNames + "shared"
	permitted = lockNames + "permits"
	tried     = lockNames + "tried"
)

const (
	registerKeys = 4
	generation   = 15 * time.Second // lifetime of a register: porcupine checks short histories fast
	lockKeys     = 2
	permits      = 2
	ttl          = 5 * time.Second // of sessions; the minimum
	callTimeout  = 4 * time.Second
	lockTimeout  = 12 * time.Second
	breath       = 100 * time.Millisecond // pause after a failed operation
)

// worker is one client with one operation at a time.
type worker struct {
	*run
	id     int
	peer   *peer
	client *operator.Client
	rng    *rand.Rand

	session *client.Session // nil without a session
	known   map[string]version
}

// version is the last observation of a register by a worker.
type version struct {
	value string
	mod   coord.Revision
}

// crew is a group of goroutines with a common end.
type crew struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (c *crew) stop() {
	c.cancel()
	c.wg.Wait()
}

// startLoad starts workers at every peer.
func (r *run) startLoad(ctx context.Context) *crew {
	ctx, cancel := context.WithCancel(ctx)
	l, id := &crew{cancel: cancel}, 0
	hire := func(p *peer, job func(*worker, context.Context)) {
		id++
		w := &worker{run: r, id: id, peer: p, rng: rand.New(rand.NewPCG(r.Seed, uint64(1000+id))), known: make(map[string]version)}
		l.wg.Go(func() { w.work(ctx, job) })
	}
	for i, p := range r.clients() {
		hire(p, (*worker).register)
		hire(p, (*worker).contend)
		if i%2 == 0 {
			hire(p, (*worker).try)
		}
		if i%3 == 0 {
			hire(p, (*worker).share)
		}
		if i%4 == 1 {
			hire(p, (*worker).neglect)
		}
	}
	return l
}

// work repeats a job.
func (w *worker) work(ctx context.Context, job func(*worker, context.Context)) {
	defer w.leave()
	for ctx.Err() == nil {
		if w.client == nil {
			var err error
			if w.client, err = w.run.client(w.peer); err != nil {
				w.violated("X1", "no client: %v", err)
				return
			}
		}
		job(w, ctx)
	}
}

// leave closes the connection of the worker and abandons its session: other workers wait for the
// end of the lease.
func (w *worker) leave() {
	w.session = nil
	if w.client != nil {
		_ = w.client.Close() // a lost goodbye is one of the faults
		w.client = nil
	}
}

func (w *worker) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *worker) think(ctx context.Context, most time.Duration) {
	_ = await.Pause(ctx, time.Duration(w.rng.Int64N(int64(most)))) // the loop checks the context
}

// muse is to think, longer in a larger play.
func (w *worker) muse(ctx context.Context, most time.Duration) {
	w.think(ctx, time.Duration(w.pace())*most)
}

// outcome maps an error to the outcome of an operation. It pauses a worker without service.
func (w *worker) outcome(ctx context.Context, err error) history.Outcome {
	if err == nil {
		return history.OK
	}
	if errors.Is(err, client.ErrNotAcquired) {
		return history.Refused
	}
	switch fault.KindOf(err) {
	case fault.Conflict:
		return history.Refused
	case fault.Unavailable, fault.Timeout, fault.Canceled:
	case fault.NotFound: // an ended lease
	case fault.LimitReached, fault.PoolExhausted: // a limit of the peer itself
	default:
		w.violated("X1", "unexpected: client %d at %s: %v", w.id, w.peer.name, err)
	}
	w.think(ctx, breath)
	return history.Unknown
}

// do executes a command once, without an identity: the peer prevents a second execution.
func (w *worker) do(ctx context.Context, op ops.Op) (ops.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, _, err := ops.Of(w.client.Coordination()).Do(ctx, ops.Command{Op: op})
	return r, err
}

// register reads, writes and swaps one of a few keys.
func (w *worker) register(ctx context.Context) {
	w.muse(ctx, 40*time.Millisecond)
	key := fmt.Sprintf("%s/%d/%d", registers, w.rng.IntN(registerKeys), w.now()/generation)
	seen, known := w.known[key]
	switch x := w.rng.IntN(100); {
	case x < 50 || !known && x < 80:
		w.read(ctx, history.Op{Kind: history.Read, Object: key})
	case x < 70:
		w.put(ctx, history.Op{Kind: history.Put, Object: key})
	default:
		w.put(ctx, history.Op{Kind: history.Swap, Object: key, Old: seen.value}, ops.IfRevision(key, seen.mod))
	}
}

// read reads a key from a member with the present state.
func (w *worker) read(ctx context.Context, o history.Op) {
	o.Client = w.id
	o = w.begin(o)
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	page, _, err := ops.Of(w.client.Coordination()).Range(limited, ops.Query{Span: coord.Exactly(o.Object)}, ops.Linearizable)
	var v version
	if err == nil {
		o.Revision = int64(page.Revision)
		for _, kv := range page.Keys {
			v = version{string(kv.Value), kv.ModRevision}
		}
		o.Value = v.value
		w.remember(o.Object, v)
	}
	w.end(o, w.outcome(ctx, err), err)
}

func (w *worker) remember(key string, v version) {
	if len(w.known) > 2*registerKeys {
		clear(w.known) // keys of earlier generations
	}
	w.known[key] = v
}

// put writes a unique value.
func (w *worker) put(ctx context.Context, o history.Op, guards ...ops.Compare) history.Op {
	o.Client = w.id
	o = w.begin(o)
	o.Value = fmt.Sprintf("v%d", o.ID)
	r, err := w.do(ctx, &ops.Txn{If: guards, Then: []ops.Step{{Put: &ops.Put{Key: o.Object, Value: []byte(o.Value)}}}})
	if err == nil {
		err = r.Txn.Unmet()
	}
	if err == nil {
		o.Revision = int64(r.Revision)
		w.remember(o.Object, version{o.Value, r.Revision})
	}
	return w.end(o, w.outcome(ctx, err), err)
}
