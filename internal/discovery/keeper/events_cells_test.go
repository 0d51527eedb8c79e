package keeper

import (
	"cmp"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/digest"
	"github.com/blackhole/blackhole/internal/discovery/place"
	"github.com/blackhole/blackhole/internal/discovery/registry"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// The keepers of a simulation, and the cells that they divide.

// nearest returns the n living peers closest to a hash: among those that share the longest prefix with it that so many of them share.
func (x *simulation) nearest(hash uint64, n int) []int32 {
	for size := max(0, 64-bits.Len(uint(len(x.hashes)/(2*n)))); ; size++ { // bits without prefix
		var found []int32
		for i := x.from(hash, size); i < len(x.hashes) && (x.hashes[i]^hash)>>size == 0; i++ {
			if x.alive[i] {
				found = append(found, int32(i))
			}
		}
		if len(found) >= n || size == 64 {
			slices.SortFunc(found, func(a, b int32) int { return cmp.Compare(x.hashes[a]^hash, x.hashes[b]^hash) })
			return slices.Clone(found[:min(n, len(found))])
		}
	}
}

// from returns the first peer of those that share with a hash all but some bits.
func (x *simulation) from(hash uint64, bits int) int {
	at, _ := slices.BinarySearch(x.hashes, hash>>bits<<bits)
	return at
}

// nearOf returns the closest peers to a cell.
func (x *simulation) nearOf(c int32) []int32 {
	if x.cells[c].near == nil {
		x.cells[c].near = x.nearest(x.cells[c].hash, retained)
	}
	return x.cells[c].near
}

func (x *simulation) keepersOf(c int32) []int32 { return x.nearOf(c)[:route.Replicas] }

// move adds or removes a peer. Whoever becomes a keeper of a cell takes over its records.
func (x *simulation) move(p int32, in bool) {
	x.alive[p] = in
	for size := range 64 { // last bits of cells after the first one in which they differ from the peer
		other := x.hashes[p] ^ 1<<size
		closer := 0
		for i := x.from(other, size); closer < retained && i < len(x.hashes) && (x.hashes[i]^other)>>size == 0; i++ {
			if x.alive[i] {
				closer++
			}
		}
		if closer == retained {
			continue
		}
		at, _ := slices.BinarySearchFunc(x.byHash, other>>size<<size, func(c int32, h uint64) int { return cmp.Compare(x.cells[c].hash, h) })
		for ; at < len(x.byHash) && (x.cells[x.byHash[at]].hash^other)>>size == 0; at++ {
			x.rekeep(x.byHash[at], p, in)
		}
	}
}

// rekeep finds the keepers of a cell after a peer came or went.
func (x *simulation) rekeep(c, p int32, in bool) {
	a := &x.cells[c]
	if a.near == nil {
		return
	}
	if farthest := x.hashes[a.near[retained-1]] ^ a.hash; x.hashes[p]^a.hash > farthest || !in && !slices.Contains(a.near, p) {
		return
	}
	before := a.near
	a.near = x.nearest(a.hash, retained)
	for _, k := range a.near[:route.Replicas] {
		if !slices.Contains(before[:route.Replicas], k) {
			x.handOver(a, k)
		}
	}
}

// handOver gives a new keeper what the keepers of a cell have.
func (x *simulation) handOver(a *simCell, k int32) {
	for o := range x.liveIn(a) {
		if a.keeps(o.record) && o.hold(k) {
			x.load[k].pulled += len(o.record.Envelope()) + digest.EntrySize
		}
	}
}

// keeps reports whether the keepers of a cell hold one of its records.
func (a *simCell) keeps(r *records.Record) bool { return a.divided == nil || a.divided.Keeps(r) }

func (o *simOffer) live() bool { return o.record != nil && !o.gone }

// hold notes that a peer has the present version, and reports whether the record is new to it.
func (o *simOffer) hold(p int32) bool {
	until := int32((o.issued + registry.DefaultTTL) / time.Second)
	at, known := slices.BinarySearchFunc(o.held, p, func(h holding, p int32) int { return cmp.Compare(h.peer, p) })
	if known {
		o.held[at].until = until
		return false
	}
	o.held = slices.Insert(o.held, at, holding{p, until})
	return true
}

func (o *simOffer) drop(p int32) {
	o.held = slices.DeleteFunc(o.held, func(h holding) bool { return h.peer == p })
}

// over reports whether a record has expired at a peer.
func (x *simulation) over(h holding) bool { return time.Duration(h.until)*time.Second <= x.now }

// holds reports whether a peer has the record, of whatever version.
func (o *simOffer) holds(p int32) bool {
	return slices.ContainsFunc(o.held, func(h holding) bool { return h.peer == p })
}

// releaseAll drops a record at those keepers of a cell that need it for no cell.
func (x *simulation) releaseAll(c int32, o *simOffer) {
	if x.cells[c].keeps(o.record) {
		return
	}
	for _, k := range x.keepersOf(c) {
		if o.holds(k) && !slices.ContainsFunc(o.cells[:], func(c int32) bool { return x.cells[c].keeps(o.record) && slices.Contains(x.nearOf(c), k) }) {
			o.drop(k)
		}
	}
}

// hinted returns what publishers hear of a child.
func (d *dividedCell) hinted(child geo.Cell) *cell.Summary {
	s, before := d.Stable(child), d.stable[child]
	if before == nil || before.Best != s.Best || before.Tokens != s.Tokens || !slices.Equal(before.Prices, s.Prices) || before.MorePrices != s.MorePrices {
		d.stable[child] = &s
	}
	return d.stable[child]
}

// overflow divides the cells of a record that have too many.
func (x *simulation) overflow(o *simOffer) {
	for _, c := range o.cells[:cellsOf-1] {
		a := &x.cells[c]
		if a.divided != nil || a.live <= cell.Full {
			continue
		}
		d := &dividedCell{cell.New(a.place, cell.Split, x.clock()), make(map[geo.Cell]*cell.Summary)}
		var members []cell.Member
		for o := range x.liveIn(a) {
			members = append(members, cell.Member{Record: o.record})
			d.Offer(members[len(members)-1])
		}
		if a.place.Len() >= geo.MaxLen || !cell.Splits(a.place, members) {
			panic(fmt.Sprintf("%s has %d records: choose other places or providers, the simulation cannot divide it", a.place, a.live))
		}
		a.divided, a.total = d, nil
		x.prune(c)
		x.after(x.now+place.MaintainEvery, func() { x.maintain(c) })
	}
}

// liveIn yields the live offers of a cell.
func (x *simulation) liveIn(a *simCell) iter.Seq[*simOffer] {
	return func(yield func(*simOffer) bool) {
		for _, i := range a.offers {
			if o := &x.records[i]; o.live() && !yield(o) {
				return
			}
		}
	}
}

// prune drops what the keepers of a divided cell need no more.
func (x *simulation) prune(c int32) {
	for o := range x.liveIn(&x.cells[c]) {
		x.releaseAll(c, o)
	}
}

// maintain refreshes the summaries of a divided cell, and makes a small one whole: place.Maintainer.
func (x *simulation) maintain(c int32) {
	a := &x.cells[c]
	for _, child := range a.divided.Stale(reportBatch, x.clock().Add(-reportEvery), x.clock()) {
		in := x.named[child]
		a.divided.Refresh(child, x.summaryOf(in))
		x.report(c, in)
	}
	before, _ := a.divided.Phase()
	if a.divided.UpdatePhase(x.clock()) {
		a.divided = nil
		for _, k := range x.keepersOf(c) {
			x.handOver(a, k)
		}
		return
	}
	if after, _ := a.divided.Phase(); after == cell.Split && before != after {
		x.prune(c)
	}
	x.after(x.now+place.MaintainEvery, func() { x.maintain(c) })
}

// report counts the answers that each keeper of a cell gets from the two nearest keepers of a child: ask.Asker.Summaries.
func (x *simulation) report(c, child int32) {
	for _, k := range x.keepersOf(c) {
		order := slices.SortedFunc(slices.Values(x.keepersOf(child)), func(a, b int32) int {
			return cmp.Compare(x.hashes[a]^x.hashes[k], x.hashes[b]^x.hashes[k])
		})
		for _, q := range order[:wire.AskedAtOnce] {
			if q != k {
				x.load[q].reports++
			}
		}
	}
}

// summaryOf returns the summary of a cell: place.Splits.SummaryOf.
func (x *simulation) summaryOf(c int32) cell.Summary {
	a := &x.cells[c]
	if a.divided != nil {
		return a.divided.Total()
	}
	if a.total == nil {
		a.total = new(cell.Summary)
		for o := range x.liveIn(a) {
			a.total.Add(o.record)
		}
	}
	return *a.total
}

// held returns the number of live records of each peer that is there.
func (x *simulation) held() []int {
	held := make([]int, len(x.alive))
	for i := range x.records {
		for _, h := range x.records[i].held {
			if !x.over(h) {
				held[h.peer]++
			}
		}
	}
	return held
}

// partners returns the number of peers that each peer compares with: compare.Syncer.
func (x *simulation) partners() []int {
	const most = 64 // compare.syncPeers
	shared := make([][]int32, len(x.alive))
	for c := range x.cells {
		if x.cells[c].live == 0 {
			continue
		}
		for _, k := range x.keepersOf(int32(c)) {
			shared[k] = append(shared[k], int32(c))
		}
	}
	n := make([]int, len(x.alive))
	for p := range n {
		if !x.alive[p] {
			continue
		}
		peers := x.nearest(x.hashes[p], 1+route.Network) // itself too
		for _, c := range shared[p] {
			peers = append(peers, x.keepersOf(c)...)
		}
		slices.Sort(peers)
		n[p] = min(len(slices.Compact(peers))-1, most)
	}
	return n
}
