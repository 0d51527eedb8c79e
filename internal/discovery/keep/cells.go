package keep

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	// fullFor is how long a cell stays full after the last refusal. Then each living record was announced again, also by
	// publishers that skipped this peer meanwhile.
	fullFor = records.MaxTTL + skipFor

	maxFull      = 1 << 16          // marks of full cells; with more, this peer claims nothing for any cell
	maxContested = 16 * MaxHeard    // cells that other keepers say to be full
	maxDeep      = 4096             // cells below geo.MaxLen with records
	maxSenders   = 1 << 17          // records with a known sender address
	maxCounted   = 4096             // cells with a count
	countTTL     = 10 * time.Second // lifetime of a count, which expiries do not change
	leafShares   = 4                // one address prefix gets 1/leafShares of a cell without children
)

// MaxHeard bounds the cells that one partner calls full, and this peer does not.
const MaxHeard = 1024

// Cells knows which cells of this peer are full. A cell has a capacity, which bounds memory and changes no answer: a
// keeper that refused a living record of a cell says so for fullFor, and whoever asks turns to the 32 children, whose
// keepers have the record. Cells of geo.DeepLen, and the records without a place, have no children: there no address
// prefix gets more than its share, and what does not fit is told as missing. In a small network each peer holds all
// cells, and only the index bounds them. Methods are safe for concurrent use.
type Cells struct {
	index    *index.Index
	now      func() time.Time
	capacity int
	small    func() bool // each peer keeps each cell
	changed  func()      // called after a change of what a cell may lack

	senders *lru.Cache[records.Name, netip.Prefix]    // for the shares of a leaf; has its own lock
	deep    *lru.Cache[records.CellKey, struct{}]     // below geo.MaxLen, in use; has its own lock
	counts  *lru.Cache[records.CellKey, *cellContent] // guarded by mu
	version atomic.Uint64                             // grows with each change of a mark

	mu        sync.Mutex // guards the fields below
	marks     map[records.CellKey]mark
	forgotten time.Time // until then a mark may be missing
	contested map[records.CellKey]*contest
}

// mark is the time in which a cell is full.
type mark struct{ since, until time.Time }

// contest are the other keepers that say of a cell which is whole here that it is full.
type contest struct {
	until    map[peer.ID]time.Time // the ends of their marks
	outvoted bool                  // as many keepers, or more, hold it whole
}

// cellContent counts the records of a cell.
type cellContent struct {
	until   time.Time
	records int
	buckets map[bucket]int // of a leaf: by who sent them
}

// bucket is the party that a record counts for: its address prefix or, if unknown, its provider.
type bucket struct {
	prefix   netip.Prefix
	provider peer.ID
}

// NewCells returns the cells of a peer that keeps its records in x, none of them full. A cell takes so many records as
// capacity. Small reports that each peer keeps each cell; changed is called when a cell becomes full, or whole.
func NewCells(x *index.Index, now func() time.Time, capacity int, small func() bool, changed func()) *Cells {
	return &Cells{
		index: x, now: now, capacity: capacity, small: small, changed: changed,
		senders: bounded.Shared[records.Name, netip.Prefix](maxSenders), deep: bounded.Shared[records.CellKey, struct{}](maxDeep),
		counts: bounded.Shared[records.CellKey, *cellContent](maxCounted),
		marks:  make(map[records.CellKey]mark), contested: make(map[records.CellKey]*contest),
	}
}

// Unplaced returns the part of a global cell without a place, which has a capacity of its own and no children.
func Unplaced(c records.CellKey) records.CellKey { return protocol.CellAt(c, index.Nowhere) }

// Divisible reports whether a cell has children that records are stored for.
func Divisible(c records.CellKey) bool {
	return !c.OfProvider() && c.Cell != index.Nowhere && c.Cell.Len() < geo.DeepLen
}

// Sends reports whether a full cell may answer with the records that it holds: see Young.
func Sends(c records.CellKey) bool { return c.Cell.Len() >= geo.MaxLen }

// ChildOf returns the child of a divisible cell that contains a record, false for a record without a place.
func ChildOf(c records.CellKey, r *records.Record) (records.CellKey, bool) {
	at, placed := r.Facts().Place()
	if !placed || !Divisible(c) {
		return records.CellKey{}, false
	}
	return protocol.CellAt(c, geo.CellOf(at, c.Cell.Len()+1)), true
}

// Full reports whether a cell is full here: this peer refused a living record of it.
func (s *Cells) Full(c records.CellKey) bool { return s.Left(c) > 0 }

// Left returns how long a cell will be full; 0 for one that is not.
func (s *Cells) Left(c records.CellKey) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.marks[c].until.Sub(s.now()), 0)
}

// Lacks says why this peer may lack records of a cell that is not full; "" without a reason.
func (s *Cells) Lacks(c records.CellKey) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, marked := s.marks[c]
	now := s.now()
	x := s.contested[c]
	if rest, some := s.marks[Unplaced(c)]; some && c.Cell == geo.Global && !c.OfProvider() && !now.Before(rest.until) {
		return "it had no room for all records without a place, and has not compared them since"
	}
	switch {
	case now.Before(s.forgotten):
		return "it has more full cells than it can remember"
	case marked && !now.Before(m.until):
		return "the cell was full, and it has not compared it since"
	case !marked && x != nil && !x.outvoted:
		return "another keeper says that the cell is full"
	}
	return ""
}

// AllFull returns the full cells of this peer by key.
func (s *Cells) AllFull() []records.CellKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	all := slices.SortedFunc(maps.Keys(s.marks), protocol.CompareCells)
	return slices.DeleteFunc(all, func(c records.CellKey) bool { return !now.Before(s.marks[c].until) })
}

// Overfull returns a cell without children that is full: some of its living records are in no answer. False without one.
func (s *Cells) Overfull() (records.CellKey, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for c, m := range s.marks {
		if !Divisible(c) && now.Before(m.until) {
			return c, true
		}
	}
	return records.CellKey{}, false
}

// Young reports whether a full cell of geo.MaxLen or more answers with the records that it holds: some may not have reached the
// children yet, whose publishers have not heard that the cell is full.
func (s *Cells) Young(c records.CellKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, marked := s.marks[c]
	return marked && Sends(c) && s.now().Before(m.since.Add(records.MaxTTL))
}

// FirstFull returns the first of some cells that is full here.
func (s *Cells) FirstFull(cells []records.CellKey) (records.CellKey, bool) {
	if i := slices.IndexFunc(cells, s.Full); i >= 0 {
		return cells[i], true
	}
	return records.CellKey{}, false
}

// Version grows with each change of a mark. The end of a mark is none.
func (s *Cells) Version() uint64 { return s.version.Load() }

// fill notes that a cell lacks a living record. The caller holds s.mu.
func (s *Cells) fill(c records.CellKey, until time.Time) (changed bool) {
	old, marked := s.marks[c]
	if !marked && len(s.marks) >= maxFull {
		s.forgotten = until
		return true
	}
	now := s.now()
	if marked = marked && now.Before(old.until); !marked {
		old = mark{since: now}
	}
	if until.After(old.until) {
		old.until = until
	}
	s.marks[c] = old
	return !marked
}

// refuse marks a cell that has no room for a living record, and reports whether it was not full before.
func (s *Cells) refuse(c records.CellKey) bool {
	s.mu.Lock()
	changed := s.fill(c, s.now().Add(fullFor))
	s.mu.Unlock()
	if changed {
		s.tell()
	}
	return changed
}

func (s *Cells) tell() {
	s.version.Add(1)
	s.changed()
}

// Hear takes what another keeper said in a comparison: its full cells that are not full here, and how long they will be.
// Trusted reports a cell for which this peer had authority before: one that says otherwise raises no doubt.
func (s *Cells) Hear(from peer.ID, full map[records.CellKey]time.Duration, trusted func(records.CellKey) bool) {
	held := make(map[records.CellKey]bool, len(full)) // asked without the lock
	for c := range full {
		held[c] = trusted(c)
	}
	s.mu.Lock()
	now, changed := s.now(), false
	for c, x := range s.contested {
		if delete(x.until, from); len(x.until) == 0 {
			delete(s.contested, c)
			changed = true
		}
	}
	for c, left := range full {
		x := s.contested[c]
		if x == nil {
			if len(s.contested) >= maxContested {
				if !held[c] {
					s.forgotten, changed = now.Add(protocol.SyncEvery), true
				}
				continue
			}
			x = &contest{until: make(map[peer.ID]time.Time), outvoted: held[c]}
			s.contested[c] = x
			changed = changed || !x.outvoted
		}
		x.until[from] = now.Add(min(left, fullFor))
	}
	s.mu.Unlock()
	if changed {
		s.tell()
	}
}

// Decide ends a round of comparisons that began at a time. Partners returns the partners of the round that keep a cell; false if
// this peer does not keep it.
// A cell that more keepers call full than hold whole is full here too, until the middle one of their ends. A cell whose
// own mark ended before the round is whole again.
func (s *Cells) Decide(began time.Time, partners func(records.CellKey) ([]peer.ID, bool), alone bool) {
	s.mu.Lock()
	due := make(map[records.CellKey]int) // partners that do not call it full
	for c, m := range s.marks {
		if !m.until.After(began) {
			due[c] = 0
		}
	}
	for c := range s.contested {
		due[c] = 0
	}
	s.mu.Unlock()
	for c := range due {
		at := c
		if c.Cell == index.Nowhere {
			at = protocol.CellAt(c, geo.Global)
		}
		met, kept := partners(at)
		if due[c] = len(met); !kept {
			due[c] = -1
		}
	}
	s.mu.Lock()
	changed := false
	for c, met := range due {
		x := s.contested[c]
		var ends []time.Time
		if x != nil {
			for _, until := range x.until {
				ends = append(ends, until)
			}
		}
		slices.SortFunc(ends, time.Time.Compare)
		m, marked := s.marks[c]
		switch whole := met - len(ends); {
		case met < 0: // with its next record, the peer becomes a keeper anew
			delete(s.contested, c)
			if !m.until.After(began) {
				delete(s.marks, c)
			}
		case marked && m.until.After(began):
			delete(s.contested, c)
		case len(ends) > whole:
			delete(s.contested, c)
			changed = s.fill(c, ends[len(ends)/2]) || changed
		case marked && (whole > 0 || alone):
			delete(s.marks, c)
			changed = true
		case x != nil && !x.outvoted && whole > len(ends):
			x.outvoted, changed = true, true
		}
	}
	s.mu.Unlock()
	if changed {
		s.tell()
	}
}

// AnyDeep reports whether cells below geo.MaxLen are in use. Then CellsOf changes without the record.
func (s *Cells) AnyDeep() bool { return s.deep.Len() > 0 }

// CellsOf returns the cells of a record, including cells below geo.MaxLen in use.
func (s *Cells) CellsOf(r *records.Record) []records.CellKey {
	cells := r.Cells()
	if s.deep.Len() == 0 {
		return cells
	}
	for _, c := range protocol.CellsBelow(r) {
		if s.deep.Contains(c) {
			cells = append(cells, c)
		}
	}
	return cells
}

// leafOf returns the cell without children that a record of c counts in, false if c has a child for it.
func leafOf(c records.CellKey, r *records.Record) (records.CellKey, bool) {
	_, placed := r.Facts().Place()
	switch {
	case c.Cell == geo.Global && !placed:
		return Unplaced(c), true
	case c.Cell.Len() == geo.DeepLen:
		return c, true
	}
	return c, false
}

// room is what a cell has for a record.
type room uint8

const (
	roomy    room = iota
	none          // the cell is full
	overfull      // a cell without children is full: the record is missing
	unfair        // the sender has its share of a cell without children
)

// take makes room for a new record in one of its cells. The provider's cell has always some. Needed reports whether the
// index must hold a record for other cells than c.
func (s *Cells) take(c records.CellKey, r *records.Record, prefix netip.Prefix, needed func(*records.Record) bool) room {
	if c.OfProvider() || s.small() {
		return roomy
	}
	c, leaf := leafOf(c, r)
	mine := bucketOf(r, prefix)
	s.mu.Lock()
	x := s.content(c, leaf)
	var largest bucket
	full := x.records >= s.capacity
	if full && leaf {
		largest = x.largest()
	}
	share, n := s.capacity/leafShares, x.buckets[largest]
	switch {
	case !full:
	case !leaf:
		s.mu.Unlock()
		return none
	case x.buckets[mine] >= share:
		s.mu.Unlock()
		return unfair
	case n <= share:
		s.mu.Unlock()
		return overfull
	default:
		x.records--
		x.buckets[largest]--
	}
	x.records++
	if leaf {
		x.buckets[mine]++
	}
	s.mu.Unlock()
	if full {
		s.displace(c, largest, needed)
	}
	return roomy
}

// content returns the count of a cell. The caller holds s.mu.
func (s *Cells) content(c records.CellKey, leaf bool) *cellContent {
	now := s.now()
	if x, ok := s.counts.Get(c); ok && now.Before(x.until) && !now.Add(countTTL).Before(x.until) {
		return x
	}
	x := &cellContent{until: now.Add(countTTL)}
	switch {
	case leaf:
		x.buckets = make(map[bucket]int)
		for r := range s.index.In(c, now) {
			x.records++
			x.buckets[s.senderOf(r)]++
		}
	case c.Cell == geo.Global: // those without a place count elsewhere
		unplaced := s.index.CountIn(Unplaced(c), now, s.capacity)
		x.records = s.index.CountIn(c, now, s.capacity+unplaced) - unplaced
	default:
		x.records = s.index.CountIn(c, now, s.capacity)
	}
	s.counts.Add(c, x)
	return x
}

func (s *Cells) senderOf(r *records.Record) bucket {
	prefix, _ := s.senders.Peek(r.Name())
	return bucketOf(r, prefix)
}

func bucketOf(r *records.Record, prefix netip.Prefix) bucket {
	if prefix.IsValid() {
		return bucket{prefix: prefix}
	}
	return bucket{provider: r.Name().Provider}
}

// largest returns the bucket with most records.
func (x *cellContent) largest() (largest bucket) {
	for b, n := range x.buckets {
		if d := cmp.Compare(n, x.buckets[largest]); d > 0 || d == 0 && b.compare(largest) > 0 {
			largest = b
		}
	}
	return largest
}

// displace removes the record of a bucket with the last name, which depends on no order of arrival. The index keeps
// those that it needs for other cells. It calls needed without a lock.
func (s *Cells) displace(leaf records.CellKey, from bucket, needed func(*records.Record) bool) {
	var last *records.Record
	for r := range s.index.In(leaf, s.now()) {
		if s.senderOf(r) == from && (last == nil || r.Name().Compare(last.Name()) > 0) && !needed(r) {
			last = r
		}
	}
	if last != nil {
		s.index.Remove(last.Name())
		s.senders.Remove(last.Name())
	}
}

func (b bucket) compare(o bucket) int {
	return cmp.Or(b.prefix.Addr().Compare(o.prefix.Addr()), cmp.Compare(b.provider, o.provider))
}
