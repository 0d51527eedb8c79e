package heap

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type item struct {
	key, id  int
	position int
}

func less(a, b *item) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return a.id < b.id
}

func newHeap() *Heap[*item] {
	return New(less, func(i *item) *int { return &i.position })
}

// TestModel compares a heap with a plain list after random operations.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, model, ids := newHeap(), []*item(nil), 0
		key := rapid.IntRange(0, 9)
		add := func() *item {
			ids++
			return &item{key: key.Draw(t, "key"), id: ids}
		}
		pick := func(t *rapid.T) int {
			if len(model) == 0 {
				t.Skip("empty")
			}
			return rapid.IntRange(0, len(model)-1).Draw(t, "index")
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				i := add()
				h.Push(i)
				model = append(model, i)
			},
			"fix": func(t *rapid.T) {
				i := model[pick(t)]
				i.key = key.Draw(t, "key")
				h.Fix(i)
			},
			"remove": func(t *rapid.T) {
				n := pick(t)
				h.Remove(model[n])
				require.Equal(t, -1, model[n].position)
				model = slices.Delete(model, n, n+1)
			},
			"init": func(t *rapid.T) {
				model = nil
				for range rapid.IntRange(0, 20).Draw(t, "count") {
					model = append(model, add())
				}
				h.Init(slices.Clone(model))
			},
			"": func(t *rapid.T) { verify(t, h, model) },
		})
	})
}

func verify(t *rapid.T, h *Heap[*item], model []*item) {
	require.Equal(t, len(model), h.Len())
	require.ElementsMatch(t, model, h.Items())
	for i, item := range h.Items() {
		require.Equal(t, i, item.position)
	}
	least, ok := h.Min()
	require.Equal(t, len(model) > 0, ok)
	for _, other := range model {
		require.False(t, less(other, least))
	}
}

// BenchmarkFix moves the least of 10,000 items behind all others.
func BenchmarkFix(b *testing.B) {
	h := newHeap()
	for n := range 10_000 {
		h.Push(&item{key: n})
	}
	key := 10_000
	b.ReportAllocs()
	for b.Loop() {
		least, _ := h.Min()
		key++
		least.key = key
		h.Fix(least)
	}
}
