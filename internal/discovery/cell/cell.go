// Package cell decides which records of one cell its keepers hold, how they describe the other
// records, and which new records they admit to a nearly full cell.
//
// # Split
//
// Up to Full records, keepers hold a cell whole. Above, they split it: they hold a Sample, equal
// at all keepers regardless of the order of arrival, and a Summary of each child, the next smaller
// cell. A summary has the number of records and, for each order of a query, a bound: no record has
// a better value. The keepers of the children hold the records. From the summaries a reader
// derives which children can still have a result, and searches only these. This is the trie over
// geohashes of Ramabhadran, Ratnasamy, Hellerstein and Shenker ("Prefix Hash Tree", 2004), except
// that a split node stays useful for its own knowledge, as in the load stripping of Zheng, Shen,
// Li and Shenker ("Distributed Segment Tree", 2006). A split cell returns to phase Whole after its
// children together shrink to Merge records.
//
// # Safety
//
// A bound may be too good: this costs readers a search. A bound is never too bad: this would hide
// records. Therefore publishers send the keepers of a split cell every record that improves a
// summary; the expiry or withdrawal of a record does not make a summary worse; and only reports of
// the child's keepers replace a summary, after all publishers have forgotten the better one.
//
// # Fairness
//
// One provider counts for at most ProviderShare records and one address prefix for PrefixShare, so
// neither can cause a split alone. Without a split, records above Full are dropped from the
// largest provider or prefix. No prefix has more than a quarter of a sample.
//
// The package is pure: time is an argument. A Cell is not safe for concurrent use.
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
	Full          = 2000     // maximum of a whole cell
	Merge         = Full / 4 // maximum of a split cell that becomes whole again
	SampleSize    = 1000     // sample of a split cell
	ProviderShare = 100      // maximum that counts for one provider
	PrefixShare   = Full / 4 // maximum that counts for one address prefix
	LeafFull      = 4 * Full // maximum of a cell without children
)

// MaxChildren is the number of parts of a cell: they have one more character.
const MaxChildren = 32

// Grace is the duration of phase Merging: the cell still answers as split while it accepts every
// record. Publishers remember a split for a shorter time, so none of them withholds records when
// the cell answers for all.
const Grace = 15 * time.Minute

// Rests of the keepers of a child whose reports do not change. The longest is less than half a Grace, so
// windows end in time.
const (
	restFirst = 2 * time.Minute
	restMost  = 6 * time.Minute
)

// Phase is the way a keeper holds a cell.
type Phase uint8

// The phases, in the order that a cell goes through them.
const (
	Whole     Phase = iota // holds every record
	Splitting              // still holds every record, and hands it over to the keepers of the children
	Split                  // holds the sample and the summaries
	Merging                // accepts every record again, but does not answer for all yet
)

// Open reports whether publishers should send every record.
func (p Phase) Open() bool { return p == Whole || p == Merging }

// Complete reports whether the keeper has every record of the cell.
func (p Phase) Complete() bool { return p == Whole || p == Splitting }

// Divisible reports whether a cell has children.
func Divisible(c geo.Cell) bool { return c.Len() < geo.DeepLen }

// isChild reports whether a cell is a child of c.
func isChild(c, child geo.Cell) bool {
	return Divisible(c) && child.Len() == c.Len()+1 && c.ContainsCell(child)
}

// ChildOf returns the child that contains a record. It reports false for a record without a place
// and for a cell without children.
func ChildOf(c geo.Cell, r *records.Record) (geo.Cell, bool) {
	at, placed := r.Facts().Place()
	if !Divisible(c) || !placed {
		return "", false
	}
	return geo.CellOf(at, c.Len()+1), true
}

// Splits reports whether a cell has too many members, of enough providers and prefixes for a
// split.
func Splits(c geo.Cell, members []Member) bool {
	if !Divisible(c) || len(members) <= Full {
		return false
	}
	var counter ProviderCounter
	for _, m := range members {
		counter.Add(m.Record.Name().Provider, m.Prefix)
	}
	return counter.Fair() > Full
}

// Capacity returns the maximum number of records in a whole cell.
func Capacity(c geo.Cell) int {
	if Divisible(c) {
		return Full
	}
	return LeafFull
}

// Cell is the knowledge of one keeper about a cell that it split.
type Cell struct {
	place    geo.Cell
	phase    Phase
	since    time.Time // start of the phase
	sample   Sample
	children map[geo.Cell]*child
	unplaced int // records without a place: no child contains them
}

// child is the knowledge about one child of a split cell: the latest report of its keepers, and
// everything that publishers or keepers sent in the present window of Grace and in the window
// before. Values better than the report stay for that time, for two reasons. The child's keepers
// may not know a publisher's record yet. And a publisher that remembers a better value than the
// present one sends nothing at all. The previous window may be dropped at any moment: publishers
// never see it.
type child struct {
	reported    Summary
	window      Summary
	previous    Summary
	windowStart time.Time
	askedAt     time.Time
	rest        time.Duration // further pause before the next question: grows while reports do not change
	recent      int           // records since the last report
}

// summary returns the safe summary of all knowledge.
func (ch *child) summary() Summary {
	s := ch.stable()
	s.Merge(ch.previous)
	return ch.counted(s)
}

// stable returns the part of the summary that stays for at least Grace.
func (ch *child) stable() Summary {
	var s Summary
	s.Merge(ch.reported)
	s.Merge(ch.window)
	return ch.counted(s)
}

func (ch *child) counted(s Summary) Summary {
	if s.Count > 0 { // a recently used child may have a record unknown here
		s.Count = max(1, ch.reported.Count+ch.recent)
	}
	return s
}

// New returns a cell that is split at time now, or adopted from another keeper, in phase Splitting
// or Split.
func New(place geo.Cell, phase Phase, now time.Time) *Cell {
	return &Cell{place: place, phase: phase, since: now, children: make(map[geo.Cell]*child)}
}

// Phase returns the phase and its start.
func (c *Cell) Phase() (Phase, time.Time) { return c.phase, c.since }

// FinishSplit ends phase Splitting: the keepers of the children hold the records.
func (c *Cell) FinishSplit(now time.Time) {
	if c.phase == Splitting {
		c.phase, c.since = Split, now
	}
}

// Offer notes a record of the cell. Kept reports whether the keeper must hold the record for the
// cell; displaced names a record that it need not hold any more. Records without a place are kept
// in every phase.
func (c *Cell) Offer(m Member) (kept bool, displaced []records.Name) {
	place, ok := ChildOf(c.place, m.Record)
	if !ok {
		return true, nil
	}
	ch := c.child(place)
	ch.window.Add(m.Record)
	if !c.sample.Has(m.Record.Name()) { // otherwise counted before
		ch.recent++
	}
	kept, displaced = c.sample.Offer(m)
	return kept || c.phase != Split, displaced
}

// child returns the knowledge about a child, new if necessary.
func (c *Cell) child(place geo.Cell) *child {
	ch, ok := c.children[place]
	if !ok {
		ch = &child{windowStart: c.since}
		c.children[place] = ch
	}
	return ch
}

// Forget removes an expired or withdrawn record from the sample.
func (c *Cell) Forget(n records.Name) { c.sample.Remove(n) }

// Keeps reports whether the keeper must hold a record for the cell.
func (c *Cell) Keeps(r *records.Record) bool {
	_, placed := r.Facts().Place()
	return c.phase != Split || !placed || c.sample.Has(r.Name())
}

// Wants reports whether a publisher should send a record to a keeper of a split cell, given the
// keeper's hint: the record belongs to the sample, or improves the summary of its child.
// Tombstones are always wanted.
func Wants(place geo.Cell, below uint64, children map[geo.Cell]Summary, r *records.Record) bool {
	child, ok := ChildOf(place, r)
	if !ok || r.Withdrawn() || Rank(r.Name()) < below {
		return true
	}
	s, known := children[child]
	return !known || s.ImprovedBy(r)
}

// Below returns the rank below which records belong to the sample.
func (c *Cell) Below() uint64 { return c.sample.Below() }

// Sampled returns the names in the sample, by rank.
func (c *Cell) Sampled() []records.Name { return c.sample.Names() }

// Summary returns the summary of a child; the zero Summary for a child without records.
func (c *Cell) Summary(place geo.Cell) Summary {
	if ch, ok := c.children[place]; ok {
		return ch.summary()
	}
	return Summary{}
}

// Stable returns the part of Summary that stays for at least Grace. Publishers receive this part,
// remember it, and send only records with better values.
func (c *Cell) Stable(place geo.Cell) Summary {
	if ch, ok := c.children[place]; ok {
		return ch.stable()
	}
	return Summary{}
}

// Populated returns the children with records, sorted.
func (c *Cell) Populated() []geo.Cell {
	var parts []geo.Cell
	for _, place := range slices.Sorted(maps.Keys(c.children)) {
		if c.Summary(place).Count > 0 {
			parts = append(parts, place)
		}
	}
	return parts
}

// Total returns the summary of the whole cell.
func (c *Cell) Total() Summary {
	var total Summary
	for _, place := range slices.Sorted(maps.Keys(c.children)) {
		total.Join(c.children[place].summary())
	}
	return total
}

// recentCount returns an upper bound of the records in the present and the previous window: a
// child's keeper that has just begun reports fewer records than it will get.
func (c *Cell) recentCount() int {
	n := 0
	for _, ch := range c.children {
		n += max(ch.reported.Count+ch.recent, ch.window.Count, ch.previous.Count)
	}
	return n
}

// Stale returns up to n children whose keepers were last asked before a time, longest ago first.
// Keepers whose reports do not change get a further rest. Values stay in a summary for windows, not for
// a number of questions, so a rest keeps every bound safe. Stale sets the time of the children to now.
func (c *Cell) Stale(n int, before, now time.Time) []geo.Cell {
	var due []geo.Cell
	for _, place := range slices.Sorted(maps.Keys(c.children)) {
		if c.children[place].due().Before(before) {
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

// due returns the time of the last question plus the rest. News ends the rest.
func (ch *child) due() time.Time {
	if ch.recent > 0 {
		return ch.askedAt
	}
	return ch.askedAt.Add(ch.rest)
}

// Refresh replaces the report about a child that Stale returned. For different views of several
// keepers, reported is their Merge.
func (c *Cell) Refresh(place geo.Cell, reported Summary) {
	ch := c.child(place)
	ch.window.Merge(ch.reported)
	if ch.rest = min(max(2*ch.rest, restFirst), restMost); !ch.reported.equal(&reported) {
		ch.rest = 0
	}
	if ch.reported = reported; ch.summary().Count == 0 {
		delete(c.children, place)
	}
}

// Adopt adds another keeper's view of a child. It only improves the summary.
func (c *Cell) Adopt(place geo.Cell, reported Summary) {
	if isChild(c.place, place) && reported.Count > 0 {
		c.child(place).reported.Merge(reported)
	}
}

// SetUnplaced sets the number of records without a place.
func (c *Cell) SetUnplaced(n int) { c.unplaced = n }

// UpdatePhase changes the phase according to the size: from Split to Merging at Merge records for
// at least one window, and back above Full. Ripe reports that phase Merging lasted for Grace:
// after a fetch of all its records the cell is whole.
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

// FillSample adds a record from the index to the sample, if it belongs there.
func (c *Cell) FillSample(m Member) {
	if _, ok := ChildOf(c.place, m.Record); ok && Rank(m.Record.Name()) < c.sample.Below() {
		c.sample.Offer(m)
	}
}
