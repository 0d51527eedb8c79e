package discovery_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// follow starts a watch and reads up to its first Progress.
func (w *world) follow(q query.Query, after string) (_ discovery.Watcher, shown []string) {
	w.t.Helper()
	watch, err := w.Watch(w.t.Context(), q, after)
	require.NoError(w.t, err)
	for {
		ev := w.next(watch)
		if ev.Kind == discovery.Progress {
			return watch, shown
		}
		shown = append(shown, describe(ev))
	}
}

func (w *world) next(watch discovery.Watcher) discovery.Event {
	w.t.Helper()
	ev, err := watch.Next(w.t.Context())
	require.NoError(w.t, err)
	return ev
}

// upTo reads events until a Progress, which a quiet watch sends.
func (w *world) upTo(watch discovery.Watcher) (seen []string, cursor string) {
	w.t.Helper()
	for {
		ev := w.next(watch)
		if ev.Kind == discovery.Progress {
			return seen, ev.Cursor
		}
		seen = append(seen, describe(ev))
	}
}

func describe(ev discovery.Event) string {
	if ev.Record == nil {
		return string(ev.Kind)
	}
	return fmt.Sprintf("%s %s/%d", ev.Kind, ev.Record.Name().ID, ev.Record.Sequence())
}

func (w *world) tombstone(last *records.Record) *records.Record {
	now := time.Now()
	r, err := records.Tombstone(w.other, last, records.Stamp{Sequence: last.Sequence() + 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(w.t, err)
	return r
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.keep(w.foreign("a", 1, 1, 24*time.Hour)) // known to keepers only
		cheap := query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(5.0)}, Limit: 1}
		watch, shown := w.follow(cheap, "")
		defer watch.Close()
		require.Equal(t, []string{"added a/1"}, shown)

		w.arrive(w.foreign("a", 2, 2, 24*time.Hour))
		w.arrive(w.foreign("b", 3, 1, time.Hour))
		w.arrive(w.foreign("c", 9, 1, 24*time.Hour)) // too dear
		w.arrive(w.foreign("c", 4, 2, 24*time.Hour)) // not any more
		w.arrive(w.foreign("a", 8, 3, 24*time.Hour))
		c := w.foreign("c", 4, 3, 24*time.Hour)
		w.arrive(c)
		w.arrive(w.tombstone(c))
		seen, _ := w.upTo(watch)
		require.Equal(t, []string{
			"updated a/2", "added b/1", "added c/2", "removed a/3", "updated c/3", "withdrawn c/4",
		}, seen)
		time.Sleep(time.Hour)
		seen, _ = w.upTo(watch)
		require.Equal(t, []string{"expired b/1"}, seen)
	})
}

func TestWatchResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.arrive(w.foreign("a", 1, 1, 24*time.Hour))
		watch, _ := w.follow(storage(), "")
		_, cursor := w.upTo(watch)
		watch.Close()

		w.arrive(w.foreign("a", 2, 2, 24*time.Hour))
		w.arrive(w.foreign("b", 2, 1, 24*time.Hour))
		synctest.Wait()
		watch, shown := w.follow(storage(), cursor)
		require.Equal(t, []string{"updated a/2", "added b/1"}, shown, "nothing is lost or sent twice")
		watch.Close()

		for i := range 9000 { // more than are kept
			w.arrive(w.foreign("a", 2, uint64(3+i), 24*time.Hour))
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		watch, err := w.Watch(t.Context(), storage(), cursor)
		require.NoError(t, err)
		defer watch.Close()
		require.Equal(t, discovery.Reset, w.next(watch).Kind)
		seen, _ := w.upTo(watch)
		require.ElementsMatch(t, []string{"added a/9002", "added b/1"}, seen)
	})
}

// TestWatchResumesAmidState: who saw only a part of what was sent together starts anew.
func TestWatchResumesAmidState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		a := w.foreign("a", 1, 1, 24*time.Hour)
		w.arrive(a)
		w.arrive(w.foreign("b", 1, 1, 24*time.Hour))
		watch, err := w.Watch(t.Context(), storage(), "")
		require.NoError(t, err)
		require.Empty(t, w.next(watch).Cursor, "one of two")
		_, cursor := w.upTo(watch)
		watch.Close()

		w.verdicts.set(a.Name().Provider, false) // while nobody watched
		watch, err = w.Watch(t.Context(), storage(), cursor)
		require.NoError(t, err)
		require.Equal(t, discovery.Reset, w.next(watch).Kind)
		seen, cursor := w.upTo(watch)
		require.Empty(t, seen)
		watch.Close()

		w.verdicts.set(a.Name().Provider, true)
		watch, err = w.Watch(t.Context(), storage(), cursor)
		require.NoError(t, err)
		defer watch.Close()
		require.Equal(t, discovery.Reset, w.next(watch).Kind)
		seen, _ = w.upTo(watch)
		require.ElementsMatch(t, []string{"added a/1", "added b/1"}, seen)
	})
}

func TestWatchRefusesCursors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		for _, cursor := range []string{"x", "1", "-", "1-2", "1-2-3-4", "zz-1-1", "1-2-"} {
			_, err := w.Watch(t.Context(), storage(), cursor)
			require.ErrorIs(t, err, fault.Invalid, cursor)
			require.Equal(t, "after", fault.FieldOf(err))
		}
		watch, err := w.Watch(t.Context(), storage(), "1-2-0") // of another process
		require.NoError(t, err)
		defer watch.Close()
		require.Equal(t, discovery.Reset, w.next(watch).Kind)
	})
}

func TestWatchSeesVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		r := w.foreign("a", 1, 1, 24*time.Hour)
		w.arrive(r)
		watch, shown := w.follow(storage(), "")
		defer watch.Close()
		require.Equal(t, []string{"added a/1"}, shown)
		require.True(t, w.verdicts.tracked[r.Name().Provider])

		w.verdicts.set(r.Name().Provider, false)
		require.Equal(t, "removed a/1", describe(w.next(watch)))
		w.arrive(w.foreign("a", 1, 2, 24*time.Hour)) // a claim by others does not bring it back
		seen, _ := w.upTo(watch)
		require.Empty(t, seen)
		w.verdicts.set(r.Name().Provider, true)
		require.Equal(t, "added a/2", describe(w.next(watch)))
	})
}

// TestWatchAsksAgain: what the live updates missed comes with the next question to the
// keepers, which is put when they say that changes may be lost, and rarely otherwise.
func TestWatchAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		watch, shown := w.follow(storage(), "")
		defer watch.Close()
		require.Empty(t, shown)
		w.keep(w.foreign("a", 1, 1, 24*time.Hour))
		w.net.missed()
		require.Equal(t, "added a/1", describe(w.next(watch)))
		w.keep(w.foreign("b", 1, 1, 24*time.Hour))
		time.Sleep(5*time.Minute + time.Second)
		require.Equal(t, "added b/1", describe(w.next(watch)))
	})
}

// TestWants: a keeper must not shed what a watch shows.
func TestWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		r := w.foreign("a", 1, 1, 24*time.Hour)
		require.False(t, w.Wants(r))
		watch, _ := w.follow(storage(), "")
		require.True(t, w.Wants(r))
		watch.Close()
		require.False(t, w.Wants(r))
	})
}

func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		watch, _ := w.follow(storage(), "")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := watch.Next(ctx)
		require.ErrorIs(t, err, context.Canceled)

		go w.Service.Close()
		_, err = watch.Next(t.Context())
		require.ErrorIs(t, err, fault.Unavailable)
		watch.Close()
		w.close()
	})
}
