package sim

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/blackhole/blackhole/pkg/query"
)

const (
	killed  = 0.30             // part of the peers that a churn takes at once
	syncing = 90 * time.Second // within which keepers must have repaired what a kill or a partition left
	hotPart = 0.80             // of records and questions of the place of a sybil attack
)

// churn: many peers vanish at once, without a word, and as many new ones come.
func playChurn(w *cluster) {
	w.grow()
	w.ask(w.some(20), asking{name: "before the kill", quiet: true, each: 2, within: 5 * time.Second})
	n := w.decimate()
	late := w.join(n)
	time.Sleep(syncing - settling)
	w.ask(late, asking{name: "newcomers", quiet: true, each: 2, within: 10 * time.Second})
	w.change()
	time.Sleep(max(quieting, forgets))
	w.ask(w.some(20), asking{name: "after changes", quiet: true, each: 2, within: 10 * time.Second})
}

// decimate kills peers and asks those that are left, at once and after the repair.
func (w *cluster) decimate() int {
	n := int(killed * float64(len(w.alive())))
	w.kill(w.some(n))
	w.oracle.disturb(false)
	time.Sleep(time.Second)
	w.ask(w.some(20), asking{name: "1 s after the kill", each: 2, within: 10 * time.Second})
	time.Sleep(syncing)
	w.ask(w.some(20), asking{name: "a sync round later", quiet: true, each: 2, within: 10 * time.Second})
	return n
}

// partition: one-way cuts first, then the network falls into halves, lives on, and heals.
func playPartition(w *cluster) {
	w.grow()
	w.ask(w.some(20), asking{name: "before", quiet: true, each: 2, within: 5 * time.Second})

	w.wire.cut(w.oneWay(0.1))
	time.Sleep(5 * time.Second)
	w.ask(w.some(20), asking{name: "one-way cuts", each: 2, within: 20 * time.Second})
	w.wire.cut(nil)

	sides, left, right := w.halves()
	w.wire.split(sides)
	w.oracle.disturb(true)
	time.Sleep(5 * time.Second)
	w.ask(w.some(20), asking{name: "5 s after the split", each: 2, within: 20 * time.Second})
	w.populate(left, max(1, w.params.Records/10))
	w.populate(right, max(1, w.params.Records/10))
	w.change()
	time.Sleep(time.Minute)
	w.ask(w.some(20), asking{name: "2 min after the split", each: 2, within: 20 * time.Second})

	w.wire.split(nil)
	w.oracle.disturb(false)
	time.Sleep(10 * time.Second)
	w.ask(w.some(20), asking{name: "10 s after the healing", each: 2, within: 5 * time.Second})
	time.Sleep(syncing)
	w.ask(w.alive(), asking{name: "healed", quiet: true, each: 2, within: 20 * time.Second})
}

// oneWay cuts a part of all ordered pairs of peers.
func (w *cluster) oneWay(part float64) map[[2]netip.Addr]bool {
	cuts := make(map[[2]netip.Addr]bool)
	for _, a := range w.peers {
		for _, b := range w.peers {
			if a != b && w.rand.Float64() < part {
				cuts[[2]netip.Addr{a.addr, b.addr}] = true
			}
		}
	}
	return cuts
}

// sybil: peers of three /24s, their ids ground to be close to the cells of one city, hide
// what they are given there, forge, replay and flood. P1 is demanded as ever; how much of
// the honest records is still found is told, not demanded: two keepers that collude can
// hide a record, and a withdrawn one is authentic until it lapses.
func playSybil(w *cluster) {
	w.oracle.excuse("P1")
	w.join(w.params.Peers)
	c := w.market.cities[0]
	target := around(kinds()[0], c.Point, 100)
	w.market.hot, w.market.single = hotPart, true
	w.populate(w.peers, w.params.Records)
	time.Sleep(quieting)
	w.ask(w.some(20), asking{name: "before the invasion", each: 2, within: 5 * time.Second})
	enemies := w.invade(cmp.Or(w.params.Enemies, max(3, w.params.Peers*3/10)), target)
	draw := func() query.Query {
		km := 50 + 50*w.rand.Float64()
		return around(kinds()[0], c.Point, km)
	}
	w.ask(w.some(30), asking{name: "the victim city", each: 3, within: 30 * time.Second, draw: draw})
	w.change()
	for _, h := range enemies {
		if h.malice == floods {
			h.flood(w.t.Context(), w.peers, w.offers(200))
		}
	}
	w.figures.Flooded = w.kept(enemies)
	time.Sleep(max(quieting, forgets))
	w.ask(w.some(30), asking{name: "after changes and flood", each: 3, within: 30 * time.Second, draw: draw})
	w.market.hot, w.market.single = 0, false
	w.ask(w.some(30), asking{name: "elsewhere", each: 3, within: 30 * time.Second})
	newcomers := w.join(3)
	w.ask(newcomers, asking{name: "newcomers", each: 3, within: 5 * time.Second, draw: draw})
}

// kept is the most records of hostile providers that one honest peer holds.
func (w *cluster) kept(enemies []*hostilePeer) (most int) {
	for _, p := range w.peers {
		n := 0
		for _, h := range enemies {
			n += len(p.index.OfProvider(h.id))
		}
		most = max(most, n)
	}
	return most
}
