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
		v := &View{Index: 1, Instances: list}
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
	render := func(*Instance) []byte { made++; return []byte("x") }
	list := make([]*Instance, 1000)
	for n := range list {
		list[n] = &Instance{}
	}
	v := &View{Index: 1, Instances: list}
	v.Pieces("a", 0, len(list), render)
	require.Equal(t, 1000, made)
	changed := slices.Insert(slices.Delete(slices.Clone(list), 10, 20), 500, &Instance{}, &Instance{})
	changed[700] = &Instance{}
	v.Pieces("b", 0, 1, func(*Instance) []byte { return nil })
	next := v.Next(2, changed).Next(3, changed) // nobody read the second view
	next.Pieces("a", 0, len(changed), render)
	require.Equal(t, 1003, made)
	v.Pieces("a", 0, len(list), render)
	require.Equal(t, 2003, made, "an old view lost its renderings to the next")
}
