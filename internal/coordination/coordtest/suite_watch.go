package coordtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// watches are the promises about watches.
func watches() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"watch begins at once":              watchBegins,
		"watch from now":                    watchNow,
		"watch of a prefix":                 watchPrefix,
		"watch of a key":                    watchKey,
		"watch from a start revision":       watchStart,
		"watch with former versions":        watchPrev,
		"watch without former versions":     watchNoPrev,
		"watch reports whole revisions":     watchWhole,
		"watch of a too large revision":     watchTooLarge,
		"watch resumes":                     watchResumes,
		"watch from a compacted revision":   watchCompacted,
		"watch from the future":             watchFuture,
		"watch reports progress":            watchProgress,
		"watch marks that it caught up":     watchMarks,
		"watch refuses":                     watchRefuses,
		"watch ends with its context":       watchEnds,
		"watch ends when nobody takes more": watchUnsent,
		"watch catches up with much":        watchMuch,
		"watch of large values":             watchLarge,
		"watches are many":                  watchMany,
		"watch follows locks":               watchLocks,
	}
}

// watching is an open watch.
type watching struct {
	w       *fixture
	batches chan coord.Batch
	cancel  context.CancelFunc
	end     chan error // the end, once
	next    coord.Revision
}

// watch opens a watch and reads its first batch.
func (w *fixture) watch(q coord.Watch) *watching {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx())
	v := &watching{w: w, batches: make(chan coord.Batch), cancel: cancel, end: make(chan error, 1)}
	w.calls.Go(func() {
		v.end <- w.Events(ctx, q, func(b coord.Batch, h coord.Header) error {
			if h.Group == 0 || h.Member == 0 || h.Term == 0 {
				return fmt.Errorf("header %+v", h)
			}
			b.Events = slices.Clone(b.Events) // the sender may reuse them
			select {
			case v.batches <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	first := v.batch()
	require.Empty(w.t, first.Events)
	return v
}

// batch reads the next batch and checks that it continues the last.
func (v *watching) batch() coord.Batch {
	v.w.t.Helper()
	ctx, cancel := context.WithTimeout(v.w.ctx(), patient)
	defer cancel()
	select {
	case b := <-v.batches:
		for i, e := range b.Events {
			require.GreaterOrEqual(v.w.t, e.Revision, v.next)
			require.Less(v.w.t, e.Revision, b.Next)
			if i > 0 && e.Revision == b.Events[i-1].Revision {
				require.Greater(v.w.t, e.Key, b.Events[i-1].Key)
			} else if i > 0 {
				require.Greater(v.w.t, e.Revision, b.Events[i-1].Revision)
			}
		}
		require.GreaterOrEqual(v.w.t, b.Next, v.next)
		v.next = b.Next
		return b
	case err := <-v.end:
		require.FailNow(v.w.t, "the watch ended", "%v", err)
	case <-ctx.Done():
		require.FailNow(v.w.t, "the watch says nothing")
	}
	return coord.Batch{}
}

// events reads exactly n events.
func (v *watching) events(n int) []coord.Event {
	v.w.t.Helper()
	var all []coord.Event
	for len(all) < n {
		all = append(all, v.batch().Events...)
	}
	require.Len(v.w.t, all, n)
	return all
}

// ended waits for the end.
func (v *watching) ended() error {
	v.w.t.Helper()
	ctx, cancel := context.WithTimeout(v.w.ctx(), patient)
	defer cancel()
	for {
		select {
		case err := <-v.end:
			return err
		case <-v.batches:
		case <-ctx.Done():
			require.FailNow(v.w.t, "the watch does not end")
		}
	}
}

func eventKeys(events []coord.Event) []string {
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = e.Key
	}
	return names
}

func watchBegins(w *fixture) {
	w.must(w.Alice, write(put("a", "1")))
	require.Equal(w.t, coord.Revision(3), w.watch(coord.Watch{}).next)
	require.Equal(w.t, coord.Revision(1), w.watch(coord.Watch{From: 1}).next)
}

func watchNow(w *fixture) {
	w.must(w.Alice, write(put("a", "1")))
	v := w.watch(coord.Watch{})
	w.must(w.Alice, write(put("a", "2")))
	w.must(w.Alice, write(del(coord.Exactly("a"))))
	events := v.events(2)
	require.Equal(w.t, version{"a", "2", 2, 3, 2, 0}, shown(events[0].KV))
	require.False(w.t, events[0].Deletes())
	require.True(w.t, events[1].Deletes())
	require.Equal(w.t, []any{"a", coord.Revision(4)}, []any{events[1].Key, events[1].Revision})
	require.Equal(w.t, coord.Revision(5), v.next)
}

func watchPrefix(w *fixture) {
	v := w.watch(coord.Watch{Span: coord.Under("svc/")})
	everything := w.watch(coord.Watch{})
	for _, key := range []string{"svc", "svc/a", "other", "svc/b", "svd"} {
		w.must(w.Alice, write(put(key, "")))
	}
	require.Equal(w.t, []string{"svc/a", "svc/b"}, eventKeys(v.events(2)))
	require.Len(w.t, everything.events(5), 5)
}

func watchKey(w *fixture) {
	v := w.watch(coord.Watch{Span: coord.Exactly("svc")})
	for _, key := range []string{"svc/a", "svc", "svcx", "svc"} {
		w.must(w.Alice, write(put(key, "")))
	}
	require.Equal(w.t, []string{"svc", "svc"}, eventKeys(v.events(2)))
}

func watchStart(w *fixture) {
	for i := range 4 {
		w.must(w.Alice, write(put(fmt.Sprint("k", i), "")))
	}
	v := w.watch(coord.Watch{From: 4})
	require.Equal(w.t, []string{"k2", "k3"}, eventKeys(v.events(2)))
	w.must(w.Alice, write(put("k4", "")))
	require.Equal(w.t, []string{"k4"}, eventKeys(v.events(1)))
}

func watchPrev(w *fixture) {
	lease := w.lease(w.Alice)
	v := w.watch(coord.Watch{Prev: true})
	w.must(w.Alice, write(bound("a", "1", lease)))
	w.must(w.Alice, write(put("a", "2")))
	w.must(w.Alice, write(del(coord.Exactly("a"))))
	events := v.events(3)
	require.Nil(w.t, events[0].Prev)
	require.Equal(w.t, version{"a", "1", 2, 2, 1, lease}, shown(events[1].Prev))
	require.Equal(w.t, version{"a", "2", 2, 3, 2, 0}, shown(events[2].Prev))
}

func watchNoPrev(w *fixture) {
	w.must(w.Alice, write(put("a", "1")))
	v := w.watch(coord.Watch{})
	w.must(w.Alice, write(put("a", "2")))
	require.Nil(w.t, v.events(1)[0].Prev)
}

func watchWhole(w *fixture) {
	v := w.watch(coord.Watch{Limit: 2})
	var changes []ops.Step
	for i := range 600 { // more than a batch
		changes = append(changes, put(fmt.Sprintf("k%03d", 599-i), ""))
	}
	w.must(w.Alice, write(changes...))
	b := v.batch()
	for len(b.Events) == 0 {
		b = v.batch()
	}
	require.Len(w.t, b.Events, 600)
	require.Equal(w.t, coord.Revision(3), b.Next)
}

// A watch resumed from the last Next, on any connection, has neither gap nor duplicate.
func watchResumes(w *fixture) {
	var seen []string
	from := coord.Revision(1)
	for round := range 5 {
		for i := range 7 {
			w.must(w.Alice, write(put(fmt.Sprint(round, "/", i), "")))
		}
		v := w.watch(coord.Watch{From: from})
		for from = v.next; from < coord.Revision(7*round+5); from = v.next { // it breaks off in the middle
			seen = append(seen, eventKeys(v.batch().Events)...)
		}
		v.cancel()
		_ = v.ended()
	}
	v := w.watch(coord.Watch{From: from})
	w.must(w.Alice, write(put("end", "")))
	for len(seen) < 36 {
		seen = append(seen, eventKeys(v.batch().Events)...)
	}
	var want []string
	for i := range 35 {
		want = append(want, fmt.Sprint(i/7, "/", i%7))
	}
	require.Equal(w.t, append(want, "end"), seen)
}

func watchCompacted(w *fixture) {
	for range 5 {
		w.must(w.Alice, write(put("a", "")))
	}
	require.NoError(w.t, w.Internal(w.ctx(), &ops.Compact{Revision: 4}))
	begun := 0
	err := w.Events(w.ctx(), coord.Watch{From: 4}, func(coord.Batch, coord.Header) error { begun++; return nil })
	require.ErrorIs(w.t, err, fault.NotFound)
	var compacted *coord.Compacted
	require.True(w.t, errors.As(err, &compacted), "%v", err)
	require.Equal(w.t, coord.Compacted{Revision: 4, Current: 6}, *compacted)
	require.Zero(w.t, begun)
	require.Len(w.t, w.watch(coord.Watch{From: 5}).events(2), 2)
	w.watch(coord.Watch{From: compacted.Current + 1})
}

func watchFuture(w *fixture) {
	v := w.watch(coord.Watch{From: 5})
	require.Equal(w.t, coord.Revision(5), v.next)
	for i := range 4 {
		w.must(w.Alice, write(put(fmt.Sprint("k", i), "")))
	}
	require.Equal(w.t, []string{"k3"}, eventKeys(v.events(1)))
}

func watchProgress(w *fixture) {
	if w.Progress == 0 {
		w.t.Skip("takes too long here")
	}
	v := w.watch(coord.Watch{Span: coord.Exactly("quiet")})
	w.must(w.Alice, write(put("loud", "")))
	w.must(w.Alice, write(put("loud", "")))
	for v.next < 4 {
		require.Empty(w.t, v.mark().Events)
	}
}

func watchMarks(w *fixture) {
	for i := range 3 {
		w.must(w.Alice, write(put("loud", fmt.Sprint(i))))
	}
	for span, events := range map[coord.Span]int{coord.Exactly("quiet"): 0, coord.Exactly("loud"): 3} {
		v := w.watch(coord.Watch{Span: span, From: 2, Mark: true})
		v.events(events)
		require.Equal(w.t, coord.Batch{Next: 5}, v.batch())
	}
	require.Equal(w.t, coord.Batch{Next: 9}, w.watch(coord.Watch{From: 9, Mark: true}).batch())
}

// mark advances time until a batch comes. A watch measures from its last batch, which the watcher may
// read after the test advanced the time.
func (v *watching) mark() coord.Batch {
	v.w.t.Helper()
	ctx, cancel := context.WithTimeout(v.w.ctx(), patient)
	defer cancel()
	for ctx.Err() == nil {
		v.w.Pass(v.w.Progress)
		if b, ok := v.soon(ctx); ok {
			require.GreaterOrEqual(v.w.t, b.Next, v.next)
			v.next = b.Next
			return b
		}
	}
	require.FailNow(v.w.t, "the watch says nothing")
	return coord.Batch{}
}

// soon takes a batch that comes within a moment.
func (v *watching) soon(ctx context.Context) (coord.Batch, bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	select {
	case b := <-v.batches:
		return b, true
	case err := <-v.end:
		require.FailNow(v.w.t, "the watch ended", "%v", err)
	case <-ctx.Done():
	}
	return coord.Batch{}, false
}

func watchRefuses(w *fixture) {
	err := w.Events(w.ctx(), coord.Watch{From: -1}, func(coord.Batch, coord.Header) error { return nil })
	w.refused(fault.Invalid, "from", err)
}

func watchEnds(w *fixture) {
	v := w.watch(coord.Watch{})
	v.cancel()
	require.ErrorIs(w.t, v.ended(), fault.Canceled)
}

func watchUnsent(w *fixture) {
	enough := errors.New("enough")
	err := w.Events(w.ctx(), coord.Watch{}, func(coord.Batch, coord.Header) error { return enough })
	require.ErrorIs(w.t, err, enough)
}

// A slow watcher gets all events, in order.
func watchMuch(w *fixture) {
	const revisions = 2000
	slow := w.watch(coord.Watch{Span: coord.Under("k")}) // takes nothing meanwhile
	for i := range revisions {
		w.must(w.Alice, write(put(fmt.Sprint("k", i), "")))
	}
	for _, v := range []*watching{slow, w.watch(coord.Watch{From: 1})} {
		for i, e := range v.events(revisions) {
			require.Equal(w.t, fmt.Sprint("k", i), e.Key)
		}
	}
}

// Batches are bounded in bytes. A revision above the bound, such as a deletion with all former values, is still one batch.
func watchLarge(w *fixture) {
	const keys = 20
	value := strings.Repeat("v", coord.MaxValue)
	for i := range keys {
		w.must(w.Alice, write(put(fmt.Sprintf("k%02d", i), value)))
	}
	w.must(w.Alice, write(del(coord.Under("k"))))
	v := w.watch(coord.Watch{From: 1, Prev: true})
	for seen := 0; seen < keys; {
		events := v.batch().Events
		require.LessOrEqual(w.t, len(events), 2)
		for _, e := range events {
			require.Len(w.t, e.KV.Value, coord.MaxValue)
		}
		seen += len(events)
	}
	b := v.batch()
	for len(b.Events) == 0 {
		b = v.batch()
	}
	require.Len(w.t, b.Events, keys)
	for _, e := range b.Events {
		require.Nil(w.t, e.KV)
		require.Len(w.t, e.Prev.Value, coord.MaxValue)
	}
}

func watchMany(w *fixture) {
	const many = 50
	var all []*watching
	for i := range many {
		all = append(all, w.watch(coord.Watch{Span: coord.Under(fmt.Sprint("k", i, "/"))}))
	}
	for i := range 3 * many {
		w.must(w.Alice, write(put(fmt.Sprint("k", i%many, "/", i), "")))
	}
	for i, v := range all {
		want := []string{fmt.Sprint("k", i, "/", i), fmt.Sprint("k", i, "/", i+many), fmt.Sprint("k", i, "/", i+2*many)}
		require.Equal(w.t, want, eventKeys(v.events(3)))
	}
}

func watchLocks(w *fixture) {
	v := w.watch(coord.Watch{Span: coord.Under("db/")})
	lease, token := w.holder(w.Alice, "db")
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	events := v.events(2)
	require.Equal(w.t, []any{coord.LockKey("db", lease), lease}, []any{events[0].Key, events[0].KV.Lease})
	require.Equal(w.t, coord.Revision(token), events[0].KV.CreateRevision)
	require.True(w.t, events[1].Deletes())
}
