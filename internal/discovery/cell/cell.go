// Package cell decides what the keepers of one cell of the index hold of it, what they say
// of what they do not hold, and whom they let in when it fills.
//
// # Division
//
// A cell is kept whole up to Full records. Above that its keepers divide it: they hold a
// Sample, the same at all of them whatever order they learnt the records in, and for each
// child, the next smaller cell, a Summary: how many records it has and, for each order of a
// query, a value that none of them betters. The children's own keepers hold the records.
// A reader derives from the summaries which children can still have a result and descends
// into these alone: the trie over geohashes of Ramabhadran, Ratnasamy, Hellerstein and
// Shenker ("Prefix Hash Tree", 2004), where a node that has split stays useful for what it
// knows, as in the load stripping of Zheng, Shen, Li and Shenker ("Distributed Segment
// Tree", 2006). A divided cell whose children together have no more than Merge records is
// kept whole again.
//
// # Safety
//
// A bound may be too good, which costs its readers a descent, and never too bad, which would
// hide records. Therefore publishers tell the keepers of a divided cell of every record that
// betters a summary; a record that lapses or is withdrawn does not make a summary worse; and
// only what the child's keepers say replaces it, once no publisher can remember the better
// one any more.
//
// # Fairness
//
// One provider counts for ProviderShare records at most and one address prefix for
// PrefixShare, so that neither alone divides a cell. What is above Full without dividing it
// goes, from whoever has most. No prefix has more than a quarter of a sample.
//
// Everything here is pure: time is an argument, and a Cell is not safe for concurrent use.
package cell

import (
	"maps"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// The sizes of a cell, in records.
const (
	Full          = 2000     // most that is kept whole
	Merge         = Full / 4 // most of a divided cell that is kept whole again
	SampleSize    = 1000     // kept of a divided cell
	ProviderShare = 100      // most that one provider counts for
	PrefixShare   = Full / 4 // most that one address prefix counts for
	LeafFull      = 4 * Full // most of a cell that has no children
)

// MaxChildren is the most children a cell has: those of Global are of two characters.
const MaxChildren = 1024

// Grace is how long a cell that is kept whole again still answers as divided, while it
// takes in everything: longer than publishers remember that it was divided, so that none
// of them still holds records back when it answers for all.
const Grace = 15 * time.Minute

// Phase is how a keeper holds a cell.
type Phase uint8

// The phases, in the order that a cell goes through them.
const (
	Whole     Phase = iota // has everything
	Splitting              // still has everything, and hands it to the children's keepers
	Split                  // has the sample and the summaries
	Merging                // takes everything in again, but cannot answer for all yet
)

// String gives the phase's lower-case name.
func (p Phase) String() string {
	names := [...]string{"whole", "dividing", "divided", "merging"}
	if int(p) >= len(names) {
		return "unknown"
	}
	return names[p]
}

// Open reports whether publishers are to bring every record.
func (p Phase) Open() bool { return p == Whole || p == Merging }

// Complete reports whether the keeper has every record of the cell.
func (p Phase) Complete() bool { return p == Whole || p == Splitting }

// Children gives the number of characters of a cell's children, and false for a cell that
// has none.
func Children(c geo.Cell) (length int, some bool) {
	switch n := c.Len(); {
	case n == 0:
		return geo.MinLen, true
	case n < geo.DeepLen:
		return n + 1, true
	default:
		return 0, false
	}
}

// ChildOf gives the child of a cell that a record lies in, and false for a record without
// a place and for a cell without children.
func ChildOf(c geo.Cell, r *records.Record) (geo.Cell, bool) {
	length, some := Children(c)
	at, placed := r.Facts().Place()
	if !some || !placed {
		return "", false
	}
	return geo.CellOf(at, length), true
}

// Splits reports whether members are enough, and of enough providers and prefixes, to
// divide a cell.
func Splits(c geo.Cell, members []Member) bool {
	if _, some := Children(c); !some || len(members) <= Full {
		return false
	}
	var census ProviderCounter
	for _, m := range members {
		census.Add(m.Record.Name().Provider, m.Prefix)
	}
	return census.Fair() > Full
}

// Capacity is how many records a keeper holds of a cell that is whole.
func Capacity(c geo.Cell) int {
	if _, some := Children(c); some {
		return Full
	}
	return LeafFull
}

// Cell is what one keeper knows of a cell that it has divided.
type Cell struct {
	place    geo.Cell
	phase    Phase
	since    time.Time // of the phase
	sample   Sample
	children map[geo.Cell]*child
	unplaced int // records without a place, which no child has
}

// child is what is known of one part of a divided cell: what its keepers said last, and
// everything that was told or said in this window of Grace and in the one before. What is
// better than what the keepers say is not dropped sooner: they may not have heard yet of
// what a publisher told here, and a publisher that remembers a better value than the one
// that holds now does not tell at all. The window before may be dropped at any moment:
// publishers hear nothing of it.
type child struct {
	reported    Summary
	window      Summary
	previous    Summary
	windowStart time.Time // when window began
	askedAt     time.Time
	recent      int // records told since
}

// summary is the safe summary of all that.
func (ch *child) summary() Summary {
	s := ch.stable()
	s.Merge(ch.previous)
	return ch.counted(s)
}

// stable is what stays known for Grace at least.
func (ch *child) stable() Summary {
	var s Summary
	s.Merge(ch.reported)
	s.Merge(ch.window)
	return ch.counted(s)
}

func (ch *child) counted(s Summary) Summary {
	if s.Count > 0 { // one that had records lately may have one that was not told
		s.Count = max(1, ch.reported.Count+ch.recent)
	}
	return s
}

// New divides a cell, or takes over a division from other keepers, at a time, in phase
// Dividing or Split.
func New(place geo.Cell, phase Phase, now time.Time) *Cell {
	return &Cell{place: place, phase: phase, since: now, children: make(map[geo.Cell]*child)}
}

// Place is the cell's.
func (c *Cell) Place() geo.Cell { return c.place }

// Phase is how the cell is held, and since when.
func (c *Cell) Phase() (Phase, time.Time) { return c.phase, c.since }

// FinishSplit ends phase Splitting: the children's keepers have the records.
func (c *Cell) FinishSplit(now time.Time) {
	if c.phase == Splitting {
		c.phase, c.since = Split, now
	}
}

// Offer takes note of a record of the cell. It reports whether the record is to be kept for
// the cell, and gives another one that need not be any more, if there is one. Records
// without a place are kept whatever the phase.
func (c *Cell) Offer(m Member) (kept bool, displaced []records.Name) {
	place, ok := ChildOf(c.place, m.Record)
	if !ok {
		return true, nil
	}
	if ch := c.child(place); ch != nil {
		ch.window.Add(m.Record)
		if !c.sample.Has(m.Record.Name()) { // or else it was counted before
			ch.recent++
		}
	}
	kept, displaced = c.sample.Offer(m)
	return kept || c.phase != Split, displaced
}

// child gives what is known of a part, made if need be; nil where there are too many.
func (c *Cell) child(place geo.Cell) *child {
	ch, ok := c.children[place]
	if !ok && len(c.children) < MaxChildren {
		ch = &child{windowStart: c.since}
		c.children[place] = ch
	}
	return ch
}

// Forget takes a record that lapsed or was withdrawn out of the sample.
func (c *Cell) Forget(n records.Name) { c.sample.Remove(n) }

// Keeps reports whether a record is to be held for the cell.
func (c *Cell) Keeps(r *records.Record) bool {
	_, placed := r.Facts().Place()
	return c.phase != Split || !placed || c.sample.Has(r.Name())
}

// Wants reports whether the publisher of a record is to bring it to the cell's keepers,
// given what they said of the cell: it belongs in the sample, or betters its child.
// A tombstone always is wanted.
func Wants(place geo.Cell, below uint64, children map[geo.Cell]Summary, r *records.Record) bool {
	child, ok := ChildOf(place, r)
	if !ok || r.Withdrawn() || Rank(r.Name()) < below {
		return true
	}
	s, known := children[child]
	return !known || s.ImprovedBy(r)
}

// Below is the rank below which a record is in the sample.
func (c *Cell) Below() uint64 { return c.sample.Below() }

// Sampled are the names in the sample, by rank.
func (c *Cell) Sampled() []records.Name { return c.sample.Names() }

// Summary gives what is known of a child; the zero Summary for one without records.
func (c *Cell) Summary(place geo.Cell) Summary {
	if ch, ok := c.children[place]; ok {
		return ch.summary()
	}
	return Summary{}
}

// Stable is the part of Summary that stays known for Grace at least: what publishers may be told, who
// remember it, and bring nothing that does not better it.
func (c *Cell) Stable(place geo.Cell) Summary {
	if ch, ok := c.children[place]; ok {
		return ch.stable()
	}
	return Summary{}
}

// Populated gives the children that have records, sorted.
func (c *Cell) Populated() []geo.Cell {
	var parts []geo.Cell
	for _, place := range slices.Sorted(maps.Keys(c.children)) {
		if c.Summary(place).Count > 0 {
			parts = append(parts, place)
		}
	}
	return parts
}

// Total is the summary of the whole cell.
func (c *Cell) Total() Summary {
	var total Summary
	for _, place := range slices.Sorted(maps.Keys(c.children)) {
		total.Join(c.children[place].summary())
	}
	return total
}

// recentCount is the most records that the cell may have had in this window and the one before: a child's
// keeper that has just begun says less than it will have.
func (c *Cell) recentCount() int {
	n := 0
	for _, ch := range c.children {
		n += max(ch.reported.Count+ch.recent, ch.window.Count, ch.previous.Count)
	}
	return n
}

// Stale gives up to n children whose keepers were not asked since before, those asked
// longest ago first, and notes that they are being asked.
func (c *Cell) Stale(n int, before, now time.Time) []geo.Cell {
	var due []geo.Cell
	for _, place := range slices.Sorted(maps.Keys(c.children)) {
		if c.children[place].askedAt.Before(before) {
			due = append(due, place)
		}
	}
	slices.SortStableFunc(due, func(a, b geo.Cell) int { return c.children[a].askedAt.Compare(c.children[b].askedAt) })
	due = due[:min(n, len(due))]
	for _, place := range due {
		ch := c.children[place]
		ch.askedAt, ch.recent = now, 0
		if now.Sub(ch.windowStart) >= Grace {
			ch.previous, ch.window, ch.windowStart = ch.window, Summary{}, now
		}
	}
	return due
}

// Refresh takes what the keepers of a child say, who were asked after Stale gave it: the
// safer of their views where they differ, see Summary.Merge.
func (c *Cell) Refresh(place geo.Cell, said Summary) {
	ch := c.child(place)
	if ch == nil {
		return
	}
	ch.window.Merge(ch.reported)
	if ch.reported = said; ch.summary().Count == 0 {
		delete(c.children, place)
	}
}

// Adopt learns from another keeper of the cell what it knows of a child; it only betters
// what is known here.
func (c *Cell) Adopt(place geo.Cell, said Summary) {
	length, some := Children(c.place)
	if !some || place.Len() != length || !c.place.ContainsCell(place) || said.Count == 0 {
		return
	}
	if ch := c.child(place); ch != nil {
		ch.reported.Merge(said)
	}
}

// SetUnplaced says how many records without a place the cell has.
func (c *Cell) SetUnplaced(n int) { c.unplaced = n }

// UpdatePhase moves the cell on when its size says so: from Split to Merging when it has come
// down to Merge records, and stayed there for a window at least, and back when it has grown meanwhile.
// It reports whether it has been merging for so long that, once all its records were fetched, it is whole.
func (c *Cell) UpdatePhase(now time.Time) (ripe bool) {
	switch count := c.Total().Count + c.unplaced; {
	case c.phase == Split && c.recentCount()+c.unplaced <= Merge:
		c.phase, c.since = Merging, now
	case c.phase == Merging && count > Full:
		c.phase, c.since = Split, now
	case c.phase == Merging:
		return now.Sub(c.since) >= Grace
	}
	return false
}

// FillSample takes a record that is held anyway into the sample, if it belongs there.
func (c *Cell) FillSample(m Member) {
	if _, ok := ChildOf(c.place, m.Record); ok && Rank(m.Record.Name()) < c.sample.Below() {
		c.sample.Offer(m)
	}
}
