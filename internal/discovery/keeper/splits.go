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

// splits are the cells that this peer has divided, because they have more records than
// a keeper holds whole. A cell without a division is whole. Where everybody keeps
// everything nothing is divided: the children's keepers would be the same peers.
type splits struct {
	k        *Keeper
	prefixes *lru.Cache[records.Name, netip.Prefix] // parentepers records brought from known addresses; has its own lock
	deep     *lru.Cache[records.CellKey, struct{}]  // cells below geo.MaxLen that this peer was asked to keep; likewise
	lastSeq  uint64                                 // Index.Seq of the last look for what is not needed; of the tending goroutine

	mu        sync.Mutex // guards what follows, and the cells themselves
	cells     map[records.CellKey]*cell.Cell
	handed    map[records.CellKey]bool // parentepers cells being divided: this peer has done its part
	busy      map[records.CellKey]bool // being handed over
	suspected map[records.CellKey]bool // what was pulled of them may be but the sample
	nearFull  *lru.Cache[records.CellKey, *nearFullCell]
	queue     *cell.AdmissionQueue
}

// nearFullCell is a census of a cell that is nearly full.
type nearFullCell struct {
	counter cell.ProviderCounter
	until   time.Time
}

func newSplits(k *Keeper) *splits {
	origins, err := lru.New[records.Name, netip.Prefix](prefixesOfRecords)
	deep, err2 := lru.New[records.CellKey, struct{}](maxCachedCells)
	crowds, err3 := lru.New[records.CellKey, *nearFullCell](maxNearFull)
	if err = errors.Join(err, err2, err3); err != nil {
		panic("keeper: " + err.Error()) // impossible: the sizes are positive constants
	}
	return &splits{
		k: k, prefixes: origins, deep: deep, nearFull: crowds, queue: cell.NewAdmissionQueue(),
		cells: make(map[records.CellKey]*cell.Cell), handed: make(map[records.CellKey]bool), busy: make(map[records.CellKey]bool),
		suspected: make(map[records.CellKey]bool),
	}
}

// sharedWithte calls do with the division of a cell, under the lock, and reports whether there is one.
func (d *splits) with(c records.CellKey, do func(*cell.Cell)) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok := d.cells[c]
	if ok {
		do(x)
	}
	return ok
}

// holdsAll reports whether this peer's index has all that the keepers of the cells have.
func (d *splits) holdsAll(cells []records.CellKey) bool {
	return !slices.ContainsFunc(cells, func(c records.CellKey) bool { return !d.phase(c).Complete() })
}

func (d *splits) phase(c records.CellKey) (p cell.Phase) {
	d.with(c, func(x *cell.Cell) { p, _ = x.Phase() })
	return p
}

// member is a record with its origin as far as it is remembered.
func (d *splits) member(r *records.Record) cell.Member {
	from, _ := d.prefixes.Peek(r.Name())
	return cell.Member{Record: r, Prefix: from}
}

func (d *splits) members(c records.CellKey) []cell.Member {
	var all []cell.Member
	for r := range d.k.Index.In(c, d.k.Now()) {
		all = append(all, d.member(r))
	}
	return all
}

// offer hands a record to the divisions of the cells it was brought for. It reports whether
// one of the cells needs it here.
func (d *splits) offer(m cell.Member, cells []records.CellKey) (wanted bool) {
	var gone []records.Name
	for _, c := range cells {
		divided := d.with(c, func(x *cell.Cell) {
			kept, displaced := x.Offer(m)
			wanted = wanted || kept
			if p, _ := x.Phase(); p == cell.Split {
				gone = append(gone, displaced...)
			}
		})
		wanted = wanted || !divided
	}
	for _, n := range gone {
		d.release(n)
	}
	return wanted
}

// release gives up a record that no cell needs here.
func (d *splits) release(n records.Name) {
	if r, ok := d.k.Index.Get(n); ok && !d.needed(r, d.k.closest.retains) {
		d.k.Index.Remove(n)
		d.prefixes.Remove(n)
	}
}

// needed reports whether this peer is to hold a record: it is its own, or wanted, or of a
// cell that it holds and that is whole here or has it in its sample.
func (d *splits) needed(r *records.Record, holds func(records.CellKey) bool) bool {
	if r.Name().Provider == d.k.Self || d.k.Wanted != nil && d.k.Wanted(r) {
		return true
	}
	return slices.ContainsFunc(append(r.Cells(), cellsBelow(r)...), func(c records.CellKey) bool {
		if c.Cell.Len() > geo.MaxLen && !d.deep.Contains(c) || !holds(c) {
			return false
		}
		kept := true
		d.with(c, func(x *cell.Cell) { kept = x.Keeps(r) })
		return kept
	})
}

// cellsBelow are the cells that a record lies in below those that it is put into at first.
func cellsBelow(r *records.Record) []records.CellKey {
	at, ok := r.Facts().Place()
	if !ok {
		return nil
	}
	var cells []records.CellKey
	for length := geo.MaxLen + 1; length <= geo.DeepLen; length++ {
		place := geo.CellOf(at, length)
		cells = append(cells, records.CellKey{Type: r.Type(), Subtype: records.AnySubtype, Cell: place})
		if r.Subtype() != "" {
			cells = append(cells, records.CellKey{Type: r.Type(), Subtype: r.Subtype(), Cell: place})
		}
	}
	return cells
}

// overflow brings a whole cell that has grown too large back to its size: it is divided, or,
// if only few are so many, those lose what is too much.
func (d *splits) overflow(c records.CellKey) {
	if d.k.Router.Size() < acceptWithin {
		return // everybody keeps everything
	}
	members := d.members(c)
	most := cell.Capacity(c.Cell)
	switch {
	case len(members) <= most:
	case cell.Splits(c.Cell, members):
		d.split(c, members)
	default:
		gone := cell.Surplus(members, most-most/surplusShare)
		for _, n := range gone {
			if n.Provider != d.k.Self {
				d.k.Index.Remove(n)
				d.prefixes.Remove(n)
			}
		}
		d.k.Logger.Info("cell is full of few origins", "cell", c, "records", len(members), "dropped", len(gone))
	}
}

// split begins to hold only a part of a cell. The keepers of children that publishers did
// not bring the records to before are handed them first.
func (d *splits) split(c records.CellKey, members []cell.Member) {
	phase := cell.Split
	if c.Cell.Len() >= geo.MaxLen {
		phase = cell.Splitting
	}
	x := cell.New(c.Cell, phase, d.k.Now())
	for _, m := range members {
		x.Offer(m)
	}
	d.mu.Lock()
	_, twice := d.cells[c]
	room := !twice && len(d.cells) < maxSplits
	if room {
		d.cells[c] = x
	}
	d.mu.Unlock()
	if !room {
		return
	}
	d.k.Logger.Info("cell divided", "cell", c, "records", len(members))
	if phase == cell.Splitting {
		d.handOver(c)
	} else {
		d.prune(c)
	}
}

// prune gives up what is not needed of a cell that is divided.
func (d *splits) prune(c records.CellKey) {
	held := make(map[records.CellKey]bool)
	holds := func(c records.CellKey) bool {
		is, ok := held[c]
		if !ok {
			is = d.k.closest.retains(c)
			held[c] = is
		}
		return is
	}
	for r := range d.k.Index.In(c, d.k.Now()) {
		if !d.needed(r, holds) {
			d.k.Index.Remove(r.Name())
			d.prefixes.Remove(r.Name())
		}
	}
}

// forQuery tells which of the cells are divided, with the children that may have a match.
func (d *splits) forQuery(p *query.Plan, cells []records.CellKey) []*pb.Split {
	return d.describe(cells, func(c records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
		if phase, _ := x.Phase(); phase.Complete() {
			return nil, false
		}
		children := map[geo.Cell]cell.Summary{}
		for _, place := range x.Populated() {
			s := x.Summary(place)
			if _, some := s.Bound(p, place); some {
				children[place] = s
			}
		}
		return children, true
	})
}

// forPublisher tells publishers which of the cells are divided, with the children that their
// records lie in.
func (d *splits) forPublisher(cells map[records.CellKey][]geo.Cell) []*pb.Split {
	keys := slices.SortedFunc(maps.Keys(cells), compareCells)
	return d.describe(keys, func(c records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
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

func compareCells(a, b records.CellKey) int {
	return strings.Compare(a.String(), b.String())
}

// describeRecords gives the divisions among cells of which there is something to say, with the children that are spoken of.
func (d *splits) describe(cells []records.CellKey, say func(records.CellKey, *cell.Cell) (map[geo.Cell]cell.Summary, bool)) []*pb.Split {
	var all []*pb.Split
	told := 0
	for _, c := range cells {
		d.with(c, func(x *cell.Cell) {
			if len(all) == MaxQueryCells {
				return
			}
			children, some := say(c, x)
			if told += len(children); some && told <= maxChildren {
				all = append(all, x.Proto(c.String(), children))
			}
		})
	}
	return all
}

// summaryOf tells how many and how good the records of a cell are.
func (d *splits) summaryOf(c records.CellKey) cell.Summary {
	var s cell.Summary
	if d.with(c, func(x *cell.Cell) { s = x.Total() }) {
		return s
	}
	for r := range d.k.Index.In(c, d.k.Now()) {
		s.Add(r)
	}
	return s
}

// summary answers SUMMARY.
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
