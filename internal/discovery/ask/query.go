// Package ask asks keepers and merges their answers. Each keeper answers a query with its best matches and a bound on the withheld
// ones, so that a merged answer can be proven complete. A keeper cannot forge a record, and a second keeper reveals
// omissions: a query asks two at once, and more after failures and delays. Below full cells it continues at the children.
//
// A resolution returns the newest version of one record by its name: its provider's cell leads to the keepers that
// have it.
package ask

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/clock"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	coverCells       = 9                // cells that cover the disc of a query
	maxSearchedCells = 1024             // cells of one query
	orderedWidth     = 16               // children at a time of a query in an order of places, which may end early
	searchWidth      = 64               // groups of keepers of one query asked at a time
	resolveTimeout   = 10 * time.Second // of a Resolve without a deadline
)

// Asker asks keepers: queries, resolutions. It merges their answers with those of this peer's own index, and adds
// what it learns to the index. It is safe for concurrent use.
type Asker struct {
	*protocol.Life
	AskerConfig
	closest   *keep.Closest
	authority *keep.Authority
	client    *protocol.Client
	cells     *keep.Cells
	intake    *keep.Intake
}

// AskerConfig is what an Asker uses beside other rooms.
type AskerConfig struct {
	Index     *index.Index
	Verifier  *records.Verifier
	Draw      protocol.Draw
	QueryTime time.Duration // of a whole question
	AskTime   time.Duration // of a question to a few keepers
}

// NewAsker returns an asker that adds records to the index by way of in.
func NewAsker(closest *keep.Closest, authority *keep.Authority, c *protocol.Client, cells *keep.Cells, in *keep.Intake, config AskerConfig) *Asker {
	return &Asker{
		Life: c.Life, AskerConfig: config, closest: closest, authority: authority, client: c, cells: cells, intake: in,
	}
}

// Query asks the keepers of the plan's cells, merges the verified answers, and adds the records
// to the index, where newer versions and tombstones win. Below a full cell it searches the
// children that can have a result. The result is the union of the answers
// in rank order, possibly more records than the plan's limit. Found.Complete is false if some
// keepers did not answer. Without any answer Query fails with Unavailable, Timeout or Canceled.
func (a *Asker) Query(ctx context.Context, p *queries.Plan) (found queries.Found, err error) {
	ctx, end, err := a.Begin(ctx, "query", a.QueryTime)
	if err != nil {
		return queries.Found{}, err
	}
	defer func() { end(err) }()
	if found, ok := a.Local(p); ok {
		return found, nil
	}
	return a.Find(ctx, p, p.Cells(coverCells))
}

// Local answers from this peer's own index, if Holds. Else it gives the reason.
func (a *Asker) Local(p *queries.Plan) (queries.Found, bool) {
	cells := p.Cells(coverCells)
	if why := a.lacks(cells); why != "" {
		return queries.Found{Reason: why}, false
	}
	return a.findHere(p, cells), true
}

// Holds reports whether this peer holds all cells of a plan and has compared them with other
// keepers. It ends without a change of Epoch: when nearer peers join, publishers turn to them.
func (a *Asker) Holds(p *queries.Plan) bool { return a.lacks(p.Cells(coverCells)) == "" }

// lacks says why this peer's index may miss records of the cells; "" if it cannot.
func (a *Asker) lacks(cells []records.CellKey) string {
	if why := a.authority.ClockFault(); why != "" {
		return why
	}
	if c, some := a.cells.FirstFull(cells); some {
		return fmt.Sprintf("the cell %s is full: this peer keeps only some of its offers", c)
	}
	if a.unplacedFull(cells) {
		return "this peer has no room for all offers without a place"
	}
	if !a.authority.Settled(cells) {
		return "this peer does not keep all of these offers, or has not yet compared them with their other keepers"
	}
	return ""
}

// Find answers a plan for the given cells.
func (a *Asker) Find(ctx context.Context, p *queries.Plan, cells []records.CellKey) (queries.Found, error) {
	w := newWalk(a, cellQuery{plan: p})
	if err := w.run(ctx, cells); err != nil {
		return queries.Found{}, fault.Wrap("keeper.Query", err)
	}
	beyond := a.beyond(w.groups) // first: a record that needs more may replace a match
	recs := a.reconcile(p, w.asked, w.found())
	reason := cmp.Or(a.timeDoubt(w.groups), w.incomplete(recs))
	matches, atLeast := total(w.groups, len(recs))
	return queries.Found{
		Records:  recs,
		Total:    matches,
		AtLeast:  atLeast || reason != "" || len(w.due) > 0,
		Complete: reason == "",
		Reason:   reason,
		Beyond:   beyond,
		Local:    a.onlyKeeper(w.groups),
		Notes:    w.trace.sorted(),
	}, nil
}

// unanswered returns the error of a query without any answer; nil with an answer.
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

// onlyKeeper reports whether this peer is the only keeper of all the groups.
func (a *Asker) onlyKeeper(groups []group) bool {
	return !slices.ContainsFunc(groups, func(g group) bool {
		return len(g.set.Peers) != 1 || !g.set.Has(a.Self) || g.set.Uncertain != nil
	})
}

// reply is the end of a request to one keeper.
type reply struct {
	from   peer.ID
	answer answer
	err    error
}

// askGroup asks keepers of one group until it has enough full answers: protocol.AskedAtOnce keepers at
// first, one more for each failure, partial answer, or one that turns out to be behind, more while the answers leave doubt, and
// after each hedge delay as many as are missing, increasing each time. With many dead peers,
// one at a time would wait for one dead peer after the other.
func (a *Asker) askGroup(ctx context.Context, q cellQuery, g *group, trace *queryTrace) {
	var asked sync.WaitGroup
	defer asked.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // runs before Wait and ends the slow requests
	q.cells = g.cells
	order := a.askingOrder(g.set)
	a.drawSecond(order[:1+cmp.Or(g.set.Inner, len(g.set.Outer), len(order)-1)])
	if trace.enabled {
		trace.add("cells %s have %d keepers", protocol.CellNames(q.cells), len(order))
	}
	replies := make(chan reply, len(order))
	g.diverse = a.diverse(order)
	next, awaited := 0, make(map[peer.ID]bool) // late replies are not awaited, but still count
	open := make(map[peer.ID]bool)             // asked, without a reply
	probed := make(chan probe, len(order)*maxProbes)
	prove := func(p probe) {
		of := g.answers[p.of].from
		asked.Go(func() { probed <- a.askProbe(ctx, of, p) })
	}
	ask := func() {
		if next < len(order) {
			a.prefer(order[next:], g.commonNetwork())
			id := order[next]
			next++
			awaited[id], open[id] = true, true
			asked.Go(func() { replies <- a.ask(ctx, id, q, trace) })
		}
	}
	for range g.needed() {
		ask()
	}
	delay := a.client.HedgeDelay(order[:next])
	hedge := time.NewTimer(delay)
	defer hedge.Stop()
	for hedges, last := 0, false; len(open)+len(g.unproven()) > 0 && g.full() < g.wanted(); {
		lost := false // an answer that this peer counted on
		select {
		case r := <-replies:
			delete(awaited, r.from)
			delete(open, r.from)
			lost = !g.add(r)
		case p := <-probed:
			full := g.answers[p.of].full
			a.conclude(p, g, trace)
			lost = full && !g.answers[p.of].full
		case <-hedge.C:
			hedges++
			clear(awaited)
			for range max(hedges, g.needed()-g.full()) {
				ask()
			}
			delay += delay / 2 // if all keepers are slow, the load may be the cause
			left := slices.AppendSeq(g.unproven(), maps.Keys(open))
			waits := func(id peer.ID) bool { return !a.client.Avoided(id) }
			if next == len(order) && !slices.ContainsFunc(left, waits) { // all failed before: one delay, not a timeout
				if last {
					g.failure = cmp.Or(g.failure, errNoAnswer)
					return
				}
				last, delay = true, max(delay, a.client.HedgeDelay(left))
			}
			hedge.Reset(delay)
		case <-ctx.Done():
			g.failure = ctx.Err()
			return
		}
		if g.full() >= g.wanted() {
			g.judge(q.plan, a.Now(), prove)
		}
		missing := g.wanted() - g.full() - len(g.unproven()) - len(awaited)
		if lost && g.full() < g.wanted() {
			missing = max(missing, 1)
		}
		for range missing {
			ask()
		}
	}
}

// add adds a reply and reports whether it is a full answer.
func (g *group) add(r reply) bool {
	if len(r.answer.lacks) > 0 {
		g.older++
		g.unknown = append(g.unknown, r.answer.lacks...)
	}
	if r.err != nil {
		g.failure = r.err
		return false
	}
	if !r.answer.own && slices.Contains(g.set.Outer, r.from) {
		r.answer.around, r.answer.full = true, true // the group is incomplete all the same
	}
	g.answers = append(g.answers, r.answer)
	return r.answer.full
}

// askingOrder returns the keepers in the order to ask them. This peer is first if it is a keeper, the load
// spreads over the askers, and one asker uses the same streams each time. Of chosen keepers only one is asked before drawn ones around them.
func (a *Asker) askingOrder(set *keep.Set) []peer.ID {
	order := a.client.Rank(set.Nearest(a.Self))
	inner, far := slices.Clone(set.Outer[:set.Inner]), slices.Clone(set.Outer[set.Inner:])
	a.Draw.Mix(inner)
	a.Draw.Mix(far)
	first := min(1, len(order))
	return slices.Concat(order[:first], a.client.Rank(inner), a.client.Rank(far), order[first:])
}

// drawSecond draws who is asked beside the first peer of an order, so that no asker always meets the same two: among those of another
// network (/16, or /32 of IPv6) than the first, if there are some. Peers that failed a short time ago stay last.
func (a *Asker) drawSecond(order []peer.ID) {
	var able, apart []int
	for i := 1; i < len(order) && !a.client.Avoided(order[i]); i++ {
		able = append(able, i)
		if a.wide(order[i]) != a.wide(order[0]) {
			apart = append(apart, i)
		}
	}
	if len(apart) > 0 {
		able = apart
	}
	if len(able) > 0 {
		i := able[a.Draw(len(able))]
		order[1], order[i] = order[i], order[1]
	}
}

// wide returns the network (/16, or /32 of IPv6) of a peer, zero if unknown.
func (a *Asker) wide(id peer.ID) netip.Prefix {
	p, _ := a.client.PrefixOf(id)
	bits := 16
	if p.Addr().Is6() {
		bits = 32
	}
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}

// diverse reports whether peers belong to more than one network.
func (a *Asker) diverse(ids []peer.ID) bool {
	first, _ := a.client.PrefixOf(ids[0])
	return slices.ContainsFunc(ids[1:], func(id peer.ID) bool {
		other, _ := a.client.PrefixOf(id)
		return other != first
	})
}

// prefer moves a peer of another network to the front, if all answers so far come from one.
func (a *Asker) prefer(ids []peer.ID, network netip.Prefix) {
	if !network.IsValid() {
		return
	}
	at := slices.IndexFunc(ids, func(id peer.ID) bool {
		other, _ := a.client.PrefixOf(id)
		return other != network
	})
	if at > 0 {
		id := ids[at]
		copy(ids[1:], ids[:at])
		ids[0] = id
	}
}

// ask sends the query to one keeper or to this peer itself.
func (a *Asker) ask(ctx context.Context, id peer.ID, q cellQuery, trace *queryTrace) reply {
	if id == a.Self {
		own := a.answerHere(q)
		trace.add("asked this peer about %d cells: %s", len(q.cells), own)
		return reply{from: id, answer: own}
	}
	start := a.Now()
	ctx, end, err := a.Begin(ctx, "ask", a.AskTime)
	if err != nil {
		return reply{from: id, err: err}
	}
	got, err := a.askPeer(ctx, id, q)
	took := a.Now().Sub(start)
	a.client.Observe(ctx, id, took, err)
	end(err)
	if err != nil {
		if silence := fault.KindOf(err); (silence == fault.Timeout || silence == fault.Unavailable) && a.client.RanLate(took) {
			err = fault.As("", silence, errLate)
		}
		trace.add("asked %s about %d cells: failed after %s: %v", id, len(q.cells), took.Round(time.Microsecond), err)
		return reply{from: id, answer: answer{lacks: got.lacks}, err: err}
	}
	trace.add("asked %s about %d cells: %s in %s", id, len(q.cells), got, took.Round(time.Microsecond))
	got.from = id
	if from, ok := a.client.PrefixOf(id); ok {
		got.network = from
	}
	return reply{from: id, answer: got}
}

// askPeer asks one keeper. It asks a keeper of an older version without the filters that it does not know, and
// filters its answer. Lacks is set with an error too.
func (a *Asker) askPeer(ctx context.Context, id peer.ID, q cellQuery) (answer, error) {
	wider := q
	var dropped []string
	wider.plan, dropped = widen(q.plan, a.client.FiltersOf(id))
	for {
		got, err := a.askPlan(ctx, id, wider)
		if err == nil && len(dropped) > 0 {
			got.narrow(q)
		}
		got.lacks = append(protocol.Lacks(err), dropped...)
		plan, more := widen(q.plan, a.client.FiltersOf(id))
		if fault.KindOf(err) != fault.Unsupported || len(more) <= len(dropped) {
			return got, err
		}
		wider.plan, dropped = plan, more
	}
}

// requestOf returns the request for a query at a keeper.
func requestOf(q cellQuery) *pb.QueryRequest {
	req := &pb.QueryRequest{Query: queries.Proto(q.plan.Query()), Menu: q.menu}
	req.Query.Explain = false // only the asker explains
	req.Cells = protocol.CellNames(q.cells)
	if !math.IsInf(q.worst, 1) {
		req.Worst = &q.worst
	}
	return req
}

// askPlan asks one keeper for the matches of a plan.
func (a *Asker) askPlan(ctx context.Context, id peer.ID, q cellQuery) (answer, error) {
	req := requestOf(q)
	resp, refused, err := a.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Query{Query: req}})
	if refused && fault.KindOf(err) != fault.Unsupported {
		return answer{}, fault.As("keeper.ask", fault.Unavailable, err) // the kind of a refusal concerns this peer, not the caller
	}
	if err != nil {
		return answer{}, err
	}
	got, err := verifyAnswer(q, resp.GetQuery(), a.Verifier, a.Now())
	for _, left := range got.left {
		a.CountLeft(left)
	}
	if resp.TimeMs > 0 && err == nil {
		off := false
		got.apart, off = a.client.Apart(resp.TimeMs)
		got.full = got.full && !off
	}
	return got, err
}

// timeDoubt returns the reason why this peer's clock may hide records of some answers; "" for a
// clock that is right, or that agrees with the clocks of the keepers whose records it refuses.
func (a *Asker) timeDoubt(groups []group) string {
	if fault := a.authority.ClockFault(); fault != "" {
		return fault
	}
	if a.client.Clock().State == clock.Known {
		return ""
	}
	for _, g := range groups {
		for _, x := range g.answers {
			if n := x.untimely(); n > 0 && x.apart.Abs() > clock.Warn {
				return fmt.Sprintf("this peer's clock leaves out %s as not valid now: it differs from the keeper's by %s",
					fault.Counted(n, "record"), x.apart.Abs().Round(time.Second))
			}
		}
	}
	return ""
}

// reconcile adds the records to the index. Of each service the version in the index wins: a
// tombstone removes the record, and a newer version replaces it if it matches too. The result is
// in rank order.
func (a *Asker) reconcile(p *queries.Plan, cells []records.CellKey, found []*records.Record) []*records.Record {
	now := a.Now()
	hits := make([]queries.Hit, 0, len(found))
	for _, r := range found {
		if _, err := a.intake.Put(r); err != nil && fault.KindOf(err) == fault.Exists {
			newer, ok := a.Index.Get(r.Name())
			if !ok || newer.Expired(now) || !(cellQuery{plan: p, cells: cells}).matches(newer) {
				continue
			}
			r = newer
		}
		hits = append(hits, p.Hit(r))
	}
	p.Arrange(hits)
	return recordsOf(hits)
}

func recordsOf(hits []queries.Hit) []*records.Record {
	recs := make([]*records.Record, len(hits))
	for i, h := range hits {
		recs[i] = h.Record
	}
	return recs
}

// String describes an answer for a query trace.
func (a answer) String() string {
	var b strings.Builder
	of := ""
	if a.atLeast {
		of = "at least "
	}
	fmt.Fprintf(&b, "%d of %s%d matches", len(a.records), of, a.total)
	if a.withheld {
		fmt.Fprintf(&b, ", best withheld value %g", a.bound)
	}
	if n := len(a.crowded); n > 0 {
		fmt.Fprintf(&b, ", %d full cells", n)
	}
	if len(a.lacks) > 0 {
		fmt.Fprintf(&b, ", asked without %s, which it does not know", strings.Join(a.lacks, ", "))
	}
	if !a.full {
		b.WriteString(", not a full answer for all the cells")
	}
	return b.String()
}

// queryTrace collects the notes of an explained query. It is safe for concurrent use.
type queryTrace struct {
	enabled bool

	mu    sync.Mutex // guards lines
	lines []string
}

func (t *queryTrace) add(format string, args ...any) {
	if !t.enabled {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

// sorted returns the notes in an order that does not depend on response times.
func (t *queryTrace) sorted() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.Sort(t.lines)
	return t.lines
}
