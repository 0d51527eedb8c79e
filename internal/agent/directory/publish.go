package directory

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/agent/directory/publisher"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// publishLoop feeds a Publisher with events and carries out its actions.
type publishLoop struct {
	d    *Directory
	tick *time.Timer

	mu        sync.Mutex // guards the fields below
	publisher *publisher.Publisher
	desired   map[string]directory.Entry // all local entries by key
	rejected  map[string]error           // reasons of the group for rejected entries
	// registered holds the time of the last uncommitted registration of a key
	// that may belong to another peer.
	registered map[string]time.Time
	settled    chan struct{} // closed at each commit, rejection and change of leader
	// leaderless is when the last leader was lost, or the start. It means nothing under a leader.
	leaderless time.Time
	closed     bool

	without  map[string]refusedEntry // local entries that the group did not take, until it takes them
	refusal  error                   // why the group takes no entries under a leader; nil: it does, as far as known
	troubled time.Time               // since when requests fail; zero: they do not
	warned   time.Time               // last warning of refused entries

	traced callers // registrations whose commit is part of a trace
}

// refusedEntry is an entry that the group did not take.
type refusedEntry struct {
	err   error // the last reason
	since time.Time
}

func newPublishLoop(d *Directory, p *publisher.Publisher) *publishLoop {
	l := &publishLoop{
		d: d, publisher: p, desired: make(map[string]directory.Entry), rejected: make(map[string]error), without: make(map[string]refusedEntry),
		registered: make(map[string]time.Time), settled: make(chan struct{}), leaderless: time.Now(),
	}
	l.tick = time.AfterFunc(time.Hour, func() { l.event(publisher.Tick{}) })
	return l
}

func (l *publishLoop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.tick.Stop()
	close(l.settled)
}

// followLeader reports leaders to the publisher until Close.
func (l *publishLoop) followLeader() {
	for l.d.ctx.Err() == nil {
		term, changed := l.d.leader()
		l.event(publisher.Leader{Term: term})
		select {
		case <-changed:
		case <-l.d.ctx.Done():
		}
	}
}

func (l *publishLoop) change(changes []encodedChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e publisher.Local
	for _, c := range changes {
		key := directoryKey(c.Key)
		delete(l.rejected, key)
		if c.Instance == nil {
			delete(l.desired, key)
			delete(l.registered, key)
			delete(l.without, key)
			e.Deletes = append(e.Deletes, key)
			continue
		}
		if last, ok := l.desired[key]; ok {
			key = last.Key // share the string of the map
		}
		entry := directory.Entry{Key: key, Value: c.value, Principal: c.Instance.Principal}
		l.desired[key] = entry // Adopt belongs to this event alone: another peer may adopt later
		if entry.Adopt = c.Reason == instances.ReasonRegistered; entry.Adopt {
			l.registered[key] = time.Now()
		}
		e.Puts = append(e.Puts, entry)
	}
	l.advance(e)
}

func (l *publishLoop) event(e publisher.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(e)
}

// advance passes an event to the publisher and starts the resulting action. The
// caller holds mu.
func (l *publishLoop) advance(e publisher.Event) {
	if l.closed {
		return
	}
	led := l.publisher.State().Leads
	step := l.publisher.Advance(l.d.elapsed(), e)
	if step.Do != nil {
		l.d.work.Go(func() { l.event(l.do(step.Do)) })
	}
	if step.Wake > 0 {
		l.tick.Reset(max(step.Wake-l.d.elapsed(), 0))
	}
	for key, err := range step.Rejected {
		l.rejected[key] = err
		if _, local := l.desired[key]; local {
			out, known := l.without[key]
			if out.err = err; !known {
				out.since = time.Now()
			}
			l.without[key] = out
		}
		l.d.Failed("directory.publish", err)
	}
	l.lose(step.Lost, errTaken)
	l.lose(step.Refused, errHeld)
	if led && !l.publisher.State().Leads {
		l.leaderless = time.Now()
	}
	l.judge()
	if step.Settled || len(step.Rejected)+len(step.Lost)+len(step.Refused) > 0 || led != l.publisher.State().Leads || l.refusal != nil {
		close(l.settled)
		l.settled = make(chan struct{})
	}
}

// judge decides whether the group refuses local entries, and tells the feeder, the owner and the log. The caller holds mu.
func (l *publishLoop) judge() {
	reason := l.refusing()
	if (reason == nil) != (l.refusal == nil) {
		l.d.feeder.refuse(reason != nil)
		if reason == nil {
			l.d.Logger.Info("the coordination group takes the instances of this peer again")
			l.warned = time.Time{}
		}
	}
	if reason != nil || l.refusal != nil {
		l.d.Refused(reason)
	}
	l.refusal = reason
	if now := time.Now(); reason != nil && now.Sub(l.warned) >= warnEvery {
		l.warned = now
		l.d.Logger.Warn("the coordination group refuses instances of this peer, so this peer alone lists them", "instances", len(l.desired), "error", reason)
	}
}

// refusing returns why the group refuses local entries; nil: it does not. Without a leader the last reason stays. A leader
// without an answer is no refusal before staleAfter. The caller holds mu.
func (l *publishLoop) refusing() error {
	s := l.publisher.State()
	switch {
	case len(l.desired) == 0:
		return nil
	case !s.Leads:
		return l.refusal
	}
	for _, key := range slices.Sorted(maps.Keys(l.without)) {
		_, done := l.publisher.Committed(key)
		out := l.without[key]
		switch {
		case done:
			delete(l.without, key)
		case fault.KindOf(out.err) == fault.PoolExhausted || time.Since(out.since) >= staleAfter: // the caller of a new registration that can never fit learns it, and it ends at once
			return out.err
		}
	}
	switch {
	case s.Problem == nil && (s.Lease == 0 || s.Resyncing):
		return l.refusal // the first success is not yet the end
	case s.Problem == nil:
		l.troubled = time.Time{}
		return nil
	case l.troubled.IsZero():
		l.troubled = time.Now()
	}
	switch fault.KindOf(s.Problem) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		if time.Since(l.troubled) < staleAfter {
			return l.refusal
		}
	}
	return s.Problem
}

// uncommitted implements Directory.Uncommitted.
func (l *publishLoop) uncommitted(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, local := l.desired[key]
	_, done := l.publisher.Committed(key)
	switch {
	case !local || done:
		return nil
	case !l.publisher.State().Leads:
		return errLeaderless
	case l.without[key].err != nil:
		return l.without[key].err
	}
	return l.refusal
}

// pending implements Directory.Pending.
func (l *publishLoop) pending() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.desired {
		if _, done := l.publisher.Committed(key); !done {
			n++
		}
	}
	return n
}

var errLeaderless = fault.New("directory", fault.Unavailable, "the coordination group has no known leader: see the conditions of this peer")

// Reasons for an entry that is another peer's.
var (
	errTaken = fault.New("directory.Committed", fault.Conflict, "another peer took over, or removed, the instance")
	errHeld  = fault.New("directory.Committed", fault.Forbidden,
		"another caller registered the instance at another peer, which lives: deregister it first, or register it with the same credentials")
)

// lose records and reports entries of other peers.
func (l *publishLoop) lose(keys []string, reason error) {
	var lost []instance.Key
	for _, key := range keys {
		l.rejected[key] = reason
		if k, ok := instanceKey(key); ok {
			lost = append(lost, k)
		}
	}
	if len(lost) > 0 {
		l.d.work.Go(func() { l.d.Lost(lost) })
	}
}

// do carries out an action and returns the event that answers it.
func (l *publishLoop) do(a publisher.Action) publisher.Event {
	ctx, cancel := context.WithTimeout(l.d.ctx, callTimeout)
	defer cancel()
	switch a := a.(type) {
	case publisher.Grant:
		got, err := l.execute(ctx, &apiv1.LeaseGrantRequest{Id: int64(a.Lease), TtlMs: a.TTL.Milliseconds()})
		granted := got.GetLeaseGrant()
		return publisher.LeaseGranted{
			Lease: coord.LeaseID(granted.GetId()), TTL: time.Duration(granted.GetTtlMs()) * time.Millisecond, Err: l.logged("grant", err),
		}
	case publisher.Renew:
		got, err := l.execute(ctx, &apiv1.LeaseKeepAliveRequest{Id: int64(a.Lease)})
		return publisher.Renewed{Answer: got.GetKeepAlive(), Err: l.logged("renew", err)}
	case publisher.Send:
		if err := l.dropOutdated(ctx, a.Batch); err != nil {
			return publisher.PublishDone{Err: l.logged("send", err)}
		}
		ctx, span := l.traced.begin(ctx, l.d.Tracer, a.Batch)
		got, err := l.execute(ctx, a.Batch)
		answer := got.GetPublishInstances()
		span.End(err)
		return publisher.PublishDone{Answer: answer, Refused: refused(a.Batch, answer), Err: l.logged("send", err)}
	default: // publisher.Resync
		return publisher.Listed{Entries: l.entries()}
	}
}

func (l *publishLoop) execute(ctx context.Context, request proto.Message) (*coordv1.Result, error) {
	return l.d.Group.Execute(ctx, coord.CommandOf(l.d.Self, request))
}

// dropOutdated clears Adopt of each entry whose application has registered
// with another peer later than here. Only a registration that waited for a
// leader can be that old, and it was never committed, so the clocks of the two
// peers decide. Between committed registrations the group decides.
func (l *publishLoop) dropOutdated(ctx context.Context, b *apiv1.PublishInstancesRequest) error {
	for _, e := range b.GetPuts() {
		l.mu.Lock()
		registered := l.registered[string(e.GetKey())]
		l.mu.Unlock()
		if !e.GetAdopt() || time.Since(registered) < delayedAfter {
			continue
		}
		got, err := coord.Range(ctx, l.d.Group, &apiv1.RangeRequest{Key: e.GetKey()})
		if err != nil {
			return err
		}
		for _, kv := range got.GetKvs() {
			if i := l.d.decode(kv); i != nil && i.Peer != l.d.Self && i.RegisteredAt.After(registered) {
				e.Adopt = false
			}
		}
	}
	return nil
}

// refused returns the keys of registrations that the group skipped.
func refused(b *apiv1.PublishInstancesRequest, got *apiv1.PublishInstancesResponse) (keys []string) {
	for _, key := range got.GetForeign() {
		if slices.ContainsFunc(b.GetPuts(), func(e *apiv1.DirectoryEntry) bool { return e.GetAdopt() && bytes.Equal(e.GetKey(), key) }) {
			keys = append(keys, string(key))
		}
	}
	return keys
}

// settle waits until all local entries are committed or rejected, no leader is
// known, or the timeout has passed.
func (l *publishLoop) settle(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		l.mu.Lock()
		s, settled := l.publisher.State(), l.settled
		done := !s.Leads || l.closed || s.Lease != 0 && !s.Resyncing && s.Waiting == 0 && l.synced()
		l.mu.Unlock()
		if done {
			return
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return
		}
	}
}

// synced reports whether all local entries are committed, rejected ones aside.
// The caller holds mu.
func (l *publishLoop) synced() bool {
	for key := range l.desired {
		if _, done := l.publisher.Committed(key); !done && l.rejected[key] == nil {
			return false
		}
	}
	return true
}

// logged logs a failed call to the group and returns its error.
func (l *publishLoop) logged(call string, err error) error {
	if err != nil {
		l.d.Logger.Debug("a call of the directory to the coordination group failed", "call", call, "error", err)
	}
	return err
}

// entries returns all local entries.
func (l *publishLoop) entries() []directory.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := make([]directory.Entry, 0, len(l.desired))
	for _, e := range l.desired {
		entries = append(entries, e)
	}
	return entries
}

// Bounds of the wait for a leader that is being elected. MAGIC: an election takes less than two seconds; without a
// leader for five seconds a majority is missing, and calls must not wait for it.
const (
	electing = 2 * time.Second // of one call
	outage   = 5 * time.Second // without a leader, all calls together
)

func (l *publishLoop) committed(ctx context.Context, key string) (uint64, error) {
	began := time.Now()
	for {
		l.mu.Lock()
		revision, done := l.publisher.Committed(key)
		rejected, refusal, leads, settled, closed := l.rejected[key], l.refusal, l.publisher.State().Leads, l.settled, l.closed
		left := min(electing-time.Since(began), outage-time.Since(l.leaderless))
		if done {
			delete(l.registered, key)
		}
		l.mu.Unlock()
		switch {
		case closed:
			return 0, fault.New("directory", fault.Unavailable, "this peer is shutting down: retry at another peer")
		case rejected != nil:
			return 0, rejected
		case done:
			return uint64(revision), nil
		case leads && refusal != nil:
			return 0, fault.As("directory", fault.Unavailable, refusal)
		case !leads && left <= 0:
			return 0, errLeaderless
		}
		if err := news(ctx, settled, leads, left); err != nil {
			return 0, err
		}
	}
}

// news waits for a change, and without a leader only for a while.
func news(ctx context.Context, settled <-chan struct{}, leads bool, most time.Duration) error {
	var over <-chan time.Time
	if !leads {
		over = time.After(most)
	}
	select {
	case <-settled:
	case <-over:
	case <-ctx.Done():
		return fault.Wrap("directory", ctx.Err())
	}
	return nil
}
