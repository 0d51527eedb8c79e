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

// divisions are the cells that this peer has divided, because they have more records than
// a keeper holds whole. A cell without a division is whole. Where everybody keeps
// everything nothing is divided: the children's keepers would be the same peers.
type divisions struct {
	k       *Keeper
	origins *lru.Cache[records.Name, netip.Prefix] // of records brought from known addresses; has its own lock
	deep    *lru.Cache[records.CellKey, struct{}]  // cells below geo.MaxLen that this peer was asked to keep; likewise
	looked  uint64                                 // Index.Seq of the last look for what is not needed; of the tending goroutine

	mu     sync.Mutex // guards what follows, and the cells themselves
	cells  map[records.CellKey]*cell.Cell
	handed map[records.CellKey]bool // of cells being divided: this peer has done its part
	busy   map[records.CellKey]bool // being handed over
	doubts map[records.CellKey]bool // what was pulled of them may be but the sample
	crowds *lru.Cache[records.CellKey, *crowd]
	line   *cell.Line
}

// crowd is a census of a cell that is nearly full.
type crowd struct {
	census cell.Census
	until  time.Time
}

func newDivisions(k *Keeper) *divisions {
	origins, err := lru.New[records.Name, netip.Prefix](originsRemembered)
	deep, err2 := lru.New[records.CellKey, struct{}](cellsRemembered)
	crowds, err3 := lru.New[records.CellKey, *crowd](crowdsRemembered)
	if err = errors.Join(err, err2, err3); err != nil {
		panic("keeper: " + err.Error()) // impossible: the sizes are positive constants
	}
	return &divisions{
		k: k, origins: origins, deep: deep, crowds: crowds, line: cell.NewLine(),
		cells: make(map[records.CellKey]*cell.Cell), handed: make(map[records.CellKey]bool), busy: make(map[records.CellKey]bool),
		doubts: make(map[records.CellKey]bool),
	}
}

// with calls do with the division of a cell, under the lock, and reports whether there is one.
func (d *divisions) with(c records.CellKey, do func(*cell.Cell)) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok := d.cells[c]
	if ok {
		do(x)
	}
	return ok
}

// complete reports whether this peer's index has all that the keepers of the cells have.
func (d *divisions) complete(cells []records.CellKey) bool {
	return !slices.ContainsFunc(cells, func(c records.CellKey) bool { return !d.phase(c).Complete() })
}

func (d *divisions) phase(c records.CellKey) (p cell.Phase) {
	d.with(c, func(x *cell.Cell) { p, _ = x.Phase() })
	return p
}

// member is a record with its origin as far as it is remembered.
func (d *divisions) member(r *records.Record) cell.Member {
	from, _ := d.origins.Peek(r.Name())
	return cell.Member{Record: r, Prefix: from}
}

func (d *divisions) members(c records.CellKey) []cell.Member {
	var all []cell.Member
	for r := range d.k.Index.In(c, d.k.Now()) {
		all = append(all, d.member(r))
	}
	return all
}

// offer hands a record to the divisions of the cells it was brought for. It reports whether
// one of the cells needs it here.
func (d *divisions) offer(m cell.Member, cells []records.CellKey) (wanted bool) {
	var gone []records.Name
	for _, c := range cells {
		divided := d.with(c, func(x *cell.Cell) {
			kept, displaced := x.Offer(m)
			wanted = wanted || kept
			if p, _ := x.Phase(); p == cell.Divided {
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
func (d *divisions) release(n records.Name) {
	if r, ok := d.k.Index.Get(n); ok && !d.needed(r, d.k.places.holds) {
		d.k.Index.Remove(n)
		d.origins.Remove(n)
	}
}

// needed reports whether this peer is to hold a record: it is its own, or wanted, or of a
// cell that it holds and that is whole here or has it in its sample.
func (d *divisions) needed(r *records.Record, holds func(records.CellKey) bool) bool {
	if r.Name().Provider == d.k.Self || d.k.Wanted != nil && d.k.Wanted(r) {
		return true
	}
	return slices.ContainsFunc(append(r.Cells(), deepCells(r)...), func(c records.CellKey) bool {
		if c.Cell.Len() > geo.MaxLen && !d.deep.Contains(c) || !holds(c) {
			return false
		}
		kept := true
		d.with(c, func(x *cell.Cell) { kept = x.Keeps(r) })
		return kept
	})
}

// deepCells are the cells that a record lies in below those that it is put into at first.
func deepCells(r *records.Record) []records.CellKey {
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
func (d *divisions) overflow(c records.CellKey) {
	if d.k.Router.Size() < slack {
		return // everybody keeps everything
	}
	members := d.members(c)
	most := cell.Capacity(c.Cell)
	switch {
	case len(members) <= most:
	case cell.Divides(c.Cell, members):
		d.divide(c, members)
	default:
		gone := cell.Surplus(members, most-most/surplusShare)
		for _, n := range gone {
			if n.Provider != d.k.Self {
				d.k.Index.Remove(n)
				d.origins.Remove(n)
			}
		}
		d.k.Logger.Info("cell is full of few origins", "cell", c, "records", len(members), "dropped", len(gone))
	}
}

// divide begins to hold only a part of a cell. The keepers of children that publishers did
// not bring the records to before are handed them first.
func (d *divisions) divide(c records.CellKey, members []cell.Member) {
	phase := cell.Divided
	if c.Cell.Len() >= geo.MaxLen {
		phase = cell.Dividing
	}
	x := cell.New(c.Cell, phase, d.k.Now())
	for _, m := range members {
		x.Offer(m)
	}
	d.mu.Lock()
	_, twice := d.cells[c]
	room := !twice && len(d.cells) < maxDivided
	if room {
		d.cells[c] = x
	}
	d.mu.Unlock()
	if !room {
		return
	}
	d.k.Logger.Info("cell divided", "cell", c, "records", len(members))
	if phase == cell.Dividing {
		d.handOver(c)
	} else {
		d.shed(c)
	}
}

// shed gives up what is not needed of a cell that is divided.
func (d *divisions) shed(c records.CellKey) {
	held := make(map[records.CellKey]bool)
	holds := func(c records.CellKey) bool {
		is, ok := held[c]
		if !ok {
			is = d.k.places.holds(c)
			held[c] = is
		}
		return is
	}
	for r := range d.k.Index.In(c, d.k.Now()) {
		if !d.needed(r, holds) {
			d.k.Index.Remove(r.Name())
			d.origins.Remove(r.Name())
		}
	}
}

// splits tells which of the cells are divided, with the children that may have a match.
func (d *divisions) splits(p *query.Plan, cells []records.CellKey) []*pb.Split {
	return d.tell(cells, func(c records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
		if phase, _ := x.Phase(); phase.Complete() {
			return nil, false
		}
		children := map[geo.Cell]cell.Summary{}
		for _, place := range x.Parts() {
			s := x.Summary(place)
			if _, some := s.Bound(p, place); some {
				children[place] = s
			}
		}
		return children, true
	})
}

// refusals tells publishers which of the cells are divided, with the children that their
// records lie in.
func (d *divisions) refusals(cells map[records.CellKey][]geo.Cell) []*pb.Split {
	keys := slices.SortedFunc(maps.Keys(cells), compareCells)
	return d.tell(keys, func(c records.CellKey, x *cell.Cell) (map[geo.Cell]cell.Summary, bool) {
		if phase, _ := x.Phase(); phase.Open() {
			return nil, false
		}
		children := map[geo.Cell]cell.Summary{}
		for _, place := range cells[c] {
			children[place] = x.Lasting(place)
		}
		return children, true
	})
}

func compareCells(a, b records.CellKey) int {
	return strings.Compare(a.String(), b.String())
}

// tell gives the divisions among cells of which there is something to say, with the children that are spoken of.
func (d *divisions) tell(cells []records.CellKey, say func(records.CellKey, *cell.Cell) (map[geo.Cell]cell.Summary, bool)) []*pb.Split {
	var all []*pb.Split
	told := 0
	for _, c := range cells {
		d.with(c, func(x *cell.Cell) {
			if len(all) == MaxQueryCells {
				return
			}
			children, some := say(c, x)
			if told += len(children); some && told <= maxParts {
				all = append(all, x.SplitProto(c.String(), children))
			}
		})
	}
	return all
}

// summaryOf tells how many and how good the records of a cell are.
func (d *divisions) summaryOf(c records.CellKey) cell.Summary {
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
		sum := s.k.divisions.summaryOf(c)
		resp.Summaries = append(resp.Summaries, sum.Proto(c.Cell))
		if !s.k.places.keeps(c) {
			resp.NotKept = append(resp.NotKept, c.String())
		}
	}
	return resp, nil
}
