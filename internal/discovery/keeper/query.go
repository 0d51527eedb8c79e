package keeper

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Query asks the keepers of the plan's cells, merges what verifies, and takes it into the
// index, whose fresher versions and tombstones win. Where a cell is divided it asks on among
// the children that can have a result, best bounds first. What it finds is the union of the
// answers in rank order, which may be more than the plan's limit. An answer from only
// some of the keepers is an answer that says so; with none at all it fails with
// Unavailable, Timeout or Canceled.
func (k *Keeper) Query(ctx context.Context, p *query.Plan) (found query.Found, err error) {
	ctx, end, err := k.begin(ctx, "query", k.Limits.Query)
	if err != nil {
		return query.Found{}, err
	}
	defer func() { end(err) }()
	if found, ok := k.Local(p); ok {
		return found, nil
	}
	return k.find(ctx, p, p.Cells(coverCells))
}

// Local answers from this peer's own index where that is as good as asking: it keeps all
// the cells undivided, and has compared them with their other keepers. Otherwise it is false.
func (k *Keeper) Local(p *query.Plan) (query.Found, bool) {
	cells := p.Cells(coverCells)
	if !k.settled(cells) || !k.splits.holdsAll(cells) {
		return query.Found{}, false
	}
	return k.findHere(p, cells), true
}

// find is Query among cells given.
func (k *Keeper) find(ctx context.Context, p *query.Plan, cells []records.CellKey) (query.Found, error) {
	d := newTreeSearch(k, p)
	if err := d.run(ctx, cells); err != nil {
		return query.Found{}, fault.Wrap("keeper.Query", err)
	}
	recs := k.reconcile(p, d.cells, union(d.groups))
	reason := d.incomplete(recs)
	matches, atLeast := total(d.groups, len(recs))
	return query.Found{
		Records:  recs,
		Total:    matches,
		AtLeast:  atLeast || reason != "",
		Complete: reason == "",
		Reason:   reason,
		Local:    k.onlyKeeper(d.groups),
		Notes:    d.trace.sorted(),
	}, nil
}

// keepersOf places cells, several at once.
func (k *Keeper) keepersOf(ctx context.Context, cells []records.CellKey) ([]*keeperSet, error) {
	sets := make([]*keeperSet, len(cells))
	errs := make([]error, len(cells))
	place := func(i int) { sets[i], errs[i] = k.closest.keepers(ctx, cells[i]) }
	first := 0
	if len(cells) > 0 && k.Router.Size() < Network {
		place(0) // in a small network the first answer is that of all
		first = 1
	}
	bounded(lookups, len(cells)-first, func(i int) { place(first + i) })
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// bounded calls do(0) to do(n-1), at most width at once, and waits.
func bounded(width, n int, do func(int)) {
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

// unanswered is the error of a query that got no answer at all.
func unanswered(ctx context.Context, groups []group) error {
	var failure error
	for _, g := range groups {
		if len(g.answers) > 0 {
			return nil
		}
		if g.failure != nil {
			failure = g.failure
		}
	}
	switch {
	case ctx.Err() != nil:
		return fault.Wrap("", ctx.Err())
	case failure != nil:
		return fault.As("", fault.Unavailable, failure)
	default:
		return fault.As("", fault.Unavailable, errNoAnswer)
	}
}

// onlyKeeper reports whether this peer keeps all the cells and nobody else does.
func (k *Keeper) onlyKeeper(groups []group) bool {
	return !slices.ContainsFunc(groups, func(g group) bool {
		return len(g.set.peers) != 1 || !g.set.has(k.Self) || g.set.uncertain != nil
	})
}

// reply is one keeper's end of a question.
type reply struct {
	from   peer.ID
	answer answer
	err    error
}

// askGroup asks keepers of one group until enough gave a full answer: askedAtOnce at first, another
// one for each that fails or does not speak for all cells, further ones when the answers leave
// doubt, and when those asked take longer than they usually do as many as are missing, more each
// time: where many are gone, asking one after the other would meet one dead peer after the other.
func (k *Keeper) askGroup(ctx context.Context, q cellQuery, g *group, notes *queryTrace) {
	var asked sync.WaitGroup
	defer asked.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait: whoever is slow is not waited for
	q.cells = g.cells
	order := k.askingOrder(g.set)
	if notes.enabled {
		notes.add("cells %s are kept by %d peers", q.names(), len(order))
	}
	replies := make(chan reply, len(order))
	g.diverse = k.diverse(order)
	next, awaited := 0, make(map[peer.ID]bool) // who is late is not awaited, but heard
	ask := func() {
		if next < len(order) {
			k.prefer(order[next:], g.commonNetwork())
			id := order[next]
			next++
			awaited[id] = true
			asked.Go(func() { replies <- k.ask(ctx, id, q, notes) })
		}
	}
	for range g.needed() {
		ask()
	}
	patience := k.stats.hedgeDelay(slices.DeleteFunc(slices.Clone(order[:next]), func(id peer.ID) bool { return id == k.Self }))
	hedge := time.NewTimer(patience)
	defer hedge.Stop()
	for heard, hedges := 0, 0; heard < next && g.full() < g.wanted(); {
		select {
		case r := <-replies:
			heard++
			delete(awaited, r.from)
			if full := g.add(r); !full || len(awaited) == 0 && g.full() < g.wanted() {
				ask()
			}
		case <-hedge.C:
			hedges++
			clear(awaited)
			for range max(hedges, g.needed()-g.full()) {
				ask()
			}
			patience += patience / 2 // slower and slower: when all are slow, the load may be why
			hedge.Reset(patience)
		case <-ctx.Done():
			g.failure = ctx.Err()
			return
		}
	}
}

// add takes a reply in and reports whether it is a full answer.
func (g *group) add(r reply) bool {
	if r.err != nil {
		g.failure = r.err
		return false
	}
	g.answers = append(g.answers, r.answer)
	return r.answer.full
}

// askingOrder puts the keepers that failed lately last, and otherwise those closest to
// this peer's own id first: itself, if it is a keeper, and then others that differ from
// asker to asker, so that the load spreads, but not from time to time, so that streams are reused.
func (k *Keeper) askingOrder(set *keeperSet) []peer.ID {
	now := k.Now()
	order := nearest(string(k.Self), set.peers, len(set.peers))
	var last []peer.ID
	first := slices.DeleteFunc(order, func(id peer.ID) bool {
		avoided := k.stats.avoided(id, now)
		if avoided {
			last = append(last, id)
		}
		return avoided
	})
	return append(k.spread(first), last...)
}

// spread reorders peers so that the first ones are of distinct address groups: whoever has
// many peers in one network is not asked twice before another one is.
func (k *Keeper) spread(ids []peer.ID) []peer.ID {
	seen := make(map[netip.Prefix]bool)
	var again []peer.ID
	first := slices.DeleteFunc(ids, func(id peer.ID) bool {
		from, ok := k.prefixOfPeer(id)
		twice := ok && seen[from]
		seen[from] = true
		if twice {
			again = append(again, id)
		}
		return twice
	})
	return append(first, again...)
}

// diverse reports whether peers are of more than one network.
func (k *Keeper) diverse(ids []peer.ID) bool {
	first, _ := k.prefixOfPeer(ids[0])
	return slices.ContainsFunc(ids[1:], func(id peer.ID) bool {
		other, _ := k.prefixOfPeer(id)
		return other != first
	})
}

// prefer puts first a peer of another network than the one that all answers are from so far.
func (k *Keeper) prefer(ids []peer.ID, party netip.Prefix) {
	if !party.IsValid() {
		return
	}
	at := slices.IndexFunc(ids, func(id peer.ID) bool {
		other, _ := k.prefixOfPeer(id)
		return other != party
	})
	if at > 0 {
		id := ids[at]
		copy(ids[1:], ids[:at])
		ids[0] = id
	}
}

// ask puts a question to one keeper, which may be this peer.
func (k *Keeper) ask(ctx context.Context, id peer.ID, q cellQuery, notes *queryTrace) reply {
	if id == k.Self {
		a := k.answerHere(q)
		notes.add("asked this peer itself about %d cells: %s", len(q.cells), a)
		return reply{from: id, answer: a}
	}
	start := k.Now()
	ctx, end, err := k.begin(ctx, "ask", k.Limits.Ask)
	if err != nil {
		return reply{from: id, err: err}
	}
	a, err := k.askPeer(ctx, id, q)
	took := k.Now().Sub(start)
	k.observe(ctx, id, took, err)
	end(err)
	if err != nil {
		notes.add("asked %s about %d cells: failed after %s: %v", id, len(q.cells), took.Round(time.Microsecond), err)
		return reply{from: id, err: err}
	}
	notes.add("asked %s about %d cells: %s in %s", id, len(q.cells), a, took.Round(time.Microsecond))
	if from, ok := k.prefixOfPeer(id); ok {
		a.network = from
	}
	return reply{from: id, answer: a}
}

func (k *Keeper) askPeer(ctx context.Context, id peer.ID, q cellQuery) (answer, error) {
	req := &pb.QueryRequest{Query: q.plan.Query().Proto()}
	req.Query.Explain = false // explanations are the asker's
	req.Cells = q.names()
	if !math.IsInf(q.worst, 1) {
		req.Worst = &q.worst
	}
	resp, refused, err := k.call(ctx, id, &pb.Request{Op: &pb.Request_Query{Query: req}})
	if refused {
		return answer{}, fault.As("keeper.ask", fault.Unavailable, err) // whatever kind it says: its kinds are about us
	}
	if err != nil {
		return answer{}, err
	}
	return verifyAnswer(q, resp.GetQuery(), k.Verifier, k.Now())
}

// observe draws the consequences of how a peer answered, or did not.
func (k *Keeper) observe(ctx context.Context, id peer.ID, took time.Duration, err error) {
	switch {
	case err == nil:
		k.stats.observe(id, took)
	case fault.KindOf(err) == fault.Unauthentic:
		k.Recorder.Distrusted(fault.KindOf(err).String())
		k.Logger.Warn("keeper gave an answer that does not hold", "peer", id, "error", err)
		k.stats.avoid(id, k.Now().Add(distrustFor))
	case fault.KindOf(err) == fault.Canceled || ctx.Err() == context.Canceled:
		// nobody waited for it any more: others, asked later, were faster
		if took > k.stats.hedgeDelay([]peer.ID{id}) {
			k.suspect(id)
		}
	default:
		k.suspect(id)
	}
}

// suspect has a peer asked last for a while, and looked into whether it is gone.
func (k *Keeper) suspect(id peer.ID) {
	k.stats.avoid(id, k.Now().Add(avoidFor))
	k.closest.refreshSets(id)
	if r, ok := k.Router.(suspectReporter); ok {
		r.Suspect(id)
	}
}

// suspectReporter is a Router that looks into it when a peer does not answer.
type suspectReporter interface {
	// Suspect has peers measured soon, and dropped from the routing table if they are gone.
	Suspect(ids ...peer.ID)
}

// reconcile takes found records into the index and lets what the index knows win: a
// tombstone ends a record, and a fresher version takes its place if it matches as well.
// The result is in rank order.
func (k *Keeper) reconcile(p *query.Plan, cells []records.CellKey, found []*records.Record) []*records.Record {
	now := k.Now()
	hits := make([]query.Hit, 0, len(found))
	for _, r := range found {
		if _, err := k.put(r); err != nil && fault.KindOf(err) == fault.Exists {
			fresher, ok := k.Index.Get(r.Name())
			if !ok || fresher.Expired(now) || !(cellQuery{plan: p, cells: cells}).matches(fresher) {
				continue
			}
			r = fresher
		}
		hits = append(hits, query.Hit{Record: r, Value: p.Value(r)})
	}
	slices.SortFunc(hits, query.Hit.Compare)
	recs := make([]*records.Record, len(hits))
	for i, h := range hits {
		recs[i] = h.Record
	}
	return recs
}

// String tells an answer in a note.
func (a answer) String() string {
	var b strings.Builder
	of := ""
	if a.atLeast {
		of = "at least "
	}
	fmt.Fprintf(&b, "%d of %s%d matches", len(a.records), of, a.total)
	if a.withheld {
		fmt.Fprintf(&b, ", none withheld better than %g", a.bound)
	}
	if n := len(a.splits); n > 0 {
		fmt.Fprintf(&b, ", %d of the cells divided", n)
	}
	if !a.full {
		b.WriteString(", not a keeper of all the cells")
	}
	return b.String()
}

// queryTrace collects what an explained query tells about its own course. It is safe for concurrent use.
type queryTrace struct {
	enabled bool

	mu    sync.Mutex // guards said
	lines []string
}

func (j *queryTrace) add(format string, args ...any) {
	if !j.enabled {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// sorted gives the notes, in an order that does not depend on who was faster.
func (j *queryTrace) sorted() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	slices.Sort(j.lines)
	return j.lines
}
