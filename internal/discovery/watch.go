package discovery

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/truth"
	"github.com/blackhole/blackhole/internal/platform/pause"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	progressEvery     = 15 * time.Second       // shows a quiet watch's client that it is alive
	reachabilityEvery = 250 * time.Millisecond // deaths and returns within it are looked at together
	trackEvery        = 30 * time.Second       // between extensions of the measurement of matches
	watchedAtMost     = 100                    // offers that one watch has measured
	countedBeyond     = 64                     // records of a plan that a watch counts as left out
	coverCells        = 16                     // of the disc of a plan, to count them
	maxPages          = 100                    // of one search, of queries.MaxLimit matches each
	lossRest          = 30 * time.Second       // between searches after lost live updates
	slowBehind        = 1024                   // changes behind which a viewer gets those of one record as one
)

// watcher is one watch: a cursor into the changes without a buffer. One goroutine uses it.
type watcher struct {
	service *Service
	plans   []*queries.Plan // one for each type

	epoch, seq uint64 // position in the changes of the index
	snapshot   uint64 // changes up to this position are part of the initial state
	pending    []query.Event
	told       string // what the last Progress left out
	hidden     hidden
	release    func()
	cancel     context.CancelFunc
	done       sync.WaitGroup

	topics [][]gossip.Topic // of each plan
	again  chan struct{}    // has an element after the loss of a live update
	ended  chan struct{}    // has an element after a search that ended otherwise than the one before
	mu     sync.Mutex       // guards the fields below
	misses []string         // of each plan: why the last search may miss matches; "" for a complete one
	losses []int            // of each plan: lost live updates
}

const lostUpdates = "this peer is too slow for all live updates: it asks the keepers for those that it lost"

// watchable refuses fields that a watch would ignore: a caller with limit 1 and sort price would wait for changes of
// the cheapest offer and get those of all.
func watchable(q query.Query) error {
	const advice = "has no meaning for a watch, which sends all matches and their changes: leave it out"
	switch {
	case q.Limit != 0:
		return fault.Invalidf("limit", q.Limit, advice)
	case q.Sort != query.SortDefault:
		return fault.Invalidf("sort", string(q.Sort), advice)
	case q.After != "":
		return fault.Invalidf("after", q.After, advice)
	case q.GroupPrices:
		return fault.Invalidf("group_prices", nil, advice)
	case q.Cells != 0:
		return fault.Invalidf("cells", q.Cells, advice)
	}
	return nil
}

// Watch follows a query: first its current matches as Added events and a Progress, then all changes. It refuses
// sort and limit, which have no meaning for changes. From the cursor of an earlier event, it sends the later changes, or Reset and the current
// matches if they are lost. The caller must Close it. Errors: Invalid with the field, LimitReached.
func (s *Service) Watch(ctx context.Context, q query.Query, after string) (discovery.Watcher, error) {
	const op = "discovery.Query"
	if err := watchable(q); err != nil {
		return nil, fault.Wrap(op, err)
	}
	q.Limit, q.Sort = queries.MaxLimit, query.SortStable // request all, in pages
	w := &watcher{service: s, ended: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	resume, err := w.parse(after)
	if err == nil {
		err = w.compile(q)
	}
	if err == nil {
		err = w.follow()
	}
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	s.watches.set(w, true)
	for i := range w.plans {
		w.askFor(ctx, i, 1) // the other pages, and unknown records, arrive as changes
	}
	w.measure()
	switch {
	case !resume:
		w.start()
	case w.lost():
		w.pending = append(w.pending, query.Event{Kind: query.Reset})
		w.start()
	default:
		w.snapshot = w.seq
		w.hidden = s.hidden(w.anyHealth())
	}
	var loopCtx context.Context
	loopCtx, w.cancel = context.WithCancel(s.ctx)
	w.done.Go(func() {
		if w.missed() != "" {
			w.askAgain(loopCtx)
		}
		w.requery(loopCtx)
	})
	w.done.Go(func() { w.relook(loopCtx) })
	return w, nil
}

// compile makes one plan for each type of a query.
func (w *watcher) compile(q query.Query) error {
	list, err := queries.Split(q)
	if err != nil {
		return err
	}
	if q.Domain != "" {
		return fault.Invalidf("domain", q.Domain, "filters answers, not watches: use where for the claim")
	}
	for _, one := range list {
		p, err := queries.Compile(one, w.service.defaults)
		if err != nil {
			return err
		}
		w.plans, w.topics = append(w.plans, p), append(w.topics, topicsFor(p))
	}
	w.misses, w.losses = make([]string, len(w.plans)), make([]int, len(w.plans))
	return nil
}

// follow starts the live updates of all plans, or of none.
func (w *watcher) follow() error {
	var releases []func()
	for _, topics := range w.topics {
		release, err := w.service.Updates.Follow(topics)
		if err != nil {
			all(releases)()
			return err
		}
		releases = append(releases, release)
	}
	w.release = all(releases)
	return nil
}

// all returns a call of each function.
func all(list []func()) func() {
	return func() {
		for _, f := range list {
			f()
		}
	}
}

// planOf returns the plan for a record of its type, or nil.
func (w *watcher) planOf(r *records.Record) *queries.Plan {
	for _, p := range w.plans {
		if p.Type() == r.Type() {
			return p
		}
	}
	return nil
}

func (w *watcher) matches(r *records.Record) bool {
	p := w.planOf(r)
	return p != nil && p.Match(r)
}

// anyHealth reports whether unreachable providers belong to the watch.
func (w *watcher) anyHealth() bool { return w.plans[0].Query().Health == query.HealthAny }

// Close ends the watch and waits for its goroutine.
func (w *watcher) Close() {
	w.cancel()
	w.done.Wait()
	w.service.watches.set(w, false)
	w.release()
}

// Next waits for the next event. Errors: ctx's, Unavailable after the service's Close.
func (w *watcher) Next(ctx context.Context) (query.Event, error) {
	quiet := time.NewTimer(progressEvery)
	defer quiet.Stop()
	var look <-chan time.Time // for deaths and returns; nil: none since the last look
	for {
		if len(w.pending) > 0 {
			ev := w.pending[0]
			w.pending = w.pending[1:]
			return ev, nil
		}
		most := 1
		if w.service.Index.Seq()-w.seq > slowBehind {
			most = math.MaxInt
		}
		next, wait, lost := w.service.feed.after(w.epoch, w.seq, most)
		switch {
		case lost:
			w.pending = append(w.pending, query.Event{Kind: query.Reset})
			w.start()
			continue
		case len(next) > 1:
			w.takeAll(next)
			continue
		case len(next) > 0:
			w.take(next[0])
			continue
		}
		var deaths <-chan struct{}
		if look == nil {
			deaths = w.service.truth.Moved() // before the look, so that none is missed
			if w.updateReachability(); len(w.pending) > 0 {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return query.Event{}, ctx.Err()
		case <-w.service.ctx.Done():
			return query.Event{}, fault.New("discovery.Watch", fault.Unavailable, "the peer is shutting down")
		case <-wait:
		case <-deaths:
			look = time.After(reachabilityEvery)
		case <-look:
			look = nil
		case <-w.ended:
			return w.progress(), nil
		case <-quiet.C:
			return w.progress(), nil
		}
	}
}

// start queues the current matches and a Progress, and moves to the newest position.
func (w *watcher) start() {
	s := w.service
	w.epoch, w.seq = s.feed.epoch, s.Index.Seq()
	w.snapshot = w.seq
	w.hidden = s.hidden(w.anyHealth())
	now := s.Now()
	for r := range s.Index.All() {
		if !r.Expired(now) && w.shows(r) {
			w.show(query.Added, r, "")
		}
	}
	w.pending = append(w.pending, w.progress())
}

// progress returns an event without a change. It says whether the watch has all matches, and how many records it leaves out because this
// version does not understand them.
func (w *watcher) progress() query.Event {
	select {
	case <-w.ended: // this one tells it
	default:
	}
	left, missed := w.leftOut(), w.missed()
	w.told = left.String()
	return query.Event{Kind: query.Progress, Cursor: w.cursor(), Complete: missed == "", Reason: missed, Beyond: left}
}

// leftOut counts the records of the index that may match but need features of a later version.
func (w *watcher) leftOut() *query.LeftOut {
	var all []*records.Record
	more := false
	for _, p := range w.plans {
		some, cut := index.SomeBeyond(w.service.Index, p, p.Cells(coverCells), w.service.Now(), countedBeyond)
		all, more = append(all, some...), more || cut
	}
	return index.LeftOut(all, 0, more)
}

// beyond reports whether a watch leaves a record out because it needs a feature of a later version.
func (w *watcher) beyond(r *records.Record) bool {
	if r == nil || r.Needs() == "" {
		return false
	}
	p := w.planOf(r)
	return p != nil && p.Beyond(r)
}

// take processes one change and queues its event. A change of what the watch leaves out is a Progress.
func (w *watcher) take(ch index.Change) {
	w.seq = ch.Seq
	if ch.Seq <= w.snapshot {
		return
	}
	was := ch.Old != nil && !ch.Old.Withdrawn() && w.shows(ch.Old)
	is := ch.New != nil && !ch.New.Withdrawn() && w.shows(ch.New)
	switch {
	case was && is:
		w.show(query.Updated, ch.New, w.cursor())
	case is:
		w.show(query.Added, ch.New, w.cursor())
	case was && ch.Kind == index.Withdrawn:
		w.show(query.Withdrawn, ch.New, w.cursor())
	case was && ch.Kind == index.Expired:
		w.show(query.Expired, ch.Old, w.cursor())
	case was && ch.New != nil:
		w.show(query.Removed, ch.New, w.cursor())
	case was:
		w.show(query.Removed, ch.Old, w.cursor())
	}
	if (w.beyond(ch.Old) || w.beyond(ch.New)) && w.leftOut().String() != w.told {
		w.pending = append(w.pending, w.progress())
	}
}

// takeAll processes the changes that a slow viewer has not seen, those of one record as one. Only the last event has a cursor: the
// others are out of order.
func (w *watcher) takeAll(changes []index.Change) {
	newest := changes[len(changes)-1].Seq
	changes = slices.DeleteFunc(slices.Clone(changes), func(ch index.Change) bool { return ch.Seq <= w.snapshot })
	name := func(ch index.Change) records.Name { return cmp.Or(ch.New, ch.Old).Name() }
	before, last := make(map[records.Name]*records.Record), make(map[records.Name]uint64)
	for _, ch := range changes {
		if _, again := last[name(ch)]; !again {
			before[name(ch)] = ch.Old
		}
		last[name(ch)] = ch.Seq
	}
	for _, ch := range changes {
		if n := name(ch); last[n] == ch.Seq {
			ch.Old = before[n]
			w.take(ch)
		}
	}
	w.seq = newest
	for i := range w.pending {
		w.pending[i].Cursor = ""
	}
	if n := len(w.pending); n > 0 {
		w.pending[n-1].Cursor = w.cursor()
	}
}

// updateReachability queues events for providers and endpoints that died or returned. Only the final Progress has the new cursor: a client
// that resumes at an earlier event is reset.
func (w *watcher) updateReachability() {
	if w.service.truth.Epoch() == w.hidden.epoch {
		return
	}
	before, now := w.hidden, w.service.hidden(w.anyHealth())
	w.hidden = now
	for _, r := range w.between(before, now) {
		switch was, is := before.has(r), now.has(r); {
		case was == is || r.Withdrawn() || !w.matches(r):
		case is:
			w.show(query.Removed, r, "")
		default:
			w.show(query.Added, r, "")
		}
	}
	if len(w.pending) > 0 {
		w.pending = append(w.pending, w.progress())
	}
}

// between returns the records that only one of two states may hide, each once.
func (w *watcher) between(a, b hidden) (list []*records.Record) {
	seen := make(map[records.Name]bool)
	add := func(r *records.Record) {
		if !seen[r.Name()] {
			seen[r.Name()] = true
			list = append(list, r)
		}
	}
	for _, pair := range [][2]hidden{{a, b}, {b, a}} {
		for n := range pair[0].dead {
			switch r, ok := w.service.Index.Latest(n); {
			case pair[1].dead[n] == pair[0].dead[n]:
			case n == truth.PeerOf(n.Provider) && pair[1].dead[n] == nil:
				for _, r := range w.service.Index.OfProvider(n.Provider) {
					add(r)
				}
			case ok:
				add(r)
			}
		}
	}
	return list
}

func (w *watcher) shows(r *records.Record) bool { return w.matches(r) && !w.hidden.has(r) }

// show queues an event.
func (w *watcher) show(kind query.EventKind, r *records.Record, cursor string) {
	ev := query.Event{Kind: kind, Cursor: cursor, Record: r}
	if kind == query.Removed {
		ev.Reason = w.removal(r)
	}
	w.pending = append(w.pending, ev)
}

// removal explains why a living record is no longer a match.
func (w *watcher) removal(r *records.Record) string {
	p := w.planOf(r)
	if p == nil {
		p = w.plans[0] // the record changed its type, which no plan accepts
	}
	if why := p.Reject(r); why != "" {
		return why
	}
	d, _ := w.service.truth.Dead(r)
	if d.ID != "" || d.Since.IsZero() {
		return d.Reason()
	}
	return d.Reason() + " since " + d.Since.UTC().Format(time.RFC3339)
}

// requery queries the keepers again at intervals, because live updates have no guarantee, and keeps the matches
// measured. It begins sooner after a search that missed matches, as of a peer that just joined.
func (w *watcher) requery(ctx context.Context) {
	wait := requeryEvery
	if w.missed() != "" {
		wait = lossRest
	}
	search := time.NewTimer(wait)
	defer search.Stop()
	track := time.NewTicker(trackEvery)
	defer track.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-search.C:
			w.askAgain(ctx)
			wait = min(2*wait, requeryEvery)
			search.Reset(wait)
		case <-track.C:
			w.measure()
		}
	}
}

// measure has matches measured until after the next call, the same ones each time.
func (w *watcher) measure() {
	var offers []*records.Record
	for r := range w.service.Index.All() {
		if w.matches(r) && !r.Withdrawn() {
			offers = append(offers, r)
		}
	}
	slices.SortFunc(offers, func(a, b *records.Record) int { return a.Name().Compare(b.Name()) })
	w.service.truth.Want(offers[:min(len(offers), watchedAtMost)])
}

// askAgain puts the keepers' matches of all plans into the index.
func (w *watcher) askAgain(ctx context.Context) {
	for i := range w.plans {
		w.askFor(ctx, i, maxPages)
	}
}

// askFor puts the keepers' matches of a plan into the index, page by page, and notes what the search may miss.
func (w *watcher) askFor(ctx context.Context, i, pages int) {
	q, more, missed, lost := w.plans[i].Query(), true, "", w.lostOf(i)
	for ; more && pages > 0 && ctx.Err() == nil; pages-- {
		var why string
		more, why = w.askPage(ctx, &q)
		missed = cmp.Or(missed, why)
	}
	if more {
		missed = cmp.Or(missed, "there are more matches than were asked for so far")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.losses[i] != lost { // since the search began
		missed = cmp.Or(missed, lostUpdates)
	}
	w.setMissed(i, missed)
}

// setMissed has the next Progress tell why a plan may miss matches. The caller holds w.mu.
func (w *watcher) setMissed(i int, why string) {
	if w.misses[i] != why {
		w.misses[i] = why
		pause.Wake(w.ended)
	}
}

func (w *watcher) lostOf(i int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.losses[i]
}

// lose notes that a live update on a topic did not arrive.
func (w *watcher) lose(t gossip.Topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.plans {
		if slices.Contains(w.topics[i], t) {
			w.losses[i]++
			w.setMissed(i, cmp.Or(w.misses[i], lostUpdates))
			pause.Wake(w.again)
		}
	}
}

// relook queries the keepers after lost live updates.
func (w *watcher) relook(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-w.again:
			w.askAgain(ctx)
			pause.For(ctx, lossRest)
		}
	}
}

// askPage asks for one page, and makes q the question for the next one, if there are more. missed says why the page may lack matches.
func (w *watcher) askPage(ctx context.Context, q *query.Query) (more bool, missed string) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	p, err := queries.Compile(*q, w.service.defaults)
	var found queries.Found
	if err == nil {
		found, err = w.service.Keepers.Query(ctx, p)
	}
	if err != nil {
		if w.service.ctx.Err() == nil {
			w.service.Metrics.Failed("discovery.Watch", err)
		}
		return false, err.Error()
	}
	if !found.Complete {
		missed = cmp.Or(found.Reason, "some keepers did not answer")
	}
	if found.Local || len(found.Records) < p.Limit() {
		return false, missed
	}
	hits := make([]queries.Hit, len(found.Records))
	for i, r := range found.Records {
		hits[i] = p.Hit(r)
	}
	p.Arrange(hits)
	q.After = queries.After(hits[p.Limit()-1].Record)
	return true, missed
}

// missed says why the last searches may miss matches; "" if none does.
func (w *watcher) missed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.misses...)
}

// cursor encodes the shown state: epoch and sequence of the feed and epoch of the measurements, in hexadecimal.
func (w *watcher) cursor() string { return fmt.Sprintf("%x-%x-%x", w.epoch, w.seq, w.hidden.epoch) }

// parse decodes a cursor into the position. resume is false for an empty cursor.
func (w *watcher) parse(cursor string) (resume bool, err error) {
	if cursor == "" {
		return false, nil
	}
	parts := strings.Split(cursor, "-")
	if len(parts) != 3 {
		return false, fault.Invalidf("after", cursor, "malformed cursor: use the cursor of a watch event")
	}
	for i, to := range []*uint64{&w.epoch, &w.seq, &w.hidden.epoch} {
		if *to, err = strconv.ParseUint(parts[i], 16, 64); err != nil {
			return false, fault.Invalidf("after", cursor, "malformed cursor: use the cursor of a watch event")
		}
	}
	return true, nil
}

// lost reports whether the parsed position cannot be resumed: changes are missing, or the hidden ones have
// changed since.
func (w *watcher) lost() bool {
	_, _, gone := w.service.feed.after(w.epoch, w.seq, 1)
	return gone || (!w.anyHealth() && w.hidden.epoch != w.service.truth.Epoch())
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

// lost tells the watches that a live update did not arrive.
func (s *watchSet) lost(t gossip.Topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		w.lose(t)
	}
}

// wants reports whether a watch shows the record. Keepers then do not shed it.
func (s *watchSet) wants(r *records.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		if w.matches(r) {
			return true
		}
	}
	return false
}
