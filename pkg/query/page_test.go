package query

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// pageOf is the answer of a plan to all records of a world.
func pageOf(p *Plan, world []sample) []Result {
	var hits []Hit
	for _, s := range world {
		if p.Match(s.record) {
			hits = append(hits, Hit{Record: s.record, Value: p.Value(s.record)})
		}
	}
	slices.SortFunc(hits, Hit.Compare)
	results := make([]Result, 0, p.Limit())
	for _, h := range hits[:min(p.Limit(), len(hits))] {
		results = append(results, Result{Record: h.Record})
	}
	return results
}

// Every record is on one page, in the order of the names, whatever the size of a page.
func TestPagesHoldEachRecordOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queryGen(t).Draw(rt, "query")
		q.Sort, q.After, q.Limit, q.Price = SortStable, "", 1000, Price{}
		world := recordsGen(t, 12).Draw(rt, "world")
		want := pageOf(compile(t, q), world)
		var got []Result
		q.Limit = rapid.IntRange(1, 5).Draw(rt, "size")
		for {
			p := compile(t, q)
			page := pageOf(p, world)
			got = append(got, page...)
			if q.After = Next(p, page); q.After == "" {
				break
			}
		}
		require.Equal(rt, len(want), len(got))
		for i := range want {
			require.Same(rt, want[i].Record, got[i].Record)
			require.True(rt, i == 0 || want[i-1].Record.Name().Compare(want[i].Record.Name()) < 0)
		}
	})
}

// The value of the order never contradicts the names, so that the bounds of keepers are right.
func TestStableValueFollowsTheNames(t *testing.T) {
	var all []records.Name
	for n := range byte(40) {
		all = append(all, records.Name{Provider: idOf(t, n), ID: "a"}, records.Name{Provider: idOf(t, n), ID: "b"})
	}
	for _, a := range all {
		require.True(t, stable(a) >= 0 && stable(a) < 1)
		for _, b := range all {
			if a.Provider != b.Provider {
				require.Equal(t, a.Compare(b) < 0, stable(a) < stable(b))
			}
		}
	}
}

func TestAfterIsRefused(t *testing.T) {
	provider := idOf(t, 1).String()
	for name, q := range map[string]Query{
		"in another order":   {Type: "cdn", Sort: SortPrice, After: provider + "/a"},
		"without an order":   {Type: "cdn", After: provider + "/a"},
		"not a name":         {Type: "cdn", Sort: SortStable, After: provider},
		"not a provider":     {Type: "cdn", Sort: SortStable, After: "x/a"},
		"not an id":          {Type: "cdn", Sort: SortStable, After: provider + "/.."},
		"another spelling":   {Type: "cdn", Sort: SortStable, After: "/" + provider + "/a"},
		"much too long":      {Type: "cdn", Sort: SortStable, After: provider + "/" + strings.Repeat("a", 65)},
		"of the price group": Query{Type: "cdn", After: provider + "/a"}.In(Terms{"USDC", "per-gb"}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(q, Defaults{})
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, "after", fault.FieldOf(err))
		})
	}
}
