package index

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/records"
)

// TestNameMapEqualsMap: lookups equal a Go map's through additions and removals.
func TestNameMapEqualsMap(t *testing.T) {
	key, _, err := crypto.GenerateEd25519Key(rand.NewChaCha8([32]byte{}))
	require.NoError(t, err)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := make([]*records.Record, 1000)
	for i := range all {
		o := records.Offer{ID: fmt.Sprint("s", i), Metadata: records.Metadata{Type: "oracle"}}
		all[i], err = records.Sign("test", key, o, records.Stamp{Sequence: 1, Issued: at, Expires: at.Add(time.Hour)})
		require.NoError(t, err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		r, known := newNameMap(), make(map[records.Name]*entry)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		for range 3000 {
			i := rng.IntN(len(all))
			n := all[i].Name()
			e := r.find(n)
			require.Same(rt, known[n], e)
			if e != nil {
				r.remove(e)
				r.release(e)
				delete(known, n)
				continue
			}
			e = r.make()
			e.record = all[i]
			r.add(e, r.hash(n))
			known[n] = e
		}
	})
}

// TestTableEqualsSet fills one small table with colliding tags.
func TestTableEqualsSet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var tab table
		held := make(map[uint32]uint32) // tag by id
		for _, id := range rapid.SliceOfN(rapid.Uint32Range(1, 40), 0, 300).Draw(rt, "ids") {
			if tag, ok := held[id]; ok {
				i := tab.home(tag)
				for tab.slots[i].id != id {
					i = tab.after(i)
				}
				tab.used--
				tab.vacate(i)
				delete(held, id)
			} else {
				held[id] = rapid.SampledFrom([]uint32{0, 1 << 30, 1<<32 - 1, id << 26}).Draw(rt, "tag")
				tab.reserve()
				tab.used++
				tab.insert(slot{tag: held[id], id: id})
			}
			for id, tag := range held {
				i := tab.home(tag)
				for tab.slots[i].id != id {
					require.NotZero(rt, tab.slots[i].id, "a search ends before it finds")
					i = tab.after(i)
				}
			}
			require.Equal(rt, len(held), tab.used)
		}
	})
}
