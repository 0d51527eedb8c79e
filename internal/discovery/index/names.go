package index

import (
	"hash/maphash"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// arena keeps entries together and numbers them, so that what points to many of them takes
// four bytes each. Entries do not move. Number 0 is of none.
type arena struct {
	chunks []*[arenaChunk]entry
	used   uint32   // numbers given out so far
	free   []uint32 // of those, given back

	providers []*provider // by number, nil for numbers given back
	vacant    []uint32    // those
}

const arenaChunk = 1 << 10

func (a *arena) at(id uint32) *entry { return &a.chunks[id/arenaChunk][id%arenaChunk] }

// make gives a zero entry that knows its number.
func (a *arena) make() *entry {
	var id uint32
	if last := len(a.free) - 1; last >= 0 {
		id, a.free = a.free[last], a.free[:last]
	} else {
		a.used++
		id = a.used
		for int(id/arenaChunk) >= len(a.chunks) {
			a.chunks = append(a.chunks, new([arenaChunk]entry))
		}
	}
	e := a.at(id)
	e.id = id
	return e
}

func (a *arena) release(e *entry) {
	a.free = append(a.free, e.id)
	*e = entry{}
}

// addProvider makes a provider that knows its number.
func (a *arena) addProvider(id peer.ID) *provider {
	p := &provider{id: id}
	if last := len(a.vacant) - 1; last >= 0 {
		p.number, a.vacant = a.vacant[last], a.vacant[:last]
		a.providers[p.number] = p
		return p
	}
	p.number = uint32(len(a.providers))
	a.providers = append(a.providers, p)
	return p
}

func (a *arena) removeProvider(p *provider) {
	a.providers[p.number] = nil
	a.vacant = append(a.vacant, p.number)
}

func (a *arena) owner(e *entry) *provider { return a.providers[e.owner] }

// nameMap finds the entry of a name. It is many small hash tables rather than one map, for
// the memory, and because none of them is large enough that its growing keeps a Put.
// What is found does not depend on the seed.
type nameMap struct {
	*arena
	seed   maphash.Seed
	tables [1 << tableBits]table
}

const tableBits = 8

func newNameMap() nameMap { return nameMap{arena: new(arena), seed: maphash.MakeSeed()} }

// hash is what names are found by.
func (r *nameMap) hash(n records.Name) uint64 { return maphash.Comparable(r.seed, n) }

// locate gives the table of a hash and its tag there.
func (r *nameMap) locate(hash uint64) (t *table, tag uint32) {
	return &r.tables[hash>>(64-tableBits)], uint32(hash)
}

// find gives the entry of a name, or nil.
func (r *nameMap) find(n records.Name) *entry { return r.lookup(n, r.hash(n)) }

// lookup is find, given the name's hash.
func (r *nameMap) lookup(n records.Name, hash uint64) *entry {
	t, tag := r.locate(hash)
	for i := t.home(tag); i < len(t.slots) && t.slots[i].id != 0; i = t.after(i) {
		if s := t.slots[i]; s.tag == tag {
			if e := r.at(s.id); e.record.Name() == n {
				return e
			}
		}
	}
	return nil
}

// add enters an entry under its record's name, which must not be in r, given its hash.
func (r *nameMap) add(e *entry, hash uint64) {
	t, tag := r.locate(hash)
	t.reserve()
	t.used++
	t.insert(slot{tag: tag, id: e.id})
}

// remove takes out an entry, which must be in r.
func (r *nameMap) remove(e *entry) {
	t, tag := r.locate(r.hash(e.record.Name()))
	i := t.home(tag)
	for t.slots[i].id != e.id {
		i = t.after(i)
	}
	t.used--
	t.vacate(i)
}

// table is a hash table with linear probing; it is empty or has a free slot.
type table struct {
	slots []slot
	used  int
}

// slot is one entry of a table, free when id is 0.
type slot struct{ tag, id uint32 }

// home is where a tag belongs: tables are in the order of tags, but for collisions, so
// that growing reads and writes in order.
func (t *table) home(tag uint32) int { return int(uint64(tag) * uint64(len(t.slots)) >> 32) }

func (t *table) after(i int) int {
	if i++; i < len(t.slots) {
		return i
	}
	return 0
}

func (t *table) insert(s slot) {
	i := t.home(s.tag)
	for t.slots[i].id != 0 {
		i = t.after(i)
	}
	t.slots[i] = s
}

// reserve makes room for one more.
func (t *table) reserve() {
	if 5*(t.used+1) <= 4*len(t.slots) {
		return
	}
	old := t.slots
	t.slots = make([]slot, max(8, len(old)+len(old)/2))
	for _, s := range old {
		if s.id != 0 {
			t.insert(s)
		}
	}
}

// vacate frees a slot and moves up what a search would no longer reach past it (D. E.
// Knuth, "The Art of Computer Programming" 3, 6.4, algorithm R).
func (t *table) vacate(hole int) {
	n := len(t.slots)
	for i := t.after(hole); t.slots[i].id != 0; i = t.after(i) {
		if home := t.home(t.slots[i].tag); (i-home+n)%n >= (i-hole+n)%n {
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = slot{}
}
