package ask

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// A peer may hold a copy of all records of a type, and offer to answer from it. A question about a divided cell goes to two such
// peers, if there are two, to two keepers of the cell, and to two keepers of each of two drawn children, all at once. What the keepers, this
// peer's index and the other copy know checks an answer: one that agrees ends the search. Who has a copy cannot forge a record. He can
// leave one out, and is found out if anybody asked lists it. Else the search goes on as without copies.

const (
	copyTypes   = 64 // types with remembered copies
	copiesRead  = 64 // offers of copies of one type, drawn by the seed of the question
	copiesKept  = 8  // of them, in as many networks as possible
	copiesAsked = 2  // for one question
	copyUnread  = 64 // peers whose copies were contradicted
	unreadFor   = 10 * time.Minute
	seekEvery   = 5 * time.Minute // pause between two searches for the copies of a type
	copyDivided = 64              // cells whose division is remembered
	copyDrawn   = 2               // children of divided cells that check one answer
	maxParts    = 4096            // cells of a type that a copy compares
	partsWidth  = 4               // cells asked about at a time
	partsTime   = 2 * time.Minute // for all of them
)

// copies remembers who offers copies, and which cells are divided. It is safe for concurrent use.
type copies struct {
	divided *lru.Cache[records.CellKey, map[geo.Cell]cell.Summary] // children with records; nil for a whole cell

	contradicted wire.TimedSet[peer.ID] // by others

	mu    sync.Mutex // guards found
	found *lru.Cache[string, volunteers]
}

type volunteers struct {
	ids   []peer.ID
	until time.Time // the next search
}

func newCopies() *copies {
	return &copies{
		divided:      bounded.Shared[records.CellKey, map[geo.Cell]cell.Summary](copyDivided),
		contradicted: wire.NewTimedSet[peer.ID](copyUnread), found: bounded.Shared[string, volunteers](copyTypes),
	}
}

// of returns peers with a copy of a type, as far as known.
func (c *copies) of(kind string) []peer.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, _ := c.found.Get(kind)
	return slices.Clone(v.ids)
}

// forget leaves a peer out until the next search.
func (c *copies) forget(kind string, id peer.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.found.Get(kind); ok {
		v.ids = slices.DeleteFunc(slices.Clone(v.ids), func(other peer.ID) bool { return other == id })
		c.found.Add(kind, v)
	}
}

// due reports whether a search for the copies of a type is due, and takes it.
func (c *copies) due(kind string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.found.Get(kind)
	if ok && now.Before(v.until) {
		return false
	}
	v.until = now.Add(seekEvery)
	c.found.Add(kind, v)
	return true
}

// seekCopies looks for copies of a type in the background, if it is time.
func (a *Asker) seekCopies(kind string) {
	if kind == wire.CopyType || !a.copies.due(kind, a.Now()) {
		return
	}
	a.Go(func(ctx context.Context) {
		ids, err := a.findCopies(ctx, kind)
		if err != nil {
			a.Logger.Debug("the search for copies of a type failed", "type", kind, "error", err)
			return
		}
		a.copies.mu.Lock()
		defer a.copies.mu.Unlock()
		v, _ := a.copies.found.Get(kind)
		v.ids = ids
		a.copies.found.Add(kind, v)
	})
}

// findCopies finds peers with a copy of a type, and their addresses: those of other networks first, as an owner may offer many.
func (a *Asker) findCopies(ctx context.Context, kind string) (ids []peer.ID, err error) {
	ctx, end, err := a.Begin(ctx, "query", a.Limits.Query)
	if err != nil {
		return nil, err
	}
	defer func() { end(err) }()
	q := query.Query{Type: wire.CopyType, Subtype: kind, Sort: query.SortRandom, Seed: 1 + uint64(a.Draw(math.MaxInt32)), Limit: copiesRead}
	plan, err := query.Compile(q, query.Defaults{})
	if err != nil {
		return nil, err
	}
	found, err := a.Find(ctx, plan, plan.Cells(coverCells))
	if err != nil {
		return nil, err
	}
	var again []peer.ID
	seen := make(map[netip.Prefix]bool)
	for _, r := range found.Records {
		id := r.Name().Provider
		if id == a.Self || slices.Contains(ids, id) || slices.Contains(again, id) {
			continue
		}
		if wide := a.wide(id); wide.IsValid() && seen[wide] {
			again = append(again, id)
		} else {
			seen[wide] = true
			ids = append(ids, id)
		}
	}
	ids = append(ids, again...)
	ids = ids[:min(len(ids), copiesKept)]
	wire.Bounded(2, len(ids), func(i int) {
		if len(a.Host.Peerstore().Addrs(ids[i])) == 0 {
			_, _ = a.Router.Closest(ctx, string(ids[i]), nil) // a server of the DHT is the closest to itself
		}
	})
	return ids, nil
}

// copyAsked is a question to peers with copies, under way.
type copyAsked struct {
	of      []peer.ID
	cells   []records.CellKey
	replies chan reply // room for all
	got     []reply
	end     func() // ends the question, and waits for it
}

// askForCopy asks peers for answers from their copies, unless no cell is divided as far as known. It returns the children whose keepers
// check the answers; none without such peers.
func (t *treeSearch) askForCopy(ctx context.Context, cells []records.CellKey) (drawn []records.CellKey) {
	kind := cells[0].Type
	whole := func(c records.CellKey) bool {
		children, known := t.copies.divided.Get(c)
		return known && children == nil
	}
	if cells[0].OfProvider() || !slices.ContainsFunc(cells, func(c records.CellKey) bool { return !whole(c) }) {
		return nil
	}
	c := &copyAsked{cells: cells, replies: make(chan reply, copiesAsked)}
	if t.Copied(kind) == "" {
		c.of = []peer.ID{t.Self}
	} else {
		able := slices.DeleteFunc(t.copies.of(kind), func(id peer.ID) bool { return t.client.Avoided(id) || t.copies.contradicted.Has(id, t.Now()) })
		t.Mix(able)
		c.of = able[:min(len(able), copiesAsked)]
	}
	if len(c.of) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	q := cellQuery{plan: t.plan, cells: cells, worst: math.Inf(1), copy: true}
	var asked sync.WaitGroup
	for _, id := range c.of {
		asked.Go(func() { c.replies <- t.ask(ctx, id, q, t.trace) })
	}
	c.end = func() { cancel(); asked.Wait() }
	t.copy = c
	return t.drawChildren(cells)
}

// drawChildren draws children of divided cells, those with many records more often: as if it drew records.
func (t *treeSearch) drawChildren(cells []records.CellKey) (drawn []records.CellKey) {
	var able []records.CellKey
	var counts []int
	sum := 0
	for _, c := range cells {
		children, _ := t.copies.divided.Get(c)
		for _, place := range slices.Sorted(maps.Keys(children)) {
			s := children[place]
			if _, some := s.Bound(t.plan, place); some {
				able, counts, sum = append(able, wire.CellAt(c, place)), append(counts, s.Count), sum+s.Count
			}
		}
	}
	for ; len(drawn) < min(copyDrawn, len(able)) && sum > 0; sum -= counts[slices.Index(able, drawn[len(drawn)-1])] {
		at := t.Draw(sum)
		for i, c := range able {
			if slices.Contains(drawn, c) {
				continue
			}
			if at -= counts[i]; at < 0 {
				drawn = append(drawn, c)
				break
			}
		}
	}
	return drawn
}

// noteDivided remembers which of the asked cells are divided, and looks for copies if some are. It reports whether some are.
func (t *treeSearch) noteDivided(cells []records.CellKey) (some bool) {
	for i := range t.groups {
		g := &t.groups[i]
		for _, c := range g.cells {
			if !slices.Contains(cells, c) || c.OfProvider() || g.full() == 0 {
				continue
			}
			if !g.divided(c) {
				t.copies.divided.Add(c, nil)
				continue
			}
			some = true
			before, _ := t.copies.divided.Get(c)
			children := maps.Clone(before) // of questions whose filters excluded others
			if children == nil {
				children = make(map[geo.Cell]cell.Summary)
			}
			for place, s := range g.summaries(c) {
				children[place] = s
			}
			t.copies.divided.Add(c, children)
		}
	}
	if some {
		t.seekCopies(cells[0].Type)
	}
	return some
}

// summaries returns the children of a divided cell in the answers, each with the largest count.
func (g *group) summaries(c records.CellKey) map[geo.Cell]cell.Summary {
	all := make(map[geo.Cell]cell.Summary)
	for _, a := range g.answers {
		for place, s := range a.splits[c].Children {
			if known, ok := all[place]; !ok || s.Count > known.Count {
				all[place] = s
			}
		}
	}
	return all
}

// takeCopy reports whether the answer of a copy is there and agrees with what this peer knows. Then the search has ended. It waits for
// answers, but not long: they may come during the search.
func (t *treeSearch) takeCopy(ctx context.Context, patience time.Duration) bool {
	c := t.copy
	if c == nil {
		return false
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for waits := true; waits && len(c.got) < len(c.of); {
		select {
		case r := <-c.replies:
			c.got = append(c.got, r)
		case <-late.C:
			select {
			case r := <-c.replies:
				c.got = append(c.got, r)
			default:
			}
			waits = false
		case <-ctx.Done():
			return false
		}
	}
	usable := slices.ContainsFunc(c.got, func(r reply) bool { return r.err == nil && r.answer.full })
	if !usable && len(c.got) < len(c.of) {
		return false
	}
	t.copy = nil
	if t.copied = t.judgeCopies(ctx, c); t.copied == nil {
		return false
	}
	t.trace.add("the copy of %s agrees with the keepers of %d cells: the search ends", t.copied.from, len(t.asked))
	t.groups = append(t.groups, group{cells: c.cells, set: route.NewSet([]peer.ID{t.copied.from}, nil), answers: []answer{*t.copied}})
	addNewest(t.results, []answer{*t.copied})
	t.candidates = nil
	return true
}

// unsettle has the search ask again about drawn children with too few answers for itself.
func (t *treeSearch) unsettle() {
	t.drawn = nil
	t.groups = slices.DeleteFunc(t.groups, func(g group) bool {
		if !g.check {
			return false
		}
		if g.check = false; g.full() >= g.wanted() {
			return false
		}
		for _, c := range g.cells {
			t.candidates = slices.Insert(t.candidates, 0, candidate{c, math.Inf(-1)})
			t.asked = slices.DeleteFunc(t.asked, func(asked records.CellKey) bool { return asked == c })
		}
		return true
	})
}

// judgeCopies returns the first answer from a copy that counts; nil without one. It must list, in the newest version, what the asked
// keepers, the other copy and this peer's index list; and the keepers of whole cells must list what it lists there.
func (t *treeSearch) judgeCopies(ctx context.Context, c *copyAsked) *answer {
	refuse := func(id peer.ID, result, why string) {
		t.Signals.Metrics.AskedCopy(result)
		t.trace.add("the copy of %s does not count, it is %s: %s", id, result, why)
		t.copies.forget(c.cells[0].Type, id)
		if result == "contradicted" {
			t.client.Avoid(id)
			t.copies.contradicted.Add(id, t.Now().Add(unreadFor))
		}
	}
	all := group{cells: c.cells}
	least, most, unchecked := t.expected(c.cells)
	for _, r := range c.got {
		switch x := r.answer; {
		case r.err != nil:
			refuse(r.from, "silent", fault.Message(r.err))
		case !x.full || len(x.splits) > 0:
			refuse(r.from, "lacking", x.doubt)
		case unchecked == "" && (x.total > most || x.total < least && !x.atLeast):
			refuse(r.from, "contradicted", fmt.Sprintf("it has %d matches, and the keepers at least %d and at most %d", x.total, least, most))
		default:
			x.copy = true
			all.answers = append(all.answers, x)
		}
	}
	n := len(all.answers)
	if unchecked != "" {
		for range n {
			t.Signals.Metrics.AskedCopy("unchecked")
		}
		t.trace.add("no copy counts, as it cannot be checked: %s", unchecked)
		return nil
	}
	if n == 0 {
		return nil
	}
	for i := range t.groups {
		for _, y := range t.groups[i].answers {
			y.of, y.probed = t.groups[i].cells, nil
			all.answers = append(all.answers, y)
		}
	}
	known := t.search(t.plan, c.cells)
	all.answers = append(all.answers, answer{ // a part of what there is, like the sample of a split cell
		from: t.Self, full: true, records: recordsOf(known.Hits), splits: map[records.CellKey]cell.SplitInfo{c.cells[0]: {}},
	})
	t.judge(ctx, cellQuery{plan: t.plan, cells: c.cells}, &all, t.trace)
	var first *answer
	for i := range all.answers[:n] {
		switch x := &all.answers[i]; {
		case x.behind || len(x.probed) >= maxProbes:
			refuse(x.from, "contradicted", "others list what it lacks")
		default:
			t.Signals.Metrics.AskedCopy("used")
			if first == nil {
				first = x
			}
		}
	}
	return first
}

// expected returns how many matches there are at least and at most in some cells, by the keepers that answered: as far as known, and
// within what changes meanwhile. Unchecked says why they cannot tell.
func (t *treeSearch) expected(cells []records.CellKey) (least, most int, unchecked string) {
	for i := range t.groups {
		g := &t.groups[i]
		if why := g.incomplete(); why != "" {
			return 0, 0, why
		}
		n := g.median(false)
		least = max(least, n)
		if !slices.ContainsFunc(g.cells, func(c records.CellKey) bool { return slices.Contains(cells, c) }) {
			continue // a drawn child
		}
		for _, c := range g.cells {
			if g.divided(c) {
				n += g.median(true) // some have no place
				for _, s := range g.summaries(c) {
					n += s.Count
				}
			}
		}
		most += n
	}
	return least - least/10, most + most/10, ""
}

// Parts finds the cells that together have all records of a type, as a search without a filter does.
func (a *Asker) Parts(ctx context.Context, kind string) (parts []wire.Part, err error) {
	ctx, end, err := a.Begin(ctx, "copy", partsTime)
	if err != nil {
		return nil, err
	}
	defer func() { end(err) }()
	due := []records.CellKey{{Type: kind, Subtype: records.AnySubtype, Cell: geo.Global}}
	plan, err := planOfAll(due[0], 1)
	if err != nil {
		return nil, err
	}
	for len(due) > 0 {
		if len(parts)+len(due) > maxParts {
			return nil, fault.New("", fault.LimitReached, "the type has more than %d cells", maxParts)
		}
		sets, err := a.closest.KeepersOf(ctx, due)
		if err != nil {
			return nil, err
		}
		groups := make([]group, len(due))
		wire.Bounded(partsWidth, len(due), func(i int) {
			groups[i] = group{cells: due[i : i+1], set: sets[i]}
			a.askGroup(ctx, cellQuery{plan: plan, worst: math.Inf(1)}, &groups[i], &queryTrace{})
		})
		var next []records.CellKey
		for i := range groups {
			g, p := &groups[i], wire.Part{Cell: due[i]}
			if why := g.incomplete(); why != "" {
				return nil, fault.New("", fault.Unavailable, "%s", why)
			}
			if p.Divided = g.divided(p.Cell); p.Divided {
				for _, place := range slices.Sorted(maps.Keys(g.children(p.Cell, plan))) {
					next = append(next, wire.CellAt(p.Cell, place))
				}
			}
			for _, x := range g.answers {
				if _, split := x.splits[p.Cell]; x.full && !x.own && split == p.Divided && len(p.Keepers) < wire.AskedAtOnce {
					p.Keepers = append(p.Keepers, x.from)
				}
			}
			if !p.Divided || p.Cell.Cell == geo.Global {
				parts = append(parts, p)
			}
		}
		due = next
	}
	return parts, nil
}
