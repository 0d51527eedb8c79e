package coordtest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// putLarge stores n values of the largest size, in transactions with as many as fit.
func (w *fixture) putLarge(n int) {
	w.t.Helper()
	const atOnce = 3
	value := make([]byte, coord.MaxValue)
	for first := 0; first < n; first += atOnce {
		var puts []ops.Step
		for i := first; i < min(n, first+atOnce); i++ {
			puts = append(puts, ops.Step{Put: &ops.Put{Key: fmt.Sprintf("large/%04d", i), Value: value}})
		}
		w.must(w.Alice, write(puts...))
	}
}

// watchTooLarge: a revision above every bound ends the watch with a reason. It is passed without former versions, or
// from the next revision.
func watchTooLarge(w *fixture) {
	const keys = 36
	w.putLarge(keys)
	under := coord.Under("large/")
	gone := w.must(w.Alice, write(ops.Step{Delete: &under})).Revision
	w.must(w.Alice, write(put("large/after", "")))

	err := w.Events(w.ctx(), coord.Watch{From: gone, Span: under, Prev: true}, func(coord.Batch, coord.Header) error { return nil })
	require.ErrorIs(w.t, err, fault.TooLarge)
	require.Equal(w.t, "prev_kv", fault.FieldOf(err))
	require.ErrorContains(w.t, err, fmt.Sprintf("from %d", gone+1))

	v := w.watch(coord.Watch{From: gone, Span: under})
	require.Len(w.t, v.events(keys+1), keys+1)
	v = w.watch(coord.Watch{From: gone + 1, Span: under, Prev: true})
	require.Equal(w.t, "large/after", v.events(1)[0].Key)
}

// keysLarge: a page of large values ends early at a peer, and the rest follows at the same revision.
func keysLarge(w *fixture) {
	const keys = 10
	w.putLarge(keys)
	q, pages := ops.Query{Span: coord.Under("large/"), Limit: keys, Bytes: 1 << 20}, 0
	var seen []string
	for more := true; more; pages++ {
		page := w.read(q)
		seen = append(seen, keysOf(page.Keys)...)
		q.At, q.Span.From, more = page.Revision, page.Next, page.Next != ""
	}
	require.Len(w.t, seen, keys)
	require.IsIncreasing(w.t, seen)
	require.Greater(w.t, pages, 2)
	require.Len(w.t, w.read(ops.Query{Span: coord.Under("large/")}).Keys, keys, "without a bound")
	require.Len(w.t, w.read(ops.Query{Span: coord.Under("large/"), Limit: keys - 1}).Keys, keys-1, "with a limit alone")
}
