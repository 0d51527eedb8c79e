package discovery_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// follow starts a watch and reads its events until the first Progress.
func (f *fixture) follow(q query.Query, after string) (_ discovery.Watcher, shown []string) {
	f.t.Helper()
	watch, err := f.Watch(f.t.Context(), q, after)
	require.NoError(f.t, err)
	for {
		ev := f.next(watch)
		if ev.Kind == query.Progress {
			return watch, shown
		}
		shown = append(shown, describe(ev))
	}
}

func (f *fixture) next(watch discovery.Watcher) query.Event {
	f.t.Helper()
	ev, err := watch.Next(f.t.Context())
	require.NoError(f.t, err)
	return ev
}

// upTo reads events until a Progress, which a quiet watch sends.
func (f *fixture) upTo(watch discovery.Watcher) (seen []string, cursor string) {
	f.t.Helper()
	for {
		ev := f.next(watch)
		if ev.Kind == query.Progress {
			return seen, ev.Cursor
		}
		seen = append(seen, describe(ev))
	}
}

func describe(ev query.Event) string {
	if ev.Record == nil {
		return string(ev.Kind)
	}
	return fmt.Sprintf("%s %s/%d", ev.Kind, ev.Record.Name().ID, ev.Record.Sequence())
}

func (f *fixture) tombstone(last *records.Record) *records.Record {
	now := time.Now()
	r, err := records.Tombstone(f.other, last, records.Stamp{Sequence: last.Sequence() + 1, Created: now, Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(f.t, err)
	return r
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("a", 1, 1, 24*time.Hour)) // only the keepers have it
		cheap := query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(5.0)}}
		watch, shown := f.follow(cheap, "")
		defer watch.Close()
		require.Equal(t, []string{"added a/1"}, shown)

		f.arrive(f.foreign("a", 2, 2, 24*time.Hour))
		f.arrive(f.foreign("b", 3, 1, time.Hour))
		f.arrive(f.foreign("c", 9, 1, 24*time.Hour)) // too expensive
		f.arrive(f.foreign("c", 4, 2, 24*time.Hour)) // cheap enough again
		f.arrive(f.foreign("a", 8, 3, 24*time.Hour))
		c := f.foreign("c", 4, 3, 24*time.Hour)
		f.arrive(c)
		f.arrive(f.tombstone(c))
		seen, _ := f.upTo(watch)
		require.Equal(t, []string{
			"updated a/2", "added b/1", "added c/2", "removed a/3", "updated c/3", "withdrawn c/4",
		}, seen)
		time.Sleep(time.Hour)
		seen, _ = f.upTo(watch)
		require.Equal(t, []string{"expired b/1"}, seen)
	})
}

func TestWatchResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.arrive(f.foreign("a", 1, 1, 24*time.Hour))
		watch, _ := f.follow(storage(), "")
		_, cursor := f.upTo(watch)
		watch.Close()

		f.arrive(f.foreign("a", 2, 2, 24*time.Hour))
		f.arrive(f.foreign("b", 2, 1, 24*time.Hour))
		synctest.Wait()
		watch, shown := f.follow(storage(), cursor)
		require.Equal(t, []string{"updated a/2", "added b/1"}, shown, "nothing is lost or sent twice")
		watch.Close()

		for i := range 9000 { // more than the feed stores
			f.arrive(f.foreign("a", 2, uint64(3+i), 24*time.Hour))
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		watch, err := f.Watch(t.Context(), storage(), cursor)
		require.NoError(t, err)
		defer watch.Close()
		require.Equal(t, query.Reset, f.next(watch).Kind)
		seen, _ := f.upTo(watch)
		require.ElementsMatch(t, []string{"added a/9002", "added b/1"}, seen)
	})
}

// TestWatchResumesAmidState: a client that received only a part of a state starts again.
func TestWatchResumesAmidState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		a := f.foreign("a", 1, 1, 24*time.Hour)
		f.arrive(a)
		f.arrive(f.foreign("b", 1, 1, 24*time.Hour))
		watch, err := f.Watch(t.Context(), storage(), "")
		require.NoError(t, err)
		require.Empty(t, f.next(watch).Cursor, "one of two")
		_, cursor := f.upTo(watch)
		watch.Close()

		f.lose(a.Name().Provider) // while no watch was open
		watch, err = f.Watch(t.Context(), storage(), cursor)
		require.NoError(t, err)
		require.Equal(t, query.Reset, f.next(watch).Kind)
		seen, cursor := f.upTo(watch)
		require.Empty(t, seen)
		watch.Close()

		f.peers.set(a.Name().Provider, true)
		watch, err = f.Watch(t.Context(), storage(), cursor)
		require.NoError(t, err)
		defer watch.Close()
		require.Equal(t, query.Reset, f.next(watch).Kind)
		seen, _ = f.upTo(watch)
		require.ElementsMatch(t, []string{"added a/1", "added b/1"}, seen)
	})
}

func TestWatchRefusesCursors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		for _, cursor := range []string{"x", "1", "-", "1-2", "1-2-3-4", "zz-1-1", "1-2-"} {
			_, err := f.Watch(t.Context(), storage(), cursor)
			require.ErrorIs(t, err, fault.Invalid, cursor)
			require.Equal(t, "after", fault.FieldOf(err))
		}
		watch, err := f.Watch(t.Context(), storage(), "1-2-0") // of another process
		require.NoError(t, err)
		defer watch.Close()
		require.Equal(t, query.Reset, f.next(watch).Kind)
	})
}

func TestWatchSeesReachability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		r := f.foreign("a", 1, 1, 24*time.Hour)
		f.arrive(r)
		watch, shown := f.follow(storage(), "")
		defer watch.Close()
		require.Equal(t, []string{"added a/1"}, shown)
		synctest.Wait()
		require.True(t, f.peers.has(r.Name().Provider))

		f.lose(r.Name().Provider)
		require.Equal(t, "removed a/1", describe(f.next(watch)))
		f.arrive(f.foreign("a", 1, 2, 24*time.Hour)) // a new version does not prove reachability
		seen, _ := f.upTo(watch)
		require.Empty(t, seen)
		f.peers.set(r.Name().Provider, true)
		require.Equal(t, "added a/2", describe(f.next(watch)))
	})
}

// TestWatchAsksAgain: the next query to the keepers brings the changes that live updates missed.
func TestWatchAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		watch, shown := f.follow(storage(), "")
		defer watch.Close()
		require.Empty(t, shown)
		for _, id := range []string{"a", "b"} {
			f.keep(f.foreign(id, 1, 1, 24*time.Hour))
			time.Sleep(2*time.Minute + time.Second)
			require.Equal(t, "added "+id+"/1", describe(f.next(watch)))
		}
	})
}

// TestWants: keepers must not shed the records of a watch.
func TestWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		r := f.foreign("a", 1, 1, 24*time.Hour)
		require.False(t, f.Wants(r))
		watch, _ := f.follow(storage(), "")
		require.True(t, f.Wants(r))
		watch.Close()
		require.False(t, f.Wants(r))
	})
}

func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		watch, _ := f.follow(storage(), "")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := watch.Next(ctx)
		require.ErrorIs(t, err, context.Canceled)

		go f.Service.Close()
		_, err = watch.Next(t.Context())
		require.ErrorIs(t, err, fault.Unavailable)
		watch.Close()
		f.close()
	})
}

// TestWatchRefusesOrder: a watch sends all matches, so a limit or an order would be ignored.
func TestWatchRefusesOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		for field, change := range map[string]func(*query.Query){
			"limit": func(q *query.Query) { q.Limit = 1 },
			"sort":  func(q *query.Query) { q.Sort = query.SortPrice },
		} {
			q := storage()
			change(&q)
			_, err := f.Watch(t.Context(), q, "")
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, field, fault.FieldOf(err))
		}
	})
}

// TestWatchTellsWhatItLeavesOut: a Progress says how many records need a later version, at the start, and at once
// after each change of that.
func TestWatchTellsWhatItLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		later := func(id string, sequence uint64) *records.Record {
			return recordstest.Later(t, f.other, f.foreign(id, 1, sequence, 24*time.Hour), recordstest.Needs("auction.v2"))
		}
		f.arrive(later("a", 1))
		synctest.Wait()
		watch, err := f.Watch(t.Context(), storage(), "")
		require.NoError(t, err)
		defer watch.Close()
		left := func(n int) *query.LeftOut { return &query.LeftOut{Records: n, Features: []string{"auction.v2"}} }
		first := f.next(watch)
		require.Equal(t, left(1), first.Beyond)
		require.True(t, first.Complete, first.Reason)

		plain := f.foreign("b", 1, 1, 24*time.Hour)
		f.arrive(plain)
		require.Equal(t, describe(query.Event{Kind: query.Added, Record: plain}), describe(f.next(watch)))
		f.arrive(later("b", 2))
		gone := f.next(watch)
		require.Equal(t, query.Removed, gone.Kind)
		require.Equal(t, "critical: needs features that this version lacks: auction.v2", gone.Reason)
		began := time.Now()
		now := f.next(watch)
		require.Equal(t, query.Progress, now.Kind)
		require.Equal(t, left(2), now.Beyond)
		require.Zero(t, time.Since(began))

		f.arrive(later("b", 3)) // renewed: nothing new
		require.Equal(t, now.Beyond, f.next(watch).Beyond)
		require.NotZero(t, time.Since(began), "the Progress of a quiet watch")
		f.arrive(f.foreign("a", 1, 4, 24*time.Hour))
		require.Equal(t, query.Added, f.next(watch).Kind)
		require.Equal(t, left(1), f.next(watch).Beyond)
		f.arrive(f.foreign("b", 1, 5, 24*time.Hour))
		require.Equal(t, query.Added, f.next(watch).Kind)
		require.Nil(t, f.next(watch).Beyond)
	})
}

// A slow viewer gets the changes of one record as one, and ends with the same matches. A resumed watch begins before the first of these changes, or after the last.
func TestWatchOfASlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.arrive(f.foreign("s0", 1, 1, 24*time.Hour))
		cheap := query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(5.0)}}
		plan, err := queries.Compile(cheap, queries.Defaults{})
		require.NoError(t, err)
		watch, shown := f.follow(cheap, "")
		defer watch.Close()
		_, cursor := f.upTo(watch)
		state := map[string]uint64{"s0": 1}
		require.Equal(t, []string{"added s0/1"}, shown)
		last := make(map[int]*records.Record)
		for i := range 5000 {
			id := i % 40
			r := f.foreign(fmt.Sprintf("s%d", id), float64(i%7), uint64(2*i+2), 24*time.Hour)
			if old := last[id]; i%11 == 0 && old != nil && !old.Withdrawn() {
				r = f.tombstone(old)
			}
			last[id] = r
			f.arrive(r)
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		resumed, err := f.Watch(t.Context(), cheap, cursor)
		require.NoError(t, err)
		defer resumed.Close()
		for _, w := range []discovery.Watcher{watch, resumed} {
			state, events, at := maps.Clone(state), 0, ""
			ev := f.next(w)
			for ; ev.Kind != query.Progress; ev = f.next(w) {
				events++
				require.NotEqual(t, query.Reset, ev.Kind)
				if delete(state, ev.Record.Name().ID); ev.Kind == query.Added || ev.Kind == query.Updated {
					state[ev.Record.Name().ID] = ev.Record.Sequence()
				}
				at = cmp.Or(ev.Cursor, at)
			}
			want := make(map[string]uint64)
			for _, r := range last {
				if !r.Withdrawn() && plan.Match(r) {
					want[r.Name().ID] = r.Sequence()
				}
			}
			require.Equal(t, want, state)
			require.LessOrEqual(t, events, 40)
			require.Equal(t, ev.Cursor, at, "the last event resumes after all")
		}
	})
}

// A watch says with each Progress whether its last search missed matches, and at once when that changes.
func TestWatchTellsWhatItMisses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.partial.Store(true)
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))
		began := time.Now()
		watch, err := f.Watch(t.Context(), storage(), "")
		require.NoError(t, err)
		defer watch.Close()
		require.Equal(t, "added a/1", describe(f.next(watch)))
		for range 2 {
			ev := f.next(watch)
			require.Equal(t, query.Progress, ev.Kind)
			require.False(t, ev.Complete)
			require.Equal(t, "one keeper of two answered", ev.Reason)
		}
		f.net.partial.Store(false)
		progress := func(complete bool, reason string) {
			t.Helper()
			for {
				ev := f.next(watch)
				require.Equal(t, query.Progress, ev.Kind)
				if ev.Complete == complete {
					require.Equal(t, reason, ev.Reason)
					return
				}
			}
		}
		progress(true, "")
		require.Equal(t, 30*time.Second, time.Since(began), "at once after the search")
		f.net.down.Store(true)
		progress(false, "fake: network is down")
		require.Equal(t, 90*time.Second, time.Since(began))
	})
}

// A state of more matches than one answer holds arrives in pages, whole. Until then the watch says that more are to come.
func TestWatchOfManyMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.limited.Store(true)
		const count = 2*queries.MaxLimit + 300
		now := time.Now()
		var key crypto.PrivKey
		for i := range count {
			if i%100 == 0 {
				var err error
				key, _, err = crypto.GenerateEd25519Key(rand.Reader)
				require.NoError(t, err)
			}
			r, err := records.Sign("test", key, offer(fmt.Sprintf("s%d", i), 1), records.Stamp{Sequence: 1, Created: now, Issued: now, Expires: now.Add(24 * time.Hour)})
			require.NoError(t, err)
			f.keep(r)
		}
		watch, err := f.Watch(t.Context(), storage(), "")
		require.NoError(t, err)
		defer watch.Close()
		seen := make(map[string]bool)
		for first := true; ; first = false {
			ev := f.next(watch)
			for ; ev.Kind == query.Added; ev = f.next(watch) {
				require.False(t, seen[ev.Record.Name().ID])
				seen[ev.Record.Name().ID] = true
			}
			require.Equal(t, query.Progress, ev.Kind)
			if ev.Complete {
				break
			}
			require.True(t, first, ev.Reason)
			require.Len(t, seen, queries.MaxLimit)
			require.Equal(t, "there are more matches than were asked for so far", ev.Reason)
		}
		require.Len(t, seen, count)
		require.Equal(t, int64(1+3), f.net.queries.Load(), "the first page, and all pages")
	})
}

// A watch leaves out what an answer leaves out: a dead endpoint is removed and, when it answers again or moves, added. A cursor from before
// begins anew. A watch alone has its matches measured.
func TestWatchLeavesDeadEndpointsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.speaks.set("a.net", probe.Answers)
		f.speaks.set("b.net", probe.Answers)
		f.speaking("b", "https://b.net", 1)
		f.speaking("a", "https://a.net", 1)
		watch, shown := f.follow(storage(), "")
		require.ElementsMatch(t, []string{"added a/1", "added b/1"}, shown)
		all := storage()
		all.Health = query.HealthAny
		everything, _ := f.follow(all, "")
		_, before := f.upTo(watch)

		f.speaks.set("a.net", probe.Refuses)
		ev := f.next(watch)
		for ev.Kind == query.Progress {
			ev = f.next(watch)
		}
		require.Equal(t, "removed a/1", describe(ev))
		require.Equal(t, "endpoint: refuses, by a fake", ev.Reason)
		_, after := f.upTo(watch)
		require.Len(t, f.ask(storage()).Results, 1, "as an answer says")
		quiet, _ := f.upTo(everything)
		require.Empty(t, quiet)
		everything.Close()

		resumed, seen := f.follow(storage(), before)
		require.Equal(t, []string{"reset", "added b/1"}, seen)
		resumed.Close()
		resumed, seen = f.follow(storage(), after)
		require.Empty(t, seen)
		resumed.Close()

		f.speaking("a", "https://c.net", 2) // nobody knows whether it answers
		seen, _ = f.upTo(watch)
		require.Equal(t, []string{"added a/2"}, seen)
		f.speaks.set("c.net", probe.Silent)
		for seen = nil; len(seen) == 0; seen, _ = f.upTo(watch) {
		}
		require.Equal(t, []string{"removed a/2"}, seen)
		f.arrive(f.again("a", "https://c.net", 3)) // a refreshed version is as dead
		f.speaks.set("b.net", probe.Silent)
		for seen = nil; len(seen) == 0; seen, _ = f.upTo(watch) {
		}
		require.Equal(t, []string{"removed b/1"}, seen)
		f.speaks.set("c.net", probe.Answers)
		for seen = nil; len(seen) == 0; seen, _ = f.upTo(watch) {
		}
		require.Equal(t, []string{"added a/3"}, seen)
		require.Len(t, f.ask(storage()).Results, 1)
		watch.Close()
	})
}

// A watch that lost live updates says so at once, asks the keepers, and says when it has all again. Losses in a row cost one search each
// half minute. Losses on topics of other watches cost nothing.
func TestWatchTellsLostUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		watch, _ := f.follow(storage(), "")
		defer watch.Close()
		synctest.Wait()
		asked := f.net.queries.Load()
		lost := gossip.TopicsFor(storage().Type, nil)[0]
		f.Lose(gossip.Topic{Type: "cdn", Cell: lost.Cell})
		f.Lose(gossip.Topic{Type: lost.Type, Cell: "u3"}) // the watch follows another one
		synctest.Wait()
		require.Equal(t, asked, f.net.queries.Load())

		f.net.slow.Store(int64(time.Second))
		f.keep(f.foreign("a", 1, 1, 24*time.Hour)) // its live update did not arrive
		began := time.Now()
		f.Lose(lost)
		ev := f.next(watch)
		require.Equal(t, query.Progress, ev.Kind)
		require.False(t, ev.Complete)
		require.Contains(t, ev.Reason, "too slow for all live updates")
		require.Equal(t, "added a/1", describe(f.next(watch)))
		ev = f.next(watch)
		require.True(t, ev.Complete, ev.Reason)
		require.Equal(t, time.Second, time.Since(began))

		f.Lose(lost)
		require.False(t, f.next(watch).Complete)
		time.Sleep(28 * time.Second) // a search begins half a minute after the end of the last one
		synctest.Wait()
		require.Equal(t, asked+1, f.net.queries.Load())
		time.Sleep(2*time.Second + time.Second/2)
		synctest.Wait()
		require.Equal(t, asked+2, f.net.queries.Load())
		f.Lose(lost) // this search may have missed it
		for ev = f.next(watch); !ev.Complete; ev = f.next(watch) {
		}
		require.Equal(t, asked+3, f.net.queries.Load())
	})
}
