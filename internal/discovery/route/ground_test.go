package route

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// BenchmarkGroundIDs says how many of the keepers of a cell are hostile among 1,000 honest peers, if an attacker tries 10,000
// ids for each of his peers. both is the chance that a question to two keepers meets hostile ones only, in percent.
func BenchmarkGroundIDs(b *testing.B) {
	const honest, tries, cells = 1000, 10_000, 9 // cells of one city
	for _, enemies := range []int{45, 200} {
		b.Run(fmt.Sprint(enemies), func(b *testing.B) {
			var hostile, both, rounds float64
			for seed := uint64(1); b.Loop(); seed++ {
				r := rand.New(rand.NewPCG(seed, 0))
				keys := make([]string, cells)
				for i := range keys {
					keys[i] = KeyOf(records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Cell(fmt.Sprintf("u33%c", "bcdefghjk"[i]))})
				}
				peers, bad := make([]peer.ID, 0, honest+enemies), map[peer.ID]bool{}
				for range honest {
					peers = append(peers, drawn(r))
				}
				for i := range enemies {
					id := closestOf(r, keys[i%cells], tries)
					peers, bad[id] = append(peers, id), true
				}
				for _, key := range keys {
					n := 0.0
					for _, id := range Nearest(key, peers, Replicas) {
						if bad[id] {
							n++
						}
					}
					hostile, both, rounds = hostile+n, both+n*(n-1)/(Replicas*(Replicas-1)), rounds+1
				}
			}
			b.ReportMetric(hostile/rounds, "hostile-of-10")
			b.ReportMetric(100*both/rounds, "both-%")
		})
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
