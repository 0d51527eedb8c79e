package instance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPieces: every view has the renderings of its own instances.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		render := func(i *Instance) []byte { return fmt.Appendf(nil, "%s %d", i.ID, i.Revision) }
		list := make([]*Instance, rapid.IntRange(0, 20).Draw(t, "instances"))
		for n := range list {
			list[n] = &Instance{Key: Key{ID: fmt.Sprint(n)}}
		}
		v := NewView(1, list, NewRenderings(rapid.SampledFrom([]int{1000, 1 << 20}).Draw(t, "kept")))
		for revision := range rapid.Uint64Range(1, 20).Draw(t, "revisions") {
			from := rapid.IntRange(0, len(list)).Draw(t, "from")
			to := rapid.IntRange(from, len(list)).Draw(t, "to")
			for n, piece := range v.Pieces("a", from, to, render) {
				i := list[from+n]
				require.Equal(t, fmt.Sprintf("%s %d", i.ID, i.Revision), string(piece))
			}
			if rapid.Bool().Draw(t, "another form") {
				v.Pieces("b", 0, len(list), func(*Instance) []byte { return []byte("b") })
			}
			list = slices.Clone(list)
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				n := rapid.IntRange(0, len(list)).Draw(t, "position")
				switch rapid.IntRange(0, 2).Draw(t, "change") {
				case 0:
					list = slices.Insert(list, n, &Instance{Key: Key{ID: "new"}, Revision: revision})
				case 1:
					list = slices.Delete(list, n, min(n+1, len(list)))
				default:
					if n < len(list) {
						changed := *list[n]
						changed.Revision = revision
						list[n] = &changed
					}
				}
			}
			v = v.Next(v.Index+1, list)
		}
	})
}

// TestPiecesAreKept counts renderings of instances that stay.
func TestPiecesAreKept(t *testing.T) {
	made := 0
	pieces := func(v *View) {
		for range v.Pieces("a", 0, len(v.Instances), func(*Instance) []byte { made++; return []byte("x") }) {
		}
	}
	list := make([]*Instance, 1000)
	for n := range list {
		list[n] = &Instance{}
	}
	v := NewView(1, list, NewRenderings(1<<20))
	pieces(v)
	require.Equal(t, 1000, made)
	changed := slices.Insert(slices.Delete(slices.Clone(list), 10, 20), 500, &Instance{}, &Instance{})
	changed[700] = &Instance{}
	pieces(v.Next(2, changed).Next(3, changed))
	require.Equal(t, 1003, made)
	pieces(v)
	require.Equal(t, 1003, made)
}

// TestRenderingsAreBounded: the renderings of many views, with what they keep alive, stay within their bytes, and the
// last used ones stay.
func TestRenderingsAreBounded(t *testing.T) {
	kept, made := NewRenderings(100_000), 0
	list := []*Instance{{Key: Key{ID: "a"}}}
	one := func(v *View) { v.Form("a", func() []byte { made++; return make([]byte, 5000) }) }
	hot := NewView(1, list, kept)
	for n := range 64 {
		one(hot)
		one(NewView(uint64(n), list, kept))
		require.LessOrEqual(t, kept.bytes, 100_000)
	}
	require.Equal(t, 65, made)
	require.Greater(t, kept.bytes, 90_000)
	NewView(1, list, kept).Form("a", func() []byte { return make([]byte, 100_000) })
	one(hot)
	require.Equal(t, 65, made, "what is too large takes nothing away")
}
