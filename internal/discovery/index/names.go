package index

import (
	"hash/maphash"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// arena allocates entries in chunks and numbers them from 1, so that a reference takes four
// bytes. Entries never move.
type arena struct {
	chunks []*[arenaChunk]entry
	used   uint32   // numbers in use or free
	free   []uint32 // free numbers

	providers []*provider // by number, nil for free numbers
	vacant    []uint32    // free numbers
}

const arenaChunk = 1 << 10

func (a *arena) at(id uint32) *entry { return &a.chunks[id/arenaChunk][id%arenaChunk] }

// make returns a zero entry with its number.
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

// addProvider returns a new provider with its number.
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

// nameMap finds the entry of a name in many small hash tables. Compared with a Go map from names
// it saves about 50 bytes per record, and the growth of one table never delays a Put noticeably.
// The seed has no influence on results.
type nameMap struct {
	*arena
	seed   maphash.Seed
	tables [1 << tableBits]table
}

const tableBits = 8

func newNameMap() nameMap { return nameMap{arena: new(arena), seed: maphash.MakeSeed()} }

// hash returns the hash of a name for lookup and add.
func (r *nameMap) hash(n records.Name) uint64 { return maphash.Comparable(r.seed, n) }

// locate returns the table of a hash, and the hash's tag in the table.
func (r *nameMap) locate(hash uint64) (t *table, tag uint32) {
	return &r.tables[hash>>(64-tableBits)], uint32(hash)
}

// find returns the entry of a name, or nil.
func (r *nameMap) find(n records.Name) *entry { return r.lookup(n, r.hash(n)) }

// lookup is find with the name's hash.
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

// add stores an entry under its record's name, which must be new. hash is the name's hash.
func (r *nameMap) add(e *entry, hash uint64) {
	t, tag := r.locate(hash)
	t.reserve()
	t.used++
	t.insert(slot{tag: tag, id: e.id})
}

// remove deletes an entry. The entry must exist.
func (r *nameMap) remove(e *entry) {
	t, tag := r.locate(r.hash(e.record.Name()))
	i := t.home(tag)
	for t.slots[i].id != e.id {
		i = t.after(i)
	}
	t.used--
	t.vacate(i)
}

// table is a hash table with linear probing. It is empty or has a free slot.
type table struct {
	slots []slot
	used  int
}

// slot is one entry of a table; id 0 marks a free slot.
type slot struct{ tag, id uint32 }

// home is the preferred slot of a tag. Tags are in ascending order apart from collisions, so
// that growing reads and writes sequentially.
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

// reserve makes room for one more entry.
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

// vacate frees a slot and moves later entries up, so that probing still reaches them (D. E.
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
