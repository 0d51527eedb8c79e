package keep

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

const groundHonest = 1000 // peers

// ground is a network of honest peers, and ids among which somebody chooses some next to a key.
type ground struct {
	t       testing.TB
	r       *rand.Rand
	honest  []peer.ID
	samples []sizeSample // of a peer that has looked up other keys
	tried   []uint64     // first bits of the hashes of ids
	now     time.Time
}

func newGround(t testing.TB, seed uint64) *ground {
	g := &ground{t: t, r: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(1000, 0)}
	for range groundHonest {
		g.honest = append(g.honest, drawn(g.r))
	}
	p := g.peer(g.honest[0], g.honest).Closest
	for i := range 40 {
		_, err := p.Keepers(t.Context(), records.CellKey{Type: fmt.Sprint("other", i), Subtype: records.AnySubtype, Cell: geo.Global})
		require.NoError(t, err)
	}
	g.samples = p.sizes.samples
	return g
}

// peer returns a peer of a network that others know.
func (g *ground) peer(self peer.ID, all []peer.ID) *Authority {
	others := slices.DeleteFunc(slices.Clone(all), func(id peer.ID) bool { return id == self })
	life := protocol.NewLife(protocol.Config{Self: self, Now: func() time.Time { return g.now }, Logger: slog.New(slog.DiscardHandler)})
	router := &fixed{peers: others}
	p := NewClosest(life, ClosestConfig{Router: router, Connected: func(peer.ID) bool { return false }, Draw: g.r.IntN, Lookup: time.Minute})
	p.sizes.samples = slices.Clone(g.samples)
	return NewAuthority(p, soundly(router))
}

// near returns the ids of an attacker: each the closest to a key of so many.
func (g *ground) near(key string, ids, tries int) (chosen []peer.ID) {
	id := func(i int) peer.ID { return peer.ID(binary.BigEndian.AppendUint64([]byte("tried "), uint64(i))) }
	for i := len(g.tried); i < ids*tries; i++ {
		g.tried = append(g.tried, HashOf(string(id(i)))[0])
	}
	at := HashOf(key)[0]
	for i := range ids {
		best := i * tries
		for j := best; j < (i+1)*tries; j++ {
			if g.tried[j]^at < g.tried[best]^at {
				best = j
			}
		}
		chosen = append(chosen, id(best))
	}
	return chosen
}

// ask stores one record for a cell and asks for it, while ids near its key are in the network. Liars withhold the record and agree
// on something else. It reports whether the asker noticed them, and whether it has no record in the end.
func (g *ground) ask(c records.CellKey, liars []peer.ID) (noticed, owned bool) {
	all := slices.Concat(g.honest, liars)
	who := g.r.Perm(groundHonest)
	publisher, reader := g.peer(g.honest[who[0]], all).Closest, g.peer(g.honest[who[1]], all).Closest
	set, err := publisher.Keepers(g.t.Context(), c)
	require.NoError(g.t, err)
	stored := set.All()
	holds := func(id peer.ID) bool {
		return slices.Contains(stored, id) && !slices.Contains(liars, id) && g.peer(id, all).Accepts(c)
	}
	if set, err = reader.Keepers(g.t.Context(), c); err != nil {
		g.t.Fatal(err)
	}
	// As package ask does: the first of the chosen ones, then others in drawn order; two more if answers differ.
	order := set.Nearest(reader.Self)
	reader.Draw.Mix(order[1:])
	outer := slices.Clone(set.Outer)
	reader.Draw.Mix(outer[:set.Inner])
	reader.Draw.Mix(outer[set.Inner:])
	order = slices.Concat(order[:1], outer, order[1:])
	said := func(id peer.ID) string {
		switch {
		case holds(id):
			return "all"
		case slices.Contains(liars, id):
			return "some"
		}
		return "none"
	}
	n := protocol.AskedAtOnce
	if len(outer) > 0 {
		n = 1 + min(4, len(outer))
	}
	switch first := said(order[0]); {
	case slices.ContainsFunc(order[:n], func(id peer.ID) bool { return said(id) != first }):
		n += 2
	case first == "none":
		n++
	}
	return set.Chosen, !slices.ContainsFunc(order[:n], holds)
}

// play asks about some cells. The results are in percent.
func (g *ground) play(cells, ids, tries int) (noticed, owned float64) {
	for i := range cells {
		c := records.CellKey{Type: fmt.Sprint("type", i), Subtype: records.AnySubtype, Cell: geo.Global}
		seen, lost := g.ask(c, g.near(KeyOf(c), ids, tries))
		if seen {
			noticed += 100 / float64(cells)
		}
		if lost {
			owned += 100 / float64(cells)
		}
	}
	return noticed, owned
}

// Ten ids or hundreds next to a key are noticed, and hide no record: others of the region keep it too.
func TestGroundIDsOwnNothing(t *testing.T) {
	for _, ids := range []int{10, 200} {
		noticed, owned := newGround(t, 1).play(50, ids, 10_000)
		require.GreaterOrEqual(t, noticed, 99.0, "%d ids", ids)
		require.LessOrEqual(t, owned, 1.0, "%d ids", ids)
	}
}

// BenchmarkGroundIDs says how often an attacker among 1,000 honest peers is noticed who tries many ids for each of his peers, and how
// many questions lack what he withholds.
func BenchmarkGroundIDs(b *testing.B) {
	for _, ids := range []int{0, 5, 10, 50, 200} {
		for _, tries := range []int{50, 1000, 10_000} {
			b.Run(fmt.Sprintf("%d of %d", ids, tries), func(b *testing.B) {
				var noticed, owned, rounds float64
				for g := newGround(b, 1); b.Loop(); rounds++ {
					n, o := g.play(100, ids, tries)
					noticed, owned = noticed+n, owned+o
				}
				b.ReportMetric(noticed/rounds, "noticed-%")
				b.ReportMetric(owned/rounds, "owned-%")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// drawn returns an id without a key: only its place among the others matters.
func drawn(r *rand.Rand) peer.ID {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.Uint64()), r.Uint64())
	return peer.ID(b)
}

// closestOf returns the closest to a key of some drawn ids.
func closestOf(r *rand.Rand, key string, tries int) (best peer.ID) {
	var least Words
	for i := range tries {
		id := drawn(r)
		if d := HashOf(key).xor(HashOf(string(id))); i == 0 || d.less(least) {
			best, least = id, d
		}
	}
	return best
}
