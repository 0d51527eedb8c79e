package ask

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/digest"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	watchRecheck = 30 * time.Second       // interval of checks of a cell without a stream
	watchDivided = 2 * time.Minute        // interval of searches in place of a stream; live updates bring the changes between them
	watchRetry   = 250 * time.Millisecond // delay before the next keeper, doubling
	watchRetries = 6                      // maximum number of doublings: 16 s
)

// Watch adds the changes of a plan's matches to the index, from one keeper of each cell, until ctx
// ends or the caller calls stop; stop waits. A cell that this peer keeps needs no stream: its
// changes arrive anyway. Watch calls resync if changes may be lost, because another keeper took
// over or no keeper can be followed. Resync should Query the plan again; calls of it never
// overlap.
func (a *Asker) Watch(ctx context.Context, p *query.Plan, resync func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(a.Context(), cancel)
	var running sync.WaitGroup
	asking := &sharedQuery{do: resync, slot: make(chan struct{}, 1)}
	for _, c := range a.cellsOf(p) {
		f := &follower{Asker: a, plan: p, cell: c, resync: asking.run}
		running.Add(1)
		if !a.Go(func(context.Context) {
			defer running.Done()
			f.run(ctx)
		}) {
			running.Done()
		}
	}
	return func() {
		detach()
		cancel()
		running.Wait()
	}
}

// sharedQuery is the resync of all followers of one plan. One query serves all requests from
// before its start.
type sharedQuery struct {
	do    func()
	slot  chan struct{} // semaphore of one query
	calls atomic.Uint64
	begun atomic.Uint64 // value of calls at the start of the last query
}

func (r *sharedQuery) run(ctx context.Context) {
	mine := r.calls.Add(1)
	select {
	case r.slot <- struct{}{}:
		defer func() { <-r.slot }()
	case <-ctx.Done():
		return
	}
	if r.begun.Load() >= mine {
		return
	}
	r.begun.Store(r.calls.Load())
	r.do()
}

// follower follows one cell.
type follower struct {
	*Asker
	plan   *query.Plan
	cell   records.CellKey
	resync func(context.Context)

	at       peer.ID    // keeper that sent the cookie
	cookie   *pb.Cookie // nil before the first message
	received bool       // a message arrived on this stream
	avoid    peer.ID    // the last keeper to refuse
	dropped  int        // filters of the plan that the last request left out
}

// run follows the cell at one keeper after another until ctx ends. A broken stream resumes once
// after its cookie: that keeper still has the changes in between.
func (f *follower) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		id, ok := f.next(ctx)
		if !ok {
			failures = 0
			f.at, f.cookie = "", nil
			pause.For(ctx, watchRecheck)
			continue
		}
		f.received = false
		err := f.follow(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if f.handleEnd(ctx, id, err) {
			failures = 0
			f.resync(ctx)
			pause.For(ctx, watchDivided)
			continue
		}
		if f.received {
			failures = 0
		}
		pause.For(ctx, watchRetry<<min(failures, watchRetries))
		failures++
	}
}

// handleEnd prepares the next attempt after the end of a stream. It reports true if no keeper can
// be followed now: the cell is split, or this peer follows too many cells.
func (f *follower) handleEnd(ctx context.Context, id peer.ID, err error) (futile bool) {
	var refusal refusalError
	f.avoid = ""
	switch {
	case err == nil:
	case f.narrowed(id): // the next request asks without the filters that the keeper does not know
	case errors.As(err, &refusal):
		if fault.KindOf(err) == fault.Unsupported {
			return true
		}
		f.avoid, f.at, f.cookie = id, "", nil
	case fault.KindOf(err) == fault.LimitReached:
		return true
	case !f.received || fault.KindOf(err) == fault.Unauthentic:
		f.client.Observe(ctx, id, 0, err)
		f.at, f.cookie = "", nil
	}
	return false
}

// narrowed reports whether the last request to a keeper had a filter that the keeper does not know.
func (f *follower) narrowed(id peer.ID) bool {
	_, dropped := widen(f.plan, f.client.FiltersOf(id))
	return len(dropped) > f.dropped
}

// refusalError is a refusal of the keeper.
type refusalError struct{ error }

func (r refusalError) Unwrap() error { return r.error }

// next returns the keeper to follow: the previous one until it fails. It reports false if this
// peer keeps the cell itself, or if the lookup fails.
func (f *follower) next(ctx context.Context) (peer.ID, bool) {
	set, err := f.closest.Keepers(ctx, f.cell)
	if err != nil || set.Has(f.Self) {
		return "", false
	}
	if f.at != "" && set.Has(f.at) {
		return f.at, true
	}
	order := f.askingOrder(set) // never empty
	if order[0] == f.avoid {
		return order[len(order)-1], true
	}
	return order[0], true
}

// follow follows one stream of a keeper until it ends or the keeper is not responsible any more.
func (f *follower) follow(ctx context.Context, id peer.ID) error {
	select {
	case f.following <- struct{}{}:
		defer func() { <-f.following }()
	default:
		return fault.New("keeper.Watch", fault.LimitReached, "this peer follows too many cells: a query has to serve instead")
	}
	dial, cancel := context.WithTimeout(ctx, f.Limits.Ask)
	defer cancel()
	s, err := f.client.Pool.Open(dial, id)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	defer context.AfterFunc(ctx, func() { _ = s.Reset() })()
	if id != f.at {
		f.cookie = nil
	}
	_ = s.SetDeadline(time.Now().Add(wire.FrameTime))
	if err := s.WriteMessage(&pb.Request{Op: &pb.Request_Watch{Watch: f.request(id)}}); err != nil {
		return rpc.Classify(ctx, err)
	}
	for {
		resp := new(pb.Response)
		if err := s.ReadMessage(resp); err != nil {
			return rpc.Classify(ctx, err)
		}
		if err := f.receive(ctx, id, resp); err != nil {
			return err
		}
		set, err := f.closest.Keepers(ctx, f.cell)
		if err != nil || !set.Has(id) || set.Has(f.Self) {
			return err
		}
		_ = s.SetReadDeadline(time.Now().Add(watchSilence))
	}
}

// request returns the request to a keeper, without filters that the keeper does not know: this peer filters the
// changes again.
func (f *follower) request(id peer.ID) *pb.WatchRequest {
	plan, dropped := widen(f.plan, f.client.FiltersOf(id))
	f.dropped = len(dropped)
	asked := plan.Query()
	asked.Claims = "" // a watch has no order
	req := &pb.WatchRequest{Query: asked.Proto(), Cells: []string{f.cell.String()}, After: f.cookie}
	req.Query.Explain = false
	n := 0
	for r := range f.Index.In(f.cell, f.Now()) {
		if n == wire.WatchHave {
			break
		}
		if f.plan.Match(r) {
			req.Have = digest.Append(req.Have, digest.EntryOf(r, r.Name().Provider.String()))
			n++
		}
	}
	return req
}

// receive handles one message. It returns the keeper's refusal, or Unauthentic for a message that
// violates the protocol.
func (f *follower) receive(ctx context.Context, id peer.ID, resp *pb.Response) error {
	if err := f.client.Refusal(id, resp); err != nil {
		return refusalError{err}
	}
	m := resp.GetWatch()
	if m == nil {
		return wire.Breach("the response does not answer a watch")
	}
	for _, envelope := range m.Envelopes {
		if err := f.take(envelope, true); err != nil {
			return err
		}
	}
	for _, envelope := range m.Left {
		if err := f.take(envelope, false); err != nil {
			return err
		}
	}
	if m.Reset_ {
		f.resync(ctx)
	}
	if m.Cookie != nil { // after all records: a repeated stream repeats them
		f.at, f.cookie, f.received = id, m.Cookie, true
	}
	return nil
}

// take verifies an envelope and adds the record to the index. Inside requires a record of the cell.
// Other records left the cell: they count only as newer versions of records in the index.
func (f *follower) take(envelope []byte, inside bool) error {
	r, left, err := wire.Receive(f.Verifier, envelope, f.Now())
	switch {
	case err != nil:
		return err
	case left != nil:
		f.CountLeft(left)
		return nil
	case inside && !r.In(f.cell):
		return wire.Breach("record %s is outside the watched cell", r.Name())
	case !inside && !f.knows(r):
		return nil
	}
	if _, err := f.intake.Put(r); err != nil && fault.KindOf(err) != fault.Exists {
		f.Signals.Metrics.Refused(fault.KindOf(err).String())
	}
	return nil
}

// knows reports whether the index has a version of the record.
func (f *follower) knows(r *records.Record) bool {
	_, ok := f.Index.Latest(r.Name())
	return ok
}
