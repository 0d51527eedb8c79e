package discovery

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	progressEvery     = 15 * time.Second       // shows a quiet watch's client that it is alive
	reachabilityEvery = 250 * time.Millisecond // between looks at new measurements
	trackEvery        = 30 * time.Second       // between extensions of the measurement of providers
)

// watcher is one watch: a cursor into the changes without a buffer. One goroutine uses it.
type watcher struct {
	service *Service
	plan    *query.Plan

	epoch, seq  uint64 // position in the feed
	snapshot    uint64 // changes up to this position are part of the initial state
	pending     []discovery.Event
	hidden      []peer.ID // unreachable providers with hidden records, sorted
	proberEpoch uint64    // epoch of the prober at hidden
	release     func()
	cancel      context.CancelFunc
	done        sync.WaitGroup
}

// Watch follows a query: first its current matches as Added events and a Progress, then all changes. Sort and
// limit do not apply. From the cursor of an earlier event, it sends the later changes, or Reset and the current
// matches if they are lost. The caller must Close it. Errors: Invalid with the field, LimitReached.
func (s *Service) Watch(ctx context.Context, q query.Query, after string) (discovery.Watcher, error) {
	const op = "discovery.Query"
	q.Exclude, q.Limit = nil, query.MaxLimit // sort and limit do not apply: request the maximum
	plan, err := query.Compile(q, s.defaults)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	w := &watcher{service: s, plan: plan}
	resume, err := w.parse(after)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	if w.release, err = s.Updates.Follow(plan); err != nil {
		return nil, fault.Wrap(op, err)
	}
	s.watches.set(w, true)
	w.askAgain(ctx) // unknown records arrive as changes
	switch {
	case !resume:
		w.start()
	case w.lost():
		w.pending = append(w.pending, discovery.Event{Kind: discovery.Reset})
		w.start()
	default:
		w.snapshot = w.seq
		w.hidden = w.unreachable()
	}
	var loopCtx context.Context
	loopCtx, w.cancel = context.WithCancel(s.ctx)
	stop := s.Keepers.Watch(loopCtx, plan, func() { w.askAgain(loopCtx) })
	w.done.Go(func() {
		defer stop()
		w.requery(loopCtx)
	})
	return w, nil
}

// Close ends the watch and waits for its goroutine.
func (w *watcher) Close() {
	w.cancel()
	w.done.Wait()
	w.service.watches.set(w, false)
	w.release()
}

// Next waits for the next event. Errors: ctx's, Unavailable after the service's Close.
func (w *watcher) Next(ctx context.Context) (discovery.Event, error) {
	quiet := time.NewTimer(progressEvery)
	defer quiet.Stop()
	look := time.NewTicker(reachabilityEvery)
	defer look.Stop()
	for {
		if len(w.pending) > 0 {
			ev := w.pending[0]
			w.pending = w.pending[1:]
			return ev, nil
		}
		ch, wait, lost := w.service.feed.after(w.epoch, w.seq)
		switch {
		case lost:
			w.pending = append(w.pending, discovery.Event{Kind: discovery.Reset})
			w.start()
			continue
		case wait == nil:
			w.take(ch)
			continue
		}
		w.updateReachability()
		if len(w.pending) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return discovery.Event{}, ctx.Err()
		case <-w.service.ctx.Done():
			return discovery.Event{}, fault.New("discovery.Watch", fault.Unavailable, "the peer is shutting down")
		case <-wait:
		case <-look.C:
		case <-quiet.C:
			return discovery.Event{Kind: discovery.Progress, Cursor: w.cursor()}, nil
		}
	}
}

// start queues the current matches and a Progress, and moves to the newest position.
func (w *watcher) start() {
	s := w.service
	w.epoch, w.seq = s.feed.currentEpoch(), s.Index.Seq()
	w.snapshot = w.seq
	w.proberEpoch = s.Prober.Epoch()
	w.hidden = w.unreachable()
	now := s.Now()
	for r := range s.Index.All() {
		if !r.Expired(now) && w.shows(r) {
			w.show(discovery.Added, r, "")
		}
	}
	w.pending = append(w.pending, discovery.Event{Kind: discovery.Progress, Cursor: w.cursor()})
}

// take processes one change and queues its event.
func (w *watcher) take(ch index.Change) {
	w.seq = ch.Seq
	if ch.Seq <= w.snapshot {
		return
	}
	was := ch.Old != nil && !ch.Old.Withdrawn() && w.shows(ch.Old)
	is := ch.New != nil && !ch.New.Withdrawn() && w.shows(ch.New)
	switch {
	case was && is:
		w.show(discovery.Updated, ch.New, w.cursor())
	case is:
		w.show(discovery.Added, ch.New, w.cursor())
	case was && ch.Kind == index.Withdrawn:
		w.show(discovery.Withdrawn, ch.New, w.cursor())
	case was && ch.Kind == index.Expired:
		w.show(discovery.Expired, ch.Old, w.cursor())
	case was && ch.New != nil:
		w.show(discovery.Removed, ch.New, w.cursor())
	case was:
		w.show(discovery.Removed, ch.Old, w.cursor())
	}
}

// updateReachability queues events for providers that became unreachable or reachable. Only the final Progress
// has the new cursor: a client that resumes at an earlier event is reset.
func (w *watcher) updateReachability() {
	epoch := w.service.Prober.Epoch()
	if epoch == w.proberEpoch {
		return
	}
	w.proberEpoch = epoch
	before, now := w.hidden, w.unreachable()
	w.hidden = nil
	w.showProviders(discovery.Removed, now, before)
	w.showProviders(discovery.Added, before, now)
	w.hidden = now
	if len(w.pending) > 0 {
		w.pending = append(w.pending, discovery.Event{Kind: discovery.Progress, Cursor: w.cursor()})
	}
}

// showProviders queues an event for each record of the providers in ids without others.
func (w *watcher) showProviders(kind discovery.EventKind, ids, others []peer.ID) {
	for _, id := range ids {
		if _, both := slices.BinarySearch(others, id); both {
			continue
		}
		for _, r := range w.service.Index.OfProvider(id) {
			if w.plan.Match(r) {
				w.show(kind, r, "")
			}
		}
	}
}

// unreachable returns the providers with hidden records.
func (w *watcher) unreachable() []peer.ID {
	if w.plan.Query().Health == query.HealthAny {
		return nil
	}
	return w.service.Prober.Unreachable()
}

func (w *watcher) shows(r *records.Record) bool {
	if !w.plan.Match(r) {
		return false
	}
	_, hidden := slices.BinarySearch(w.hidden, r.Name().Provider)
	return !hidden
}

// show queues an event and tracks the record's provider.
func (w *watcher) show(kind discovery.EventKind, r *records.Record, cursor string) {
	w.pending = append(w.pending, discovery.Event{Kind: kind, Cursor: cursor, Record: r})
	if kind == discovery.Added || kind == discovery.Updated {
		w.service.Prober.Track(r.Name().Provider)
	}
}

// requery queries the keepers again at intervals, because a followed keeper may withhold changes, and keeps the
// matches' providers tracked.
func (w *watcher) requery(ctx context.Context) {
	tick := time.NewTicker(requeryEvery)
	defer tick.Stop()
	track := time.NewTicker(trackEvery)
	defer track.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.askAgain(ctx)
		case <-track.C:
			for r := range w.service.Index.All() {
				if w.plan.Match(r) {
					w.service.Prober.Track(r.Name().Provider)
				}
			}
		}
	}
}

// askAgain puts the keepers' matches of the plan into the index.
func (w *watcher) askAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if _, err := w.service.Keepers.Query(ctx, w.plan); err != nil && w.service.ctx.Err() == nil {
		w.service.Recorder.Failed("discovery.Watch", err)
	}
}

// cursor encodes the shown state: epoch and sequence of the feed and epoch of the prober, in hexadecimal.
func (w *watcher) cursor() string { return fmt.Sprintf("%x-%x-%x", w.epoch, w.seq, w.proberEpoch) }

// parse decodes a cursor into the position. resume is false for an empty cursor.
func (w *watcher) parse(cursor string) (resume bool, err error) {
	if cursor == "" {
		return false, nil
	}
	parts := strings.Split(cursor, "-")
	if len(parts) != 3 {
		return false, fault.Invalidf("after", cursor, "malformed cursor: use the cursor of a watch event")
	}
	for i, to := range []*uint64{&w.epoch, &w.seq, &w.proberEpoch} {
		if *to, err = strconv.ParseUint(parts[i], 16, 64); err != nil {
			return false, fault.Invalidf("after", cursor, "malformed cursor: use the cursor of a watch event")
		}
	}
	return true, nil
}

// lost reports whether the parsed position cannot be resumed: changes are missing, or the unreachable set has
// changed since.
func (w *watcher) lost() bool {
	_, _, gone := w.service.feed.after(w.epoch, w.seq)
	return gone || (w.plan.Query().Health != query.HealthAny && w.proberEpoch != w.service.Prober.Epoch())
}

// watchSet contains the open watches. It is safe for concurrent use.
type watchSet struct {
	mu  sync.Mutex // guards all
	all map[*watcher]bool
}

func newWatchSet() *watchSet { return &watchSet{all: make(map[*watcher]bool)} }

// set adds or removes a watch.
func (s *watchSet) set(w *watcher, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.all[w] = true
	} else {
		delete(s.all, w)
	}
}

// wants reports whether a watch shows the record. Keepers then do not shed it.
func (s *watchSet) wants(r *records.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		if w.plan.Match(r) {
			return true
		}
	}
	return false
}
