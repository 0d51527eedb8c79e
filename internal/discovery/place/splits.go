package place

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/digest"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	maxSplitCells     = 4096             // cells below geo.MaxLen with records, and cached summaries
	maxSplits         = 4096             // split cells of this peer
	maxSuspected      = 256              // cells to check for a split at other keepers
	surplusShare      = 20               // a cell with few providers shrinks by 1/surplusShare below its capacity
	maxRecordPrefixes = 1 << 17          // records with a known sender address
	hintedChildren    = 1024             // children in a hint, 2.2 KB each: a publisher sends every record of the others
	maxNearFull       = 128              // nearly full cells with provider counters
	nearFullTTL       = 10 * time.Second // lifetime of a provider counter
	summaryTTL        = 10 * time.Second // lifetime of the summary of a whole cell after a change of the index; far less than cell.Grace
)

// Splits are the cells that this peer holds in part, because they have too many records. Every
// other cell is whole. A small network has no splits: the keepers of the children would be the
// same peers. Methods are safe for concurrent use.
type Splits struct {
	*wire.Env
	closest   *route.Closest
	authority *route.Authority
	StoreAt   func(context.Context, []*send) []records.Outcome // of the publisher

	prefixes *lru.Cache[records.Name, netip.Prefix]    // senders of records, for the shares of a cell; has its own lock
	deep     *lru.Cache[records.CellKey, struct{}]     // cells below geo.MaxLen that other peers sent records for; has its own lock
	totals   *lru.Cache[records.CellKey, datedSummary] // of whole cells; has its own lock

	mu          sync.Mutex // guards the fields below, and the cells themselves
	cells       map[records.CellKey]*splitCell
	handingOver int                      // hand-overs under way
	suspected   map[records.CellKey]bool // cells that other keepers may have split
	nearFull    *lru.Cache[records.CellKey, *nearFullCell]
	queue       *cell.AdmissionQueue
}

// splitCell is a cell that this peer split.
type splitCell struct {
	*cell.Cell
	handOver handOverState
}

// datedSummary is the summary of a whole cell at a time.
type datedSummary struct {
	made    time.Time
	seq     uint64 // of the index
	summary cell.Summary
}

// handOverState is the progress of a cell in phase Splitting.
type handOverState uint8

const (
	handOverDue     handOverState = iota // not begun, or failed
	handOverRunning                      // a goroutine delivers the records to the keepers of the children
	handOverDone                         // the keepers of the children hold this peer's share
)

// nearFullCell counts the records of each provider in a cell that is nearly full.
type nearFullCell struct {
	counter cell.ProviderCounter
	until   time.Time
}

// NewSplits returns a peer's cells, all whole. Set StoreAt before the first cell can split.
func NewSplits(closest *route.Closest, authority *route.Authority) *Splits {
	return &Splits{
		Env: authority.Env, closest: closest, authority: authority,
		prefixes: bounded.Shared[records.Name, netip.Prefix](maxRecordPrefixes), deep: bounded.Shared[records.CellKey, struct{}](maxSplitCells),
		totals: bounded.Shared[records.CellKey, datedSummary](maxSplitCells), nearFull: bounded.Shared[records.CellKey, *nearFullCell](maxNearFull),
		queue: cell.NewAdmissionQueue(), cells: make(map[records.CellKey]*splitCell), suspected: make(map[records.CellKey]bool),
	}
}

// Any reports whether this peer has split cells, or records of cells below geo.MaxLen.
func (s *Splits) Any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cells) > 0 || s.deep.Len() > 0
}

// With calls do with a split cell, under the lock. It reports false for a whole cell.
func (s *Splits) With(c records.CellKey, do func(*cell.Cell)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.cells[c]
	if ok {
		do(x.Cell)
	}
	return ok
}

// Keys returns the split cells in the order of their keys.
func (s *Splits) Keys() []records.CellKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.cells), wire.CompareCells)
}

// Partial returns the first of the cells that this peer holds in part; false if it holds all of them whole.
func (s *Splits) Partial(cells []records.CellKey) (records.CellKey, bool) {
	i := slices.IndexFunc(cells, func(c records.CellKey) bool { return !s.Phase(c).Complete() })
	if i < 0 {
		return records.CellKey{}, false
	}
	return cells[i], true
}

// Phase returns the phase of a cell.
func (s *Splits) Phase(c records.CellKey) (p cell.Phase) {
	s.With(c, func(x *cell.Cell) { p, _ = x.Phase() })
	return p
}

// Member returns a record with the prefix of its sender, if known.
func (s *Splits) Member(r *records.Record) cell.Member {
	from, _ := s.prefixes.Peek(r.Name())
	return cell.Member{Record: r, Prefix: from}
}

func (s *Splits) members(c records.CellKey) []cell.Member {
	var all []cell.Member
	for r := range s.Index.In(c, s.Now()) {
		all = append(all, s.Member(r))
	}
	return all
}

// offer offers a record to its split cells. It reports whether at least one cell needs the
// record here.
func (s *Splits) offer(m cell.Member, cells []records.CellKey) (wanted bool) {
	var displaced []records.Name
	for _, c := range cells {
		split := s.With(c, func(x *cell.Cell) {
			kept, gone := x.Offer(m)
			wanted = wanted || kept
			if p, _ := x.Phase(); p == cell.Split {
				displaced = append(displaced, gone...)
			}
		})
		wanted = wanted || !split
	}
	for _, n := range displaced {
		s.release(n)
	}
	return wanted
}

// forget removes a withdrawn record from the samples.
func (s *Splits) forget(r *records.Record, cells []records.CellKey) {
	for _, c := range cells {
		s.With(c, func(x *cell.Cell) { x.Forget(r.Name()) })
	}
}

// drop removes a record from the index.
func (s *Splits) drop(n records.Name) {
	s.Index.Remove(n)
	s.prefixes.Remove(n)
}

// release drops a record that no cell needs here.
func (s *Splits) release(n records.Name) {
	if r, ok := s.Index.Get(n); ok && !s.needed(r, s.authority.Retains) {
		s.drop(n)
	}
}

// needed reports whether this peer must hold a record: its own record, a wanted record, or a
// record of a retained cell that is whole or has the record in its sample.
func (s *Splits) needed(r *records.Record, retains func(records.CellKey) bool) bool {
	if r.Name().Provider == s.Self || s.Wanted != nil && s.Wanted(r) {
		return true
	}
	return slices.ContainsFunc(append(r.Cells(), wire.CellsBelow(r)...), func(c records.CellKey) bool {
		if c.Cell.Len() > geo.MaxLen && !s.deep.Contains(c) || !retains(c) {
			return false
		}
		kept := true
		s.With(c, func(x *cell.Cell) { kept = x.Keeps(r) })
		return kept
	})
}

// admit admits a new record, or returns its remaining queueing time.
func (s *Splits) admit(n records.Name, wait time.Duration, now time.Time) (left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Admit(n, wait, now)
}

// shares returns how many records of a nearly full cell have the provider and the prefix of r.
func (s *Splits) shares(c records.CellKey, r *records.Record, prefix netip.Prefix, now time.Time) (ofProvider, ofPrefix int) {
	x, ok := s.nearFull.Get(c)
	if !ok || !now.Before(x.until) {
		x = &nearFullCell{until: now.Add(nearFullTTL)}
		for _, m := range s.members(c) {
			x.counter.Add(m.Record.Name().Provider, m.Prefix)
		}
		s.nearFull.Add(c, x)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return x.counter.Of(r.Name().Provider, prefix)
}

// countIn adds a new record to the counter of a nearly full cell.
func (s *Splits) countIn(c records.CellKey, r *records.Record, prefix netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.nearFull.Peek(c); ok {
		x.counter.Add(r.Name().Provider, prefix)
	}
}

// overflow reduces an overfull whole cell: it splits the cell, or drops the surplus of few
// large providers and prefixes.
func (s *Splits) overflow(c records.CellKey) {
	if s.Router.Size() < route.AcceptWithin {
		return // small network
	}
	members := s.members(c)
	capacity := cell.Capacity(c.Cell)
	switch {
	case len(members) <= capacity:
	case cell.Splits(c.Cell, members):
		s.split(c, members)
	default:
		surplus := cell.Surplus(members, capacity-capacity/surplusShare)
		for _, n := range surplus {
			if n.Provider != s.Self {
				s.drop(n)
			}
		}
		s.Logger.Info("cell full of records of few providers: dropped the surplus", "cell", c, "records", len(members), "dropped", len(surplus))
	}
}

// split begins to hold a cell in part. Below geo.MaxLen the children's keepers may know
// nothing of the records yet, so they get them first: phase Splitting.
func (s *Splits) split(c records.CellKey, members []cell.Member) {
	phase := cell.Split
	if c.Cell.Len() >= geo.MaxLen {
		phase = cell.Splitting
	}
	x := cell.New(c.Cell, phase, s.Now())
	for _, m := range members {
		x.Offer(m)
	}
	s.mu.Lock()
	_, twice := s.cells[c]
	added := !twice && len(s.cells) < maxSplits
	if added {
		s.cells[c] = &splitCell{Cell: x}
	}
	s.mu.Unlock()
	if !added {
		return
	}
	s.Logger.Info("cell split", "cell", c, "records", len(members))
	if phase == cell.Splitting {
		s.handOver(c)
	} else {
		s.prune(c)
	}
}

// prune drops the records of a split cell that this peer need not hold.
func (s *Splits) prune(c records.CellKey) {
	cache := make(map[records.CellKey]bool)
	retains := func(c records.CellKey) bool {
		is, ok := cache[c]
		if !ok {
			is = s.authority.Retains(c)
			cache[c] = is
		}
		return is
	}
	for r := range s.Index.In(c, s.Now()) {
		if !s.needed(r, retains) {
			s.drop(r.Name())
		}
	}
}

// ForQuery describes the split cells among cells, with the children that may have a match. The tokens of these, and all lots but the first,
// have done their work here: only a keeper that takes over a split needs them.
func (s *Splits) ForQuery(p *query.Plan, cells []records.CellKey, tokens bool) []*pb.Split {
	all := s.describe(cells, func(_ records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
		if phase, _ := x.Phase(); phase.Complete() {
			return nil, false
		}
		children := map[geo.Cell]cell.Summary{}
		for _, place := range x.Populated() {
			sum := x.Summary(place)
			if !tokens {
				sum.Lots = sum.Lots.First(p)
			}
			if _, some := sum.Bound(p, place); some {
				children[place] = sum
			}
		}
		return children, true
	})
	for _, m := range all {
		for _, child := range m.Children {
			if !tokens {
				child.Tokens = nil
			}
		}
	}
	return all
}

// forPublisher describes the split cells among cells, each with the given children: those
// that contain the publisher's records.
func (s *Splits) forPublisher(cells map[records.CellKey][]geo.Cell) []*pb.Split {
	keys := slices.SortedFunc(maps.Keys(cells), wire.CompareCells)
	room := hintedChildren
	return s.describe(keys, func(c records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
		if phase, _ := x.Phase(); phase.Open() {
			return nil, false
		}
		children := map[geo.Cell]cell.Summary{}
		hinted := cells[c][:min(len(cells[c]), room)]
		for _, place := range hinted {
			children[place] = x.Stable(place)
		}
		room -= len(hinted)
		return children, true
	})
}

// describe returns the wire form of split cells, within the bounds of a message. Children
// selects the children of a cell; false leaves the cell out.
func (s *Splits) describe(cells []records.CellKey, children func(records.CellKey, *cell.Cell) (map[geo.Cell]cell.Summary, bool)) []*pb.Split {
	var all []*pb.Split
	for _, c := range cells {
		s.With(c, func(x *cell.Cell) {
			if len(all) == wire.MaxQueryCells {
				return
			}
			if selected, some := children(c, x); some {
				all = append(all, x.Proto(c.String(), selected))
			}
		})
	}
	return all
}

// SummaryOf returns the summary of a cell. It may be summaryTTL old: to read 2,000 records of a whole cell costs some 5 ms, and
// anybody may ask for it. This hides no record, because what publishers sent stays in the asker's summaries for cell.Grace.
func (s *Splits) SummaryOf(c records.CellKey) cell.Summary {
	var sum cell.Summary
	if s.With(c, func(x *cell.Cell) { sum = x.Total() }) {
		return sum
	}
	now, seq := s.Now(), s.Index.Seq() // before the records are read: a change meanwhile makes the summary old
	if kept, ok := s.totals.Get(c); ok && (kept.seq == seq || now.Sub(kept.made).Abs() < summaryTTL) {
		return kept.summary
	}
	for r := range s.Index.In(c, now) {
		sum.Add(r)
	}
	s.totals.Add(c, datedSummary{now, seq, sum})
	return sum
}

// ServeSummary answers a SUMMARY request.
func (s *Splits) ServeSummary(ctx context.Context, req *pb.SummaryRequest) (*pb.SummaryResponse, error) {
	cells, err := wire.CellsOf(req.GetCells(), wire.MaxQueryCells)
	if err != nil {
		return nil, err
	}
	resp := new(pb.SummaryResponse)
	for _, c := range cells {
		if ctx.Err() != nil {
			return nil, fault.Wrap("", ctx.Err())
		}
		sum := s.SummaryOf(c)
		resp.Summaries = append(resp.Summaries, sum.Proto(c.Cell))
		if !s.authority.Accepts(c) {
			resp.NotKept = append(resp.NotKept, c.String())
		}
	}
	return resp, nil
}

// AnyDeep reports whether cells below geo.MaxLen are in use. Then CellsOf changes without the record.
func (s *Splits) AnyDeep() bool { return s.deep.Len() > 0 }

// CellsOf returns the cells of a record, including cells below geo.MaxLen in use.
func (s *Splits) CellsOf(r *records.Record) []records.CellKey {
	cells := r.Cells()
	if s.deep.Len() == 0 {
		return cells
	}
	for _, c := range wire.CellsBelow(r) {
		if s.deep.Contains(c) {
			cells = append(cells, c)
		}
	}
	return cells
}

// SampleOf returns the ids of the sample of a split cell; nil for a whole cell.
func (s *Splits) SampleOf(c records.CellKey) (ids map[digest.ID]struct{}) {
	s.With(c, func(x *cell.Cell) {
		if phase, _ := x.Phase(); phase.Complete() {
			return
		}
		names := x.Sampled()
		ids = make(map[digest.ID]struct{}, len(names))
		for _, n := range names {
			ids[digest.IDOf(n.String())] = struct{}{}
		}
	})
	return ids
}
