package ask

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/clean"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// maxDoubt bounds a keeper's reason for its lack of authority, in bytes.
const maxDoubt = 200

// cellQuery is a query to the keepers of one group of cells.
type cellQuery struct {
	plan  *queries.Plan
	cells []records.CellKey
	worst float64 // the asker has no use for matches of larger values; +Inf for no bound

	menu bool // the asker counts
}

// answer is a keeper's verified answer to a cellQuery.
type answer struct {
	from     peer.ID
	records  []*records.Record // matches
	total    int               // number of matches at the keeper
	atLeast  bool              // total is a lower bound
	withheld bool              // records misses some matches
	bound    float64           // rank value of the best withheld match; undefined without one
	full     bool              // the peer keeps all the cells, and is not behind
	around   bool              // the peer is one of Set.Outer: it may lack records
	behind   bool              // the peer lacks a change that another keeper has
	outdated bool              // the change is old: the peer missed or hides it
	probed   []records.Name    // records that another keeper lists
	pending  int               // probes without an end
	awaits   []*records.Record // young records among probed that the peer lacks
	own      bool              // of this peer itself
	doubt    string            // why a keeper of the cells has no authority for them; "" for none
	network  netip.Prefix      // of the peer; zero if unknown
	lacks    []string          // fields of the query that the keeper does not know
	left     []error           // why records were left out without blame; see receive
	apart    time.Duration     // this peer's clock minus the keeper's

	beyond     []*records.Record // may match, but need features that this peer lacks
	moreBeyond bool              // beyond misses some

	crowded  []records.CellKey // full cells of the query: their children have the records
	unplaced bool              // the peer lacks records without a place

	menu query.Menu // of all matches, if asked for
}

// group is some cells with the same keepers, and their answers.
type group struct {
	cells   []records.CellKey
	set     *keep.Set
	answers []answer
	failure error // of the last failed keeper
	diverse bool  // the keepers belong to more than one network

	older   int      // number of asked keepers that do not know a field of the query
	unknown []string // these fields, with repetitions
}

// full returns the number of answers that cover all cells of the group, those with pending probes left out.
func (g *group) full() int { return count(g.answers, (*answer).proven) }

// proven reports whether an answer is full, as far as this peer can tell.
func (a *answer) proven() bool { return a.full && a.pending == 0 }

// unproven returns the peers whose answers are full but for pending probes.
func (g *group) unproven() (ids []peer.ID) {
	for _, a := range g.answers {
		if a.full && a.pending > 0 {
			ids = append(ids, a.from)
		}
	}
	return ids
}

// count counts the values for which a condition holds.
func count[T any](list []T, is func(*T) bool) (n int) {
	for i := range list {
		if is(&list[i]) {
			n++
		}
	}
	return n
}

// foreign reports whether the group has no full answer of this peer itself.
func (g group) foreign() bool {
	return !slices.ContainsFunc(g.answers, func(a answer) bool { return a.own && a.full })
}

// crowded reports whether a cell is full at the group's keepers: most of the full answers, or half of them, say so. A true
// one costs a question, a false one would hide records.
func (g *group) crowded(c records.CellKey) bool {
	full := count(g.answers, func(a *answer) bool { return slices.Contains(a.crowded, c) })
	whole := count(g.answers, func(a *answer) bool { return a.full && !slices.Contains(a.crowded, c) })
	return full > 0 && full >= whole
}

// odd returns the peer whose full answer contradicts all others, if there are at least three and these agree.
func (g *group) odd() (id peer.ID, some bool) {
	var full []*answer
	for i := range g.answers {
		if g.answers[i].full {
			full = append(full, &g.answers[i])
		}
	}
	if len(full) < 3 {
		return "", false
	}
	for i, x := range full {
		others := slices.Delete(slices.Clone(full), i, i+1)
		if !x.own && !x.agrees(others[0]) && !slices.ContainsFunc(others, func(y *answer) bool { return !y.agrees(others[0]) }) {
			return x.from, true
		}
	}
	return "", false
}

// outdated returns the peers without what others have had for long, if keepers of different networks gave full answers all the same.
func (g *group) outdated() (ids []peer.ID) {
	if g.full() < protocol.AskedAtOnce || g.diverse && g.commonNetwork().IsValid() {
		return nil
	}
	for _, x := range g.answers {
		if x.outdated && !x.own {
			ids = append(ids, x.from)
		}
	}
	return ids
}

// total returns the number of matches that the median of the keepers has, so that one alone cannot tell another one. AtLeast reports
// a lower bound.
func (g *group) total() (n int, atLeast bool) {
	atLeast = g.full() == 0 || slices.ContainsFunc(g.answers, func(a answer) bool { return a.atLeast })
	return g.median(), atLeast
}

// median returns the median of the totals of the keepers that most agree with about what is full. A peer that keeps
// only some cells, or lacks a change, counts too few records. Its total counts only beside no full answer.
func (g *group) median() int {
	var totals []int
	for i := range g.answers {
		if a := &g.answers[i]; g.counts(a) {
			totals = append(totals, a.total)
		}
	}
	if len(totals) == 0 {
		return 0
	}
	slices.Sort(totals)
	return totals[len(totals)/2]
}

// counts reports whether an answer is full, or no answer is, and whether it has of each cell what most have.
func (g *group) counts(a *answer) bool {
	return (a.full || g.full() == 0) && !slices.ContainsFunc(g.cells, func(c records.CellKey) bool {
		return slices.Contains(a.crowded, c) != g.crowded(c)
	})
}

// askedAround are asked of the region of a cell, beside one of the closest peers, whose ids somebody chose.
const askedAround = 4

// needed returns the number of full answers that make the group complete: two, so that one
// keeper alone cannot omit records, or one for a single keeper.
func (g *group) needed() int {
	if outer := len(g.set.Outer); outer > 0 {
		return 1 + min(askedAround, outer)
	}
	return min(protocol.AskedAtOnce, len(g.set.Peers))
}

// wanted returns the number of full answers to wait for: needed, one more without any match, or
// with answers from one network only, or after contradictions about what is full, and two more after contradictory totals. A keeper may
// hide records, and an owner of many peers seldom has them in many networks.
func (g *group) wanted() int {
	n := g.needed()
	var first *answer // full
	none, agreed, alike := true, true, true
	for i := range g.answers {
		a := &g.answers[i]
		if !a.full {
			continue
		}
		if first == nil {
			first = a
		}
		none, agreed, alike = none && a.total == 0 && len(a.crowded) == 0, agreed && a.agrees(first), alike && slices.Equal(a.crowded, first.crowded)
	}
	switch {
	case g.full() < n || len(g.set.Peers) <= n:
	case none, !alike:
		n++
	case !agreed:
		n += 2
	case g.diverse && g.commonNetwork().IsValid():
		n++
	}
	return min(n, len(g.set.Peers))
}

// commonNetwork returns the network of all full answers; zero for different or unknown ones.
func (g *group) commonNetwork() netip.Prefix {
	var network netip.Prefix
	for _, a := range g.answers {
		switch {
		case !a.full:
		case !a.network.IsValid() || network.IsValid() && network != a.network:
			return netip.Prefix{}
		default:
			network = a.network
		}
	}
	return network
}

// agrees reports whether two keepers seem to hold the same matches: the same cells are full, and they have the same total or,
// for a lower bound, the same best withheld match.
func (a *answer) agrees(b *answer) bool {
	if !slices.Equal(a.crowded, b.crowded) {
		return false
	}
	if slices.ContainsFunc(a.crowded, keep.Sends) { // full cells keep different records
		return true
	}
	if !a.atLeast && !b.atLeast {
		return a.total == b.total
	}
	return a.withheld == b.withheld && a.bound == b.bound
}

// verifyAnswer verifies a keeper's answer. It leaves out records that are expired or from the
// future, since clocks differ and this peer's may be the wrong one, and records that this version
// does not understand. Unauthentic answers: forged
// records, records that do not match, belong to other cells or exceed the limit, a bound that is
// not a number, and full cells outside the query.
func verifyAnswer(q cellQuery, resp *pb.QueryResponse, verifier protocol.Opener, now time.Time) (answer, error) {
	if resp == nil {
		return answer{}, protocol.Breach("the response does not answer a query")
	}
	if n := len(resp.Envelopes); n > q.plan.Limit() {
		return answer{}, protocol.Breach("%d records for a limit of %d", n, q.plan.Limit())
	}
	if resp.Withheld && math.IsNaN(resp.Bound) {
		return answer{}, protocol.Breach("the bound is not a number")
	}
	a := answer{
		records:  make([]*records.Record, 0, len(resp.Envelopes)),
		total:    int(min(resp.Total, math.MaxInt32)),
		atLeast:  resp.TotalAtLeast,
		withheld: resp.Withheld,
		bound:    resp.Bound,
		full:     !lacksAny(resp.NotKept, q.cells),
		doubt:    clean.Text(resp.Doubt, maxDoubt),
		unplaced: resp.UnplacedFull,
	}
	for _, envelope := range resp.Envelopes {
		r, left, err := protocol.Receive(verifier, envelope, now)
		switch {
		case err != nil:
			return answer{}, err
		case left != nil:
			a.left = append(a.left, left)
			a.total = max(a.total-1, 0) // the keeper counted it
		case q.beyond(r): // the keeper has the features
			a.beyond = append(a.beyond, r)
			a.total = max(a.total-1, 0)
		case !q.matches(r):
			return answer{}, protocol.Breach("record %s does not match the query", r.Name())
		default:
			a.records = append(a.records, r)
		}
	}
	if err := a.readBeyond(q, resp, verifier, now); err != nil {
		return answer{}, err
	}
	if err := a.checkWithheld(q, resp.Envelopes); err != nil {
		return answer{}, err
	}
	if err := a.readMenu(resp.Menu); err != nil {
		return answer{}, err
	}
	return a, a.readFull(q, resp.Full)
}

// fullAnswer is the size of envelopes that is reason enough to withhold others, in bytes. Another version may have another maximum.
const fullAnswer = protocol.MaxAnswer / 2

// checkWithheld refuses what no honest keeper says about withheld matches: it sends the best ones, as many as asked for, as fit, or as
// the asker has use for.
func (a *answer) checkWithheld(q cellQuery, envelopes [][]byte) error {
	if !a.withheld {
		return nil
	}
	size, last := 0, math.Inf(-1)
	for _, e := range envelopes {
		size += len(e)
	}
	for _, r := range a.records {
		last = max(last, q.plan.Value(r))
	}
	switch {
	case len(envelopes) < q.plan.Limit() && size < fullAnswer && !(a.bound > q.worst):
		return protocol.Breach("withholds matches after %d of %d, and %d bytes", len(envelopes), q.plan.Limit(), size)
	case !q.plan.Spreads() && a.bound < math.Nextafter(last, math.Inf(-1)):
		return protocol.Breach("withholds a match of value %g, and sent one of %g", a.bound, last)
	}
	return nil
}

// readFull reads the full cells of the query.
func (a *answer) readFull(q cellQuery, full []string) error {
	for _, key := range full {
		c, err := records.ParseCellKey(key)
		if err != nil || c.OfProvider() || !slices.Contains(q.cells, c) || slices.Contains(a.crowded, c) {
			return protocol.Breach("a full cell outside the query")
		}
		a.crowded = append(a.crowded, c)
	}
	slices.SortFunc(a.crowded, protocol.CompareCells)
	return nil
}

// matches reports whether a record answers the query.
func (q cellQuery) matches(r *records.Record) bool {
	return q.plan.Match(r) && slices.ContainsFunc(q.cells, r.In)
}

// lacksAny reports whether protocol.NotKept names one of the cells.
func lacksAny(notKept []string, cells []records.CellKey) bool {
	return slices.ContainsFunc(cells, func(c records.CellKey) bool { return slices.Contains(notKept, c.String()) })
}

// search searches this peer's index for a plan, restricted to cells.
func (a *Asker) search(p *queries.Plan, cells []records.CellKey) index.Found {
	if len(cells) == 0 {
		return index.Found{Exact: true, Next: math.Inf(1)}
	}
	return a.Index.Search(p, index.SearchOptions{Now: a.Now(), Cells: geoCells(cells), AtLeast: !p.ExactTotal()})
}

// holdings are the parts of some cells that this peer answers with.
type holdings struct {
	parts   []records.CellKey // of a full cell, if anything, those without a place
	counted []records.CellKey // parts without those whose records the children may have too
	full    []records.CellKey
}

func (a *Asker) held(cells []records.CellKey) (h holdings) {
	for _, c := range cells {
		part := c
		if full := !c.OfProvider() && a.cells.Full(c); full {
			h.full = append(h.full, c)
			switch {
			case keep.Divisible(c) && a.cells.Young(c):
				h.parts = append(h.parts, c)
				continue
			case c.Cell == geo.Global:
				part = keep.Unplaced(c)
			case keep.Divisible(c):
				continue
			}
		}
		h.parts, h.counted = append(h.parts, part), append(h.counted, part)
	}
	slices.SortFunc(h.full, protocol.CompareCells)
	return h
}

// searchHeld searches what this peer answers with.
func (a *Asker) searchHeld(p *queries.Plan, h *holdings) index.Found {
	found := a.search(p, h.parts)
	if len(h.counted) < len(h.parts) {
		found.Total, found.Exact = a.search(p, h.counted).Total, false
	}
	return found
}

// unplacedFull reports whether this peer lacks records without a place of some cells.
func (a *Asker) unplacedFull(cells []records.CellKey) bool {
	return slices.ContainsFunc(cells, func(c records.CellKey) bool {
		return c.Cell == geo.Global && !c.OfProvider() && a.cells.Full(keep.Unplaced(c))
	})
}

// answerHere answers a query from this peer's index.
func (a *Asker) answerHere(q cellQuery) answer {
	h := a.held(q.cells)
	found := a.searchHeld(q.plan, &h)
	x := answer{
		from: a.Self, own: true, records: recordsOf(found.Hits), total: found.Total, atLeast: !found.Exact,
		withheld: !math.IsInf(found.Next, 1) || found.Total > len(found.Hits), bound: found.Next, crowded: h.full, unplaced: a.unplacedFull(q.cells),
	}
	if q.menu {
		x.menu, x.total = a.menuOf(q.plan, h.counted)
	}
	x.beyond, x.moreBeyond = index.SomeBeyond(a.Index, q.plan, h.parts, a.Now(), protocol.MaxBeyond)
	var lacking []records.CellKey
	lacking, x.doubt = a.unsure(q.cells)
	x.full = len(lacking) == 0
	return x
}

// unsure returns the cells for which this peer has no authority, and the reason for a cell that it keeps all the same. That a
// cell is full is true whatever it lacks.
func (a *Asker) unsure(cells []records.CellKey) (lacking []records.CellKey, doubt string) {
	lacking, doubt = a.authority.Unauthoritative(cells)
	lacking = slices.DeleteFunc(lacking, func(c records.CellKey) bool {
		return !keep.Sends(c) && c.Cell != geo.Global && a.cells.Full(c) && a.authority.Accepts(c)
	})
	return lacking, doubt
}

// findHere answers a plan from this peer's index, which is settled for the cells.
func (a *Asker) findHere(p *queries.Plan, cells []records.CellKey) queries.Found {
	found := a.search(p, cells)
	f := queries.Found{Records: recordsOf(found.Hits), Total: found.Total, AtLeast: !found.Exact, Complete: true, Local: true}
	if why := a.authority.Know.Isolation(a.authority.Clock()); why != "" {
		f.Complete, f.AtLeast, f.Reason = false, true, "this peer "+why
	}
	some, more := index.SomeBeyond(a.Index, p, cells, a.Now(), protocol.MaxBeyond)
	f.Beyond = index.LeftOut(some, 0, more)
	if p.Explain() {
		f.Notes = []string{"this peer keeps all the cells and compared them with other keepers: it answers alone"}
	}
	return f
}

// addNewest adds the records of some answers to a map of the newest versions.
func addNewest(newest map[records.Name]*records.Record, answers []answer) {
	for _, a := range answers {
		for _, r := range a.records {
			if known, ok := newest[r.Name()]; !ok || records.Compare(r, known) > 0 {
				newest[r.Name()] = r
			}
		}
	}
}

// total counts the matches. Groups have no common cell, and the keepers of one group hold the same records: of full cells
// none, or those that the children have too. AtLeast reports a lower bound: a keeper stopped counting.
func total(groups []group, found int) (sum int, atLeast bool) {
	for i := range groups {
		n, least := groups[i].total()
		sum, atLeast = sum+n, atLeast || least
	}
	return max(sum, found), atLeast || sum < found
}

// incomplete returns the reason why the merged records may miss a best match; "" if they
// cannot.
func incomplete(plan *queries.Plan, recs []*records.Record, groups []group) string {
	for i := range groups {
		if why := groups[i].incomplete(); why != "" {
			return why
		}
	}
	worst := plan.Worst(recs)
	for _, g := range groups {
		for _, a := range g.answers {
			if a.withheld && (len(recs) < plan.Limit() || worst > a.bound) {
				return fmt.Sprintf("a keeper withheld matches that may rank among the first %d", plan.Limit())
			}
		}
	}
	return ""
}

// incomplete returns the reason why the answers of a group may miss records; "" if they cannot.
func (g *group) incomplete() string {
	where := g.cells[0].String()
	if n := len(g.cells); n > 1 {
		where = fmt.Sprintf("%s and %d more cells", where, n-1)
	}
	if g.set.Uncertain != nil {
		return fmt.Sprintf("the lookup of the keepers of %s is incomplete: %s", where, fault.Message(g.set.Uncertain))
	}
	if g.set.Chosen {
		return fmt.Sprintf("the peers closest to %s are closer than chance explains: somebody may have chosen their ids to hide records", where)
	}
	for _, c := range g.cells {
		if !keep.Divisible(c) && g.crowded(c) {
			return fmt.Sprintf("the cell %s is full, and has no parts: it has more offers than its keepers hold", c)
		}
	}
	if n := count(g.answers, func(a *answer) bool { return a.unplaced }); n > 0 && 2*n >= len(g.answers) {
		return fmt.Sprintf("the cell %s has more offers without a place than its keepers hold", where)
	}
	got, need, behind := g.full(), g.needed(), count(g.answers, func(a *answer) bool { return a.behind })
	if got < need && got+behind < len(g.set.Peers) { // otherwise all keepers answered: together they have all records
		why := fmt.Sprintf("%d of %d keepers answered for %s", got, need, where)
		if doubt, n := g.doubt(); n > 1 {
			return fmt.Sprintf("%s: a keeper says that %s, and %s too", why, doubt, fault.Counted(n-1, "other"))
		} else if n > 0 {
			return why + ": a keeper says that " + doubt
		}
		if g.older > 0 {
			return fmt.Sprintf("%s: %d keepers of an older version do not know %s", why, g.older, g.unknownNames())
		}
		if behind > 0 {
			why += fmt.Sprintf(", and %d more lack changes that others have", behind)
		}
		if g.failure != nil {
			why += ": " + fault.Message(g.failure)
		}
		return why
	}
	return ""
}

// doubt returns what most keepers say that they may lack, and how many do.
func (g *group) doubt() (most string, n int) {
	told := make(map[string]int)
	for _, a := range g.answers {
		if a.doubt == "" {
			continue
		}
		if told[a.doubt]++; told[a.doubt] > n {
			most, n = a.doubt, told[a.doubt]
		}
	}
	return most, n
}

// unknownNames lists the fields that keepers of the group do not know.
func (g *group) unknownNames() string {
	names := make([]string, len(g.unknown))
	for i, path := range g.unknown {
		names[i] = protocol.FieldName(path)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// groupCells groups cells by their keepers, in the order of the first cells.
func groupCells(cells []records.CellKey, sets []*keep.Set) []group {
	var groups []group
	at := make(map[string]int)
	for i, set := range sets {
		j, ok := at[set.Id]
		if !ok {
			j = len(groups)
			at[set.Id] = j
			groups = append(groups, group{set: set})
		}
		groups[j].cells = append(groups[j].cells, cells[i])
		if set.Uncertain != nil {
			groups[j].set = set
		}
	}
	return groups
}

var (
	errNoAnswer = errors.New("no keeper answered")
	errLate     = errors.New("this peer runs late, as its processor is busy: it may have missed answers")
)
