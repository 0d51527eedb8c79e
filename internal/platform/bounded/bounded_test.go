package bounded

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMap(t *testing.T) {
	var dropped []int
	m := Map(2, func(k, _ int) { dropped = append(dropped, k) })
	for k := range 3 {
		m.Add(k, k)
		m.Get(0)
	}
	require.Equal(t, []int{1}, dropped, "the least recently used one")
	require.Panics(t, func() { Map[int, int](0, nil) })
	require.Panics(t, func() { Shared[int, int](0) })
}

func TestBuckets(t *testing.T) {
	b := NewBuckets[string](2, 1, 3)
	now := time.Unix(0, 0)
	require.True(t, b.Of("a").AllowN(now, 3))
	require.False(t, b.Of("a").AllowN(now, 1))
	require.True(t, b.Of("b").AllowN(now, 1), "each key has its own")
	require.True(t, b.Of("a").AllowN(now.Add(time.Second), 1), "it refills")
	b.Of("b")
	b.Of("c") // drops a
	require.True(t, b.Of("a").AllowN(now, 3), "a new one is full")
}
