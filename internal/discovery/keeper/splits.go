package keeper

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// splits are the cells that this peer holds in part, because they have too many records. Every
// other cell is whole. A small network has no splits: the keepers of the children would be the
// same peers. Methods are safe for concurrent use.
type splits struct {
	k        *Keeper
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

func newSplits(k *Keeper) *splits {
	prefixes, err := lru.New[records.Name, netip.Prefix](maxRecordPrefixes)
	deep, err2 := lru.New[records.CellKey, struct{}](maxCachedCells)
	nearFull, err3 := lru.New[records.CellKey, *nearFullCell](maxNearFull)
	totals, err4 := lru.New[records.CellKey, datedSummary](maxCachedCells)
	if err = errors.Join(err, err2, err3, err4); err != nil {
		panic("keeper: " + err.Error()) // impossible: the sizes are positive constants
	}
	return &splits{
		k: k, prefixes: prefixes, deep: deep, totals: totals, nearFull: nearFull, queue: cell.NewAdmissionQueue(),
		cells: make(map[records.CellKey]*splitCell), suspected: make(map[records.CellKey]bool),
	}
}

// any reports whether this peer has split cells, or records of cells below geo.MaxLen.
func (s *splits) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cells) > 0 || s.deep.Len() > 0
}

// cellAt returns the key of another cell of the same type and subtype.
func cellAt(c records.CellKey, place geo.Cell) records.CellKey {
	return records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: place}
}

func compareCells(a, b records.CellKey) int {
	return strings.Compare(a.String(), b.String())
}

// with calls do with a split cell, under the lock. It reports false for a whole cell.
func (s *splits) with(c records.CellKey, do func(*cell.Cell)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.cells[c]
	if ok {
		do(x.Cell)
	}
	return ok
}

// keys returns the split cells in the order of their keys.
func (s *splits) keys() []records.CellKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.cells), compareCells)
}

// partial returns the first of the cells that this peer holds in part; false if it holds all of them whole.
func (s *splits) partial(cells []records.CellKey) (records.CellKey, bool) {
	i := slices.IndexFunc(cells, func(c records.CellKey) bool { return !s.phase(c).Complete() })
	if i < 0 {
		return records.CellKey{}, false
	}
	return cells[i], true
}

func (s *splits) phase(c records.CellKey) (p cell.Phase) {
	s.with(c, func(x *cell.Cell) { p, _ = x.Phase() })
	return p
}

// member returns a record with the prefix of its sender, if known.
func (s *splits) member(r *records.Record) cell.Member {
	from, _ := s.prefixes.Peek(r.Name())
	return cell.Member{Record: r, Prefix: from}
}

func (s *splits) members(c records.CellKey) []cell.Member {
	var all []cell.Member
	for r := range s.k.Index.In(c, s.k.Now()) {
		all = append(all, s.member(r))
	}
	return all
}

// offer offers a record to its split cells. It reports whether at least one cell needs the
// record here.
func (s *splits) offer(m cell.Member, cells []records.CellKey) (wanted bool) {
	var displaced []records.Name
	for _, c := range cells {
		split := s.with(c, func(x *cell.Cell) {
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
func (s *splits) forget(r *records.Record, cells []records.CellKey) {
	for _, c := range cells {
		s.with(c, func(x *cell.Cell) { x.Forget(r.Name()) })
	}
}

// drop removes a record from the index.
func (s *splits) drop(n records.Name) {
	s.k.Index.Remove(n)
	s.prefixes.Remove(n)
}

// release drops a record that no cell needs here.
func (s *splits) release(n records.Name) {
	if r, ok := s.k.Index.Get(n); ok && !s.needed(r, s.k.closest.retains) {
		s.drop(n)
	}
}

// needed reports whether this peer must hold a record: its own record, a wanted record, or a
// record of a retained cell that is whole or has the record in its sample.
func (s *splits) needed(r *records.Record, retains func(records.CellKey) bool) bool {
	if r.Name().Provider == s.k.Self || s.k.Wanted != nil && s.k.Wanted(r) {
		return true
	}
	return slices.ContainsFunc(append(r.Cells(), cellsBelow(r)...), func(c records.CellKey) bool {
		if c.Cell.Len() > geo.MaxLen && !s.deep.Contains(c) || !retains(c) {
			return false
		}
		kept := true
		s.with(c, func(x *cell.Cell) { kept = x.Keeps(r) })
		return kept
	})
}

// cellsBelow returns the cells of a record below geo.MaxLen. Publishers use them only below
// a split cell.
func cellsBelow(r *records.Record) []records.CellKey {
	at, ok := r.Facts().Place()
	if !ok {
		return nil
	}
	var cells []records.CellKey
	for length := geo.MaxLen + 1; length <= geo.DeepLen; length++ {
		c := records.CellKey{Type: r.Type(), Subtype: records.AnySubtype, Cell: geo.CellOf(at, length)}
		cells = append(cells, c)
		if r.Subtype() != "" {
			c.Subtype = r.Subtype()
			cells = append(cells, c)
		}
	}
	return cells
}

// admit admits a new record, or returns its remaining queueing time.
func (s *splits) admit(n records.Name, wait time.Duration, now time.Time) (left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Admit(n, wait, now)
}

// shares returns how many records of a nearly full cell have the provider and the prefix of r.
func (s *splits) shares(c records.CellKey, r *records.Record, prefix netip.Prefix, now time.Time) (ofProvider, ofPrefix int) {
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
func (s *splits) countIn(c records.CellKey, r *records.Record, prefix netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.nearFull.Peek(c); ok {
		x.counter.Add(r.Name().Provider, prefix)
	}
}

// overflow reduces an overfull whole cell: it splits the cell, or drops the surplus of few
// large providers and prefixes.
func (s *splits) overflow(c records.CellKey) {
	if s.k.Router.Size() < acceptWithin {
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
			if n.Provider != s.k.Self {
				s.drop(n)
			}
		}
		s.k.Logger.Info("cell full of records of few providers: dropped the surplus", "cell", c, "records", len(members), "dropped", len(surplus))
	}
}

// split begins to hold a cell in part. Below geo.MaxLen the children's keepers may know
// nothing of the records yet, so they get them first: phase Splitting.
func (s *splits) split(c records.CellKey, members []cell.Member) {
	phase := cell.Split
	if c.Cell.Len() >= geo.MaxLen {
		phase = cell.Splitting
	}
	x := cell.New(c.Cell, phase, s.k.Now())
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
	s.k.Logger.Info("cell split", "cell", c, "records", len(members))
	if phase == cell.Splitting {
		s.handOver(c)
	} else {
		s.prune(c)
	}
}

// prune drops the records of a split cell that this peer need not hold.
func (s *splits) prune(c records.CellKey) {
	cache := make(map[records.CellKey]bool)
	retains := func(c records.CellKey) bool {
		is, ok := cache[c]
		if !ok {
			is = s.k.closest.retains(c)
			cache[c] = is
		}
		return is
	}
	for r := range s.k.Index.In(c, s.k.Now()) {
		if !s.needed(r, retains) {
			s.drop(r.Name())
		}
	}
}

// forQuery describes the split cells among cells, with the children that may have a match.
func (s *splits) forQuery(p *query.Plan, cells []records.CellKey) []*pb.Split {
	return s.describe(cells, func(_ records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
		if phase, _ := x.Phase(); phase.Complete() {
			return nil, false
		}
		children := map[geo.Cell]cell.Summary{}
		for _, place := range x.Populated() {
			sum := x.Summary(place)
			if _, some := sum.Bound(p, place); some {
				children[place] = sum
			}
		}
		return children, true
	})
}

// forPublisher describes the split cells among cells, each with the given children: those
// that contain the publisher's records.
func (s *splits) forPublisher(cells map[records.CellKey][]geo.Cell) []*pb.Split {
	keys := slices.SortedFunc(maps.Keys(cells), compareCells)
	return s.describe(keys, func(c records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
		if phase, _ := x.Phase(); phase.Open() {
			return nil, false
		}
		children := map[geo.Cell]cell.Summary{}
		for _, place := range cells[c] {
			children[place] = x.Stable(place)
		}
		return children, true
	})
}

// describe returns the wire form of split cells, within the bounds of a message. Children
// selects the children of a cell; false leaves the cell out.
func (s *splits) describe(cells []records.CellKey, children func(records.CellKey, *cell.Cell) (map[geo.Cell]cell.Summary, bool)) []*pb.Split {
	var all []*pb.Split
	total := 0
	for _, c := range cells {
		s.with(c, func(x *cell.Cell) {
			if len(all) == MaxQueryCells {
				return
			}
			selected, some := children(c, x)
			if total += len(selected); some && total <= maxChildren {
				all = append(all, x.Proto(c.String(), selected))
			}
		})
	}
	return all
}

// summaryOf returns the summary of a cell. It may be summaryTTL old: to read 30,000 records of a whole cell costs 16 ms, and
// anybody may ask for it. This hides no record, because what publishers sent stays in the asker's summaries for cell.Grace.
func (s *splits) summaryOf(c records.CellKey) cell.Summary {
	var sum cell.Summary
	if s.with(c, func(x *cell.Cell) { sum = x.Total() }) {
		return sum
	}
	now, seq := s.k.Now(), s.k.Index.Seq() // before the records are read: a change meanwhile makes the summary old
	if kept, ok := s.totals.Get(c); ok && (kept.seq == seq || now.Sub(kept.made).Abs() < summaryTTL) {
		return kept.summary
	}
	for r := range s.k.Index.In(c, now) {
		sum.Add(r)
	}
	s.totals.Add(c, datedSummary{now, seq, sum})
	return sum
}

// summary answers a SUMMARY request.
func (s *server) summary(ctx context.Context, req *pb.SummaryRequest) (*pb.SummaryResponse, error) {
	cells, err := cellsOf(req.GetCells(), MaxQueryCells)
	if err != nil {
		return nil, err
	}
	resp := new(pb.SummaryResponse)
	for _, c := range cells {
		if ctx.Err() != nil {
			return nil, fault.Wrap("", ctx.Err())
		}
		sum := s.k.splits.summaryOf(c)
		resp.Summaries = append(resp.Summaries, sum.Proto(c.Cell))
		if !s.k.closest.accepts(c) {
			resp.NotKept = append(resp.NotKept, c.String())
		}
	}
	return resp, nil
}
