package index_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Records that need features of a later version are in the cells and in the limits, but in no search. Versions of one
// service move between both kinds.
func TestBeyond(t *testing.T) {
	s := seeded(3)
	x := index.New(index.Config{MaxPerProvider: 1 << 20})
	key := keyOf(t, 1)
	plan, err := queries.Compile(query.Query{Type: "cdn", Limit: queries.MaxLimit}, queries.Defaults{})
	require.NoError(t, err)
	own, err := queries.Compile(query.Query{Type: "cdn", Limit: queries.MaxLimit, ProviderID: idOf(t, key).String()}, queries.Defaults{})
	require.NoError(t, err)
	needs := make(map[string]bool) // by id
	for i := range 600 {
		id := fmt.Sprint("s", s(100))
		r := sign(t, key, cdn(id), stamp(uint64(i+1), 0, time.Hour))
		if needs[id] = s(3) == 0; needs[id] {
			r = recordstest.Later(t, key, r, recordstest.Needs("auction.v2"))
		}
		_, err := x.Put(r, epoch())
		require.NoError(t, err)
	}
	whole := records.CellKey{Type: "cdn", Subtype: records.AnySubtype, Cell: geo.Global}
	require.Equal(t, len(needs), x.Len())
	require.Equal(t, len(needs), x.CountIn(whole, epoch(), 1000), "the cell has both kinds")
	require.Equal(t, 1, x.Stats().Types)
	for p, cells := range map[*queries.Plan][]records.CellKey{plan: {whole}, own: {records.ProviderCell(idOf(t, key))}} {
		var found, beyond []string
		for _, h := range x.Search(p, index.SearchOptions{Now: epoch()}).Hits {
			found = append(found, h.Record.Name().ID)
		}
		some, more := index.SomeBeyond(x, p, cells, epoch(), 1000)
		require.False(t, more)
		for _, r := range some {
			beyond = append(beyond, r.Name().ID)
		}
		for id, is := range needs {
			require.Equal(t, is, slices.Contains(beyond, id))
			require.Equal(t, !is, slices.Contains(found, id))
		}
		require.Len(t, needs, len(found)+len(beyond))
	}
	require.Equal(t, len(needs), x.Expire(epoch().Add(time.Hour)))
	require.Zero(t, x.Len())
}

// A count of records beyond this version names a bounded number of features.
func TestLeftOut(t *testing.T) {
	require.Nil(t, index.LeftOut(nil, 0, false))
	require.Empty(t, index.LeftOut(nil, 0, false).String())
	plain := sign(t, keyOf(t, 1), cdn("one"), stamp(1, 0, time.Hour))
	var some []*records.Record
	for i := range 12 {
		some = append(some, recordstest.Later(t, keyOf(t, 1), plain, recordstest.Needs(fmt.Sprintf("x%02d", 11-i))))
	}
	many := index.LeftOut(some, 2, true)
	require.Equal(t, &query.LeftOut{Records: 14, AtLeast: true, Features: []string{"x00", "x01", "x02", "x03", "x04", "x05", "x06", "x07"}}, many)
	few := index.LeftOut(some[:1], 0, false)
	require.Equal(t, "1 record is left out, because it needs a newer version of blackholed with x11", few.String())
	require.Equal(t, &query.LeftOut{Records: 1, Features: []string{"x00", "x11"}}, (&query.LeftOut{Features: []string{"x00"}}).Join(few))
	require.Equal(t, few, few.Join(nil))
	require.Equal(t, few, (*query.LeftOut)(nil).Join(few))
	require.Equal(t, []string{"x11"}, few.Features, "Join changes neither")
}
