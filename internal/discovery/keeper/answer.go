package keeper

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// cellQuery is what the keepers of one group of cells are asked.
type cellQuery struct {
	plan  *query.Plan
	cells []records.CellKey
	worst float64 // matches of larger values are of no use; +Inf for none
}

// answer is what one keeper said to a question, verified.
type answer struct {
	records  []*records.Record // matches
	total    int               // matches it holds
	atLeast  bool              // total is a lower bound
	withheld bool              // some of them are not in records
	bound    float64           // rank value of the best withheld; nothing without withheld
	full     bool              // it keeps all the cells
	network  netip.Prefix      // the network that it was given from; the zero prefix for none that says anything

	splits map[records.CellKey]cell.SplitInfo // those of the cells that it has divided
}

// group is what was learnt about one group.
type group struct {
	cells   []records.CellKey
	set     *keeperSet
	answers []answer
	failure error // keepersrent the keeper that failed last
	diverse bool  // the keepers are of more than one network
}

// full is the number of answers that speak for all of the group's cells.
func (g *group) full() int {
	n := 0
	for _, a := range g.answers {
		if a.full {
			n++
		}
	}
	return n
}

// needed is the number of full answers that make the group's answer complete: two, so
// that the omission of one keeper shows, or one where only one peer keeps the cells.
func (g *group) needed() int { return min(askedAtOnce, len(g.set.peers)) }

// enabled is how many full answers to wait for: those needed, one more while nobody knows of
// a match or all are of one network though not all keepers are, and two while they do not agree
// on how many matches there are. A keeper may hide what it holds, and whoever has many peers
// seldom has them in many networks.
func (g *group) wanted() int {
	n := g.needed()
	var first *answer // full one
	none, agreed := true, true
	for i := range g.answers {
		a := &g.answers[i]
		if !a.full {
			continue
		}
		if first == nil {
			first = a
		}
		none, agreed = none && a.total == 0, agreed && a.agrees(first)
	}
	switch {
	case g.full() < n || len(g.set.peers) <= n:
	case none:
		n++
	case !agreed:
		n += 2
	case g.diverse && g.commonNetwork().IsValid():
		n++
	}
	return min(n, len(g.set.peers))
}

// commonNetwork is the network that all full answers are from; the zero prefix if there is no one such.
func (g *group) commonNetwork() netip.Prefix {
	var party netip.Prefix
	for _, a := range g.answers {
		switch {
		case !a.full:
		case !a.network.IsValid() || party.IsValid() && party != a.network:
			return netip.Prefix{}
		default:
			party = a.network
		}
	}
	return party
}

// agrees reports whether two keepers seem to hold as many matches: by their totals or,
// where one did not count on, by the best match of which they say that there is more.
func (a *answer) agrees(b *answer) bool {
	if !a.atLeast && !b.atLeast {
		return a.total == b.total
	}
	return a.withheld == b.withheld && a.bound == b.bound
}

// opener verifies an envelope at a time; *records.Verifier is one.
type opener interface {
	Open(envelope []byte, now time.Time) (*records.Record, error)
}

// differsyAnswer verifies a keeper's answer. A record that is not valid now is left out: clocks
// differ. It returns Unauthentic for what no honest keeper says: forged records, records that
// lapsed long ago, that do not match or are not of the cells, more than was asked for, a
// bound that is no number, divisions that make no sense.
func verifyAnswer(q cellQuery, resp *pb.QueryResponse, verifier opener, now time.Time) (answer, error) {
	if resp == nil {
		return answer{}, breach("no answer to a query")
	}
	if n := len(resp.Envelopes); n > q.plan.Limit() {
		return answer{}, breach("%d records where %d were asked for", n, q.plan.Limit())
	}
	if resp.Withheld && math.IsNaN(resp.Bound) {
		return answer{}, breach("a bound that is no number")
	}
	a := answer{
		records:  make([]*records.Record, 0, len(resp.Envelopes)),
		total:    int(min(resp.Total, math.MaxInt32)),
		atLeast:  resp.TotalAtLeast,
		withheld: resp.Withheld,
		bound:    resp.Bound,
		full:     !lacksAny(resp.NotKept, q.cells),
	}
	for _, envelope := range resp.Envelopes {
		r, err := verifier.Open(envelope, now)
		switch {
		case fault.KindOf(err) == fault.Conflict && err != nil:
			if _, err = verifier.Open(envelope, now.Add(-staleMax)); err != nil && fault.FieldOf(err) == "expires_at" {
				return answer{}, breach("a record that lapsed long ago: %w", err)
			}
			continue
		case err != nil:
			return answer{}, breach("a record that does not verify: %w", err)
		case !q.matches(r):
			return answer{}, breach("a record that was not asked for, %s", r.Name())
		}
		a.records = append(a.records, r)
	}
	return a, a.setSplits(q, resp.Splits)
}

// split takes in which of the cells asked are divided.
func (a *answer) setSplits(q cellQuery, splits []*pb.Split) error {
	a.splits = make(map[records.CellKey]cell.SplitInfo, len(splits))
	for _, m := range splits {
		c, err := records.ParseCellKey(m.GetCell())
		if _, twice := a.splits[c]; err != nil || twice || !slices.Contains(q.cells, c) {
			return breach("a division of a cell that was not asked for")
		}
		if a.splits[c], err = cell.SplitInfoFromProto(c.Cell, m); err != nil {
			return breach("a division that is none: %w", err)
		}
	}
	return nil
}

func breach(format string, args ...any) error {
	return fault.New("keeper.ask", fault.Unauthentic, format, args...)
}

// matches reports whether a record is an answer to the question.
func (q cellQuery) matches(r *records.Record) bool {
	return q.plan.Match(r) && slices.ContainsFunc(q.cells, r.In)
}

// names are the keys of the cells.
func (q cellQuery) names() []string {
	names := make([]string, len(q.cells))
	for i, c := range q.cells {
		names[i] = c.String()
	}
	return names
}

// lacksAny reports whether one of the cells is among those not kept.
func lacksAny(notKept []string, cells []records.CellKey) bool {
	return slices.ContainsFunc(cells, func(c records.CellKey) bool { return slices.Contains(notKept, c.String()) })
}

// answerHere is this peer's own answer.
func (k *Keeper) answerHere(q cellQuery) answer {
	found := k.Index.Search(q.plan, index.SearchOptions{Now: k.Now(), Cells: geoCells(q.cells), AtLeast: !q.plan.ExactTotal()})
	a := answer{total: found.Total, atLeast: !found.Exact, withheld: found.Total > len(found.Hits), bound: found.Next}
	a.full = !slices.ContainsFunc(q.cells, func(c records.CellKey) bool { return !k.closest.authoritative(c) })
	for _, h := range found.Hits {
		a.records = append(a.records, h.Record)
	}
	if err := a.setSplits(q, k.splits.forQuery(q.plan, q.cells)); err != nil {
		k.Logger.Error("this peer does not understand itself", "error", err)
	}
	return a
}

// union gives the freshest version of every service in the answers, by name.
func union(groups []group) []*records.Record {
	freshest := make(map[records.Name]*records.Record)
	for _, g := range groups {
		for _, a := range g.answers {
			for _, r := range a.records {
				if known, ok := freshest[r.Name()]; !ok || records.Compare(r, known) > 0 {
					freshest[r.Name()] = r
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(freshest), func(a, b *records.Record) int { return a.Name().Compare(b.Name()) })
}

// total estimates how many matches there are: groups have no cell in common, and the
// keepers of a group hold the same records, or should. Of a divided cell only the
// children asked count, its sample being among their records. AtLeast says that there may
// be more: not all children were asked, or a keeper did not count on.
func total(groups []group, found int) (sum int, atLeast bool) {
	for _, g := range groups {
		most := 0
		for _, a := range g.answers {
			atLeast = atLeast || a.atLeast || len(a.splits) > 0
			if len(a.splits) == 0 {
				most = max(most, a.total)
			}
		}
		sum += most
	}
	return max(sum, found), atLeast
}

// incomplete says why the merged records may not hold the best matches; "" when they do.
func incomplete(plan *query.Plan, recs []*records.Record, groups []group) string {
	for i := range groups {
		if why := groups[i].incomplete(); why != "" {
			return why
		}
	}
	kth := worstValue(plan, recs)
	for _, g := range groups {
		for _, a := range g.answers {
			if a.withheld && (len(recs) < plan.Limit() || kth > a.bound) {
				return fmt.Sprintf("a keeper withheld matches that may rank among the first %d", plan.Limit())
			}
		}
	}
	return ""
}

// worstValue is the rank value of the last record within the limit; +Inf while there is room.
func worstValue(plan *query.Plan, recs []*records.Record) float64 {
	best := query.NewTopK(plan.Limit())
	for _, r := range recs {
		best.Offer(query.Hit{Record: r, Value: plan.Value(r)})
	}
	if last, ok := best.Worst(); ok {
		return last.Value
	}
	return math.Inf(1)
}

// incomplete says why a group's answers are not all there is; "" when they are.
func (g *group) incomplete() string {
	where := g.cells[0].String()
	if n := len(g.cells); n > 1 {
		where = fmt.Sprintf("%s and %d more cells", where, n-1)
	}
	if g.set.uncertain != nil {
		return fmt.Sprintf("the keepers of %s are not all known: %s", where, fault.Message(g.set.uncertain))
	}
	if got, need := g.full(), g.needed(); got < need {
		why := fmt.Sprintf("%d of %d keepers answered for %s", got, need, where)
		if g.failure != nil {
			why += ": " + fault.Message(g.failure)
		}
		return why
	}
	return ""
}

// groupCells joins the cells that the same peers keep, in the order of their first cells.
func groupCells(cells []records.CellKey, sets []*keeperSet) []group {
	var groups []group
	at := make(map[string]int)
	for i, set := range sets {
		j, ok := at[set.id]
		if !ok {
			j = len(groups)
			at[set.id] = j
			groups = append(groups, group{set: set})
		}
		groups[j].cells = append(groups[j].cells, cells[i])
		if set.uncertain != nil {
			groups[j].set = set
		}
	}
	return groups
}

var errNoAnswer = errors.New("no keeper answered")
