package compare

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/digest"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// copyLapse is the age of the last comparison of all cells of a type from which on the copy is not whole.
const copyLapse = 4 * wire.SyncEvery

// Copies are the types of which this peer holds all records. It compares each whole cell of the type with two of its keepers, as a
// keeper of the cell would, again and again: what live updates lost comes with the next round. It is safe for concurrent use.
type Copies struct {
	*Syncer
	parts func(ctx context.Context, kind string) ([]wire.Part, error)

	mu    sync.Mutex // guards what state points to
	state map[string]*copyState
}

type copyState struct {
	since time.Time // whole without a break; zero: not whole
	done  time.Time // start of the last round that compared all cells; zero: none counts
	lacks string    // why the last round is not complete
}

// Copy is what this peer says of its copy of a type.
type Copy struct {
	Type  string
	Since time.Time // whole since then; zero: not whole
	Lacks string    // why it is not whole
}

// NewCopies returns the copies of e.CopyTypes, none of them whole. Parts finds the cells of a type.
func NewCopies(y *Syncer, parts func(ctx context.Context, kind string) ([]wire.Part, error)) *Copies {
	c := &Copies{Syncer: y, parts: parts, state: make(map[string]*copyState, len(y.CopyTypes))}
	for _, kind := range y.CopyTypes {
		c.state[kind] = &copyState{lacks: "it has not compared all cells yet"}
	}
	return c
}

// Run compares all cells of each type at an interval until ctx ends.
func (c *Copies) Run(ctx context.Context) {
	for pause.For(ctx, syncSoon) { // a joiner knows soon who keeps what
		for _, kind := range c.CopyTypes {
			c.Round(ctx, kind)
		}
		if !pause.For(ctx, c.Limits.Sync-syncSoon) {
			return
		}
	}
}

// Round compares all cells of a type.
func (c *Copies) Round(ctx context.Context, kind string) {
	began := c.Clock()
	err := c.round(ctx, kind)
	blind := c.blind()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state[kind]
	if s.lacks = ""; err != nil {
		s.lacks = fault.Message(err)
		return
	}
	if blind != "" { // Copy says so
		return
	}
	if s.done = began; s.since.IsZero() {
		s.since = c.Now()
		c.Logger.Info("this peer holds all records of a type: others may ask it instead of many keepers", "type", kind)
	}
}

// Copy returns the state of the copy of a type. Lacks is empty only for a whole one.
func (c *Copies) Copy(kind string) Copy {
	s, kept := c.state[kind] // a key never changes
	if !kept {
		return Copy{Type: kind, Lacks: "it keeps no copy of " + kind}
	}
	blind := c.blind()
	c.mu.Lock()
	defer c.mu.Unlock()
	if blind != "" { // what it missed meanwhile, only a new round tells
		s.done = time.Time{}
	}
	why := blind
	switch age := c.Clock().Sub(s.done); {
	case why != "":
	case s.done.IsZero():
		why = cmp.Or(s.lacks, "it has not compared all cells again yet")
	case age > copyLapse:
		why = fmt.Sprintf("it last compared all cells %s ago", age.Round(time.Second))
		if s.lacks != "" {
			why += ": " + s.lacks
		}
	}
	if why != "" {
		if !s.since.IsZero() {
			c.Logger.Info("this peer does not hold all records of a type any more", "type", kind, "reason", why)
		}
		s.since = time.Time{}
	}
	return Copy{Type: kind, Since: s.since, Lacks: why}
}

// Copies returns the state of all copies.
func (c *Copies) Copies() (all []Copy) {
	for _, kind := range c.CopyTypes {
		all = append(all, c.Copy(kind))
	}
	return all
}

// blind says why this peer's records of whatever cell may lack some; "" without a reason.
func (c *Copies) blind() string {
	if c.Limits.Sync > 0 {
		c.Epoch() // notices a suspension
	}
	switch {
	case !c.Router.Serving():
		return "it is no keeper: it is behind NAT or a leaf"
	case c.Index.Crowded(c.Now()):
		return "its index is full and may lack some: give discovery.limits.index_bytes more memory"
	case c.Limits.Sync > 0 && !c.Know.Knows.Load() && !c.Alone():
		return "it has not compared its records with another keeper yet"
	}
	return cmp.Or(c.ClockFault(), c.Know.Isolation(c.Clock()))
}

// round compares each part of a type with its keepers. An error names the first part that was not compared.
func (c *Copies) round(ctx context.Context, kind string) error {
	parts, err := c.parts(ctx, kind)
	if err != nil {
		return err
	}
	table := c.Table()
	c.Outdate()
	v := c.viewOf(table)
	mine, at := v.setsOf(kind, parts), make(map[peer.ID][]differingCell)
	for _, p := range parts {
		for _, id := range p.Keepers {
			at[id] = append(at[id], differingCell{cell: p.Cell, mine: mine[p.Cell.Cell]})
		}
	}
	keepers := make([]peer.ID, 0, len(at))
	for id := range at {
		keepers = append(keepers, id)
	}
	slices.Sort(keepers)
	errs := make([]error, len(keepers))
	wire.Bounded(syncWidth, len(keepers), func(i int) { errs[i] = c.copyFrom(ctx, keepers[i], table, v, at[keepers[i]]) })
	for i, err := range errs {
		if err != nil {
			return fault.New("", fault.KindOf(err), "the cell %s could not be compared: %s", at[keepers[i]][0].cell, fault.Message(err))
		}
	}
	return nil
}

// copyFrom pulls what a keeper has of its cells and this peer lacks.
func (c *Copies) copyFrom(ctx context.Context, id peer.ID, table *route.TableState, v *view, cells []differingCell) (err error) {
	ctx, end, err := c.Begin(ctx, "copy", syncPeer)
	if err != nil {
		return err
	}
	defer func() { end(err) }()
	d := &diff{Syncer: c.Syncer, peer: id, at: table, mine: v, roots: true}
	for some := range slices.Chunk(cells, wire.SyncCells) {
		entries, err := d.entries(ctx, some)
		if err == nil {
			err = d.fetch(ctx, some, entries)
		}
		if err != nil {
			c.reportFailure(ctx, id, err)
			return err
		}
	}
	if d.taken > 0 {
		c.Outdate()
	}
	return nil
}

// setsOf returns the records of a type by the parts that are whole.
func (v *view) setsOf(kind string, parts []wire.Part) map[geo.Cell]*digest.Set {
	entries := make(map[geo.Cell][]digest.Entry, len(parts))
	for _, p := range parts {
		if !p.Divided {
			entries[p.Cell.Cell] = nil
		}
	}
	_, undivided := entries[geo.Global]
	for _, x := range v.all {
		if x.record.Type() != kind {
			continue
		}
		if undivided {
			entries[geo.Global] = append(entries[geo.Global], x.entry)
		}
		at, placed := x.record.Facts().Place()
		if !placed {
			continue
		}
		place := geo.CellOf(at, geo.DeepLen)
		for n := 1; n <= geo.DeepLen; n++ {
			if some, ok := entries[place[:n]]; ok {
				entries[place[:n]] = append(some, x.entry)
			}
		}
	}
	sets := make(map[geo.Cell]*digest.Set, len(entries))
	for place, some := range entries {
		sets[place] = digest.New(some)
	}
	return sets
}

// Offered returns the offer by which other peers find the copy of a type: with the type as subtype and without a place it lies in
// one cell, and who looks for copies finds them with one question.
func Offered(kind string) records.Offer {
	return records.Offer{
		ID: wire.CopyType + "." + kind, Health: &records.Health{Status: "HEALTHY"},
		Metadata: records.Metadata{Type: wire.CopyType, Subtype: kind, Description: "answers questions about all offers of type " + kind},
	}
}
