package discovery_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// storage queries all storage services.
func storage() query.Query { return query.Query{Type: "storage"} }

func (f *fixture) ask(q query.Query) *query.Answer {
	f.t.Helper()
	a, err := f.Query(f.t.Context(), q)
	require.NoError(f.t, err)
	return a
}

func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))

		first := f.ask(storage())
		require.Equal(t, query.SourceNetwork, first.Source)
		require.Len(t, first.Results, 1)
		synctest.Wait()
		time.Sleep(9 * time.Second)
		again := f.ask(storage())
		require.Equal(t, query.SourceCache, again.Source)
		require.Equal(t, 9*time.Second, again.Age)
		require.Equal(t, first.Results, again.Results)
		require.EqualValues(t, 1, f.net.queries.Load())

		narrower := storage()
		narrower.Countries = []string{"DE"}
		require.Equal(t, query.SourceNetwork, f.ask(narrower).Source, "another question")

		time.Sleep(6 * time.Second)
		require.Equal(t, query.SourceNetwork, f.ask(storage()).Source, "live updates may have been lost")

		f.net.local.Store(true)
		time.Sleep(time.Minute)
		require.Equal(t, query.SourceLocal, f.ask(storage()).Source)
		synctest.Wait()
		time.Sleep(5*time.Minute - time.Second)
		require.Equal(t, query.SourceCache, f.ask(storage()).Source, "a keeper receives all changes")
		time.Sleep(time.Second)
		require.Equal(t, query.SourceLocal, f.ask(storage()).Source, "it is expired")
	})
}

// A peer that no longer keeps the cells of its own answer receives no changes of them, so the answer ends at once.
func TestFormerKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		r := f.foreign("a", 1, 1, 24*time.Hour)
		f.keep(r)
		f.arrive(r)
		f.keep(f.foreign("b", 2, 1, 24*time.Hour))
		f.arrive(f.foreign("b", 2, 1, 24*time.Hour))
		time.Sleep(time.Minute) // a new record counts for some seconds without its keepers
		f.net.local.Store(true)
		require.Equal(t, query.SourceLocal, f.ask(storage()).Source)
		synctest.Wait()
		require.Equal(t, query.SourceCache, f.ask(storage()).Source)

		f.net.local.Store(false) // nearer peers joined
		f.drop(r)
		got := f.ask(storage())
		require.Equal(t, query.SourceNetwork, got.Source)
		require.Len(t, got.Results, 1)
		require.Equal(t, query.SourceCache, f.ask(storage()).Source, "the answer of the other keepers")
	})
}

// A withdrawal whose live update is lost ends in the cache too. A question in frequent use never waits for it.
func TestLostWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		r := f.foreign("a", 1, 1, 24*time.Hour)
		f.keep(r)
		f.keep(f.foreign("b", 2, 1, 24*time.Hour))
		time.Sleep(time.Minute) // a new record counts for some seconds without its keepers
		require.Len(t, f.ask(storage()).Results, 2)
		f.drop(r)

		for range 14 {
			time.Sleep(time.Second)
			require.Equal(t, query.SourceCache, f.ask(storage()).Source)
			synctest.Wait()
		}
		require.Len(t, f.ask(storage()).Results, 1)
		require.EqualValues(t, 2, f.net.queries.Load(), "one renewal for each answer")
	})
}

// After a cut from the network, or the return of keepers, no earlier answer counts as fresh. It serves only
// while the network fails.
func TestCachedAnswersEndWithTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))
		f.ask(storage())
		synctest.Wait()
		require.Equal(t, query.SourceCache, f.ask(storage()).Source)
		f.net.epoch.Add(1)
		require.Equal(t, query.SourceNetwork, f.ask(storage()).Source)
		synctest.Wait()
		require.Equal(t, query.SourceCache, f.ask(storage()).Source)

		f.net.epoch.Add(1)
		f.net.down.Store(true)
		old := f.ask(storage())
		require.Equal(t, query.SourceCache, old.Source)
		require.False(t, old.Complete)
		require.NotEmpty(t, old.Reason)
	})
}

func TestEmptyAnswersAreCachedBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		require.Empty(t, f.ask(storage()).Results)
		time.Sleep(4 * time.Second)
		require.Equal(t, query.SourceCache, f.ask(storage()).Source)
		time.Sleep(time.Second)
		require.Equal(t, query.SourceNetwork, f.ask(storage()).Source)
	})
}

func TestChangesRenewAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))
		f.ask(storage())
		dear := query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(0.5)}}
		require.Empty(t, f.ask(dear).Results)
		synctest.Wait()

		f.arrive(f.foreign("b", 3, 1, 24*time.Hour)) // matches one of the two queries
		synctest.Wait()
		require.Len(t, f.ask(storage()).Results, 2)
		require.Equal(t, query.SourceCache, f.ask(dear).Source)
	})
}

func TestIncompleteAnswersAreNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.partial.Store(true)
		a := f.ask(storage())
		require.False(t, a.Complete)
		require.NotEmpty(t, a.Reason)
		f.net.partial.Store(false)
		require.True(t, f.ask(storage()).Complete)
	})
}

// Records of later versions come from the cache byte for byte. An answer counts the records that need a newer version
// beside it, also from the cache, until one of them changes: anybody can publish such records, so they make no answer incomplete.
func TestLaterVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		r := recordstest.Later(t, f.other, f.foreign("a", 1, 1, 24*time.Hour))
		f.keep(r)
		for _, source := range []query.Source{query.SourceNetwork, query.SourceCache} {
			a := f.ask(storage())
			require.True(t, a.Complete)
			require.Equal(t, source, a.Source)
			require.Equal(t, r.Envelope(), a.Results[0].Record.Envelope())
			text, err := json.Marshal(a.View())
			require.NoError(t, err)
			require.JSONEq(t, string(text), string(a.AppendJSON(nil)))
			synctest.Wait()
		}

		f.net.beyond.Store(true)
		critical := recordstest.Later(t, f.other, f.foreign("b", 1, 1, 24*time.Hour), recordstest.Needs("auction.v2"))
		f.arrive(critical)
		synctest.Wait()
		for _, source := range []query.Source{query.SourceNetwork, query.SourceCache} {
			a := f.ask(storage())
			require.Equal(t, source, a.Source)
			require.True(t, a.Complete, a.Reason)
			require.Equal(t, &query.LeftOut{Records: 1, Features: []string{"auction.v2"}}, a.Beyond)
			require.Len(t, a.Results, 1)
			synctest.Wait()
		}
		f.net.beyond.Store(false)
		plain := f.foreign("b", 1, 2, 24*time.Hour)
		f.keep(plain)
		f.arrive(plain)
		synctest.Wait()
		require.Nil(t, f.ask(storage()).Beyond)

		f.arrive(recordstest.Later(t, f.other, f.foreign("b", 1, 3, 24*time.Hour), recordstest.Needs("auction.v2")))
		explained := storage()
		explained.Explain = true
		require.Contains(t, strings.Join(f.ask(explained).Notes, "\n"), "needs features that this version lacks: auction.v2")
	})
}

func TestStaleIfError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))
		f.ask(storage())
		time.Sleep(10 * time.Minute)
		f.net.down.Store(true)
		a := f.ask(storage())
		require.Equal(t, query.SourceCache, a.Source)
		require.False(t, a.Complete)
		require.Equal(t, 10*time.Minute, a.Age)
		require.Len(t, a.Results, 1)

		local := f.ask(query.Query{Type: "storage", Countries: []string{"DE"}})
		require.Equal(t, query.SourceLocal, local.Source, "a new question, answered from the index")
		require.Len(t, local.Results, 1)
		_, err := f.Query(t.Context(), query.Query{Type: "compute"})
		require.ErrorIs(t, err, discovery.ErrDHTOperation, "the index is empty")
	})
}

// TestSingleFlight: concurrent callers with one question cause one search. It continues after one of them gives
// up.
func TestSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.slow.Store(int64(time.Second))
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := f.Query(impatient, storage())
			require.ErrorIs(t, err, discovery.ErrQueryTimeout)
		})
		for range 20 {
			wg.Go(func() {
				_, err := f.Query(t.Context(), storage())
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, f.net.queries.Load())
	})
}

func TestMeasuredAgainstClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		r := f.foreign("a", 1, 1, 24*time.Hour)
		provider := r.Name().Provider
		f.keep(r)
		f.ask(storage())
		synctest.Wait()
		require.True(t, f.peers.has(provider), "an offered provider is measured")

		f.lose(provider)
		require.Empty(t, f.ask(storage()).Results)
		anyHealth := query.Query{Type: "storage", Quality: query.Quality{Health: query.HealthAny}}
		shown := f.ask(anyHealth)
		require.Len(t, shown.Results, 1)
		require.Equal(t, records.Unreachable, shown.Results[0].Measured.State)

		f.peers.set(provider, true)
		require.Len(t, f.ask(storage()).Results, 1, "the provider came back")
	})
}

func TestRandomOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		q := query.Query{Type: "storage", Sort: query.SortRandom}
		require.Equal(t, query.SourceNetwork, f.ask(q).Source)
		q.Seed = 7 // the peer's random seed
		require.Equal(t, query.SourceCache, f.ask(q).Source)
	})
}

// TestObsoleteRecordsStayGone: a withdrawn or changed record does not return from the peer's own index once its keepers no
// longer have it.
func TestObsoleteRecordsStayGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		cheap := query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(5.0)}}
		withdrawn, changed := f.foreign("a", 1, 1, 24*time.Hour), f.foreign("b", 2, 1, 24*time.Hour)
		f.keep(withdrawn)
		f.keep(changed)
		require.Len(t, f.ask(cheap).Results, 2)
		require.Equal(t, 2, f.index.Len(), "from the keepers")

		f.keep(f.tombstone(withdrawn)) // this peer receives no live update
		f.keep(f.foreign("b", 9, 2, 24*time.Hour))
		time.Sleep(10 * time.Minute)
		require.Empty(t, f.ask(cheap).Results)
		require.Zero(t, f.index.Len(), "and forgotten")
	})
}

// TestLiveUpdatesRunAhead: a version from a live update is valid before its keepers have it, but the answer is incomplete.
func TestLiveUpdatesRunAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.arrive(f.foreign("a", 1, 1, 24*time.Hour))
		early := f.ask(storage())
		require.Len(t, early.Results, 1)
		require.False(t, early.Complete, "the keepers may lack it because it is withdrawn")
		require.Contains(t, early.Reason, "withdrawn")
		f.net.partial.Store(true) // an incomplete answer drops no record
		time.Sleep(10 * time.Minute)
		require.Empty(t, f.ask(storage()).Results)
		require.Equal(t, 1, f.index.Len())
	})
}

// TestYoungRecordIsConfirmed: this peer heard of an offer, but not of its withdrawal.
func TestYoungRecordIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		offer := f.foreign("a", 1, 1, 24*time.Hour)
		f.arrive(offer)
		f.keep(f.tombstone(offer))
		a := f.ask(storage())
		require.Empty(t, a.Results)
		require.True(t, a.Complete, a.Reason)
	})
}

// TestSearchAcrossASuspension: an answer from before a suspension is not given after it.
func TestSearchAcrossASuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))
		f.net.slow.Store(int64(time.Second))
		during := func(after time.Duration) { time.AfterFunc(after, func() { f.net.epoch.Add(1) }) }
		during(500 * time.Millisecond)
		a := f.ask(storage())
		require.True(t, a.Complete, a.Reason)
		require.EqualValues(t, 2, f.net.queries.Load())

		f.net.epoch.Add(1) // ends the cached answer
		during(500 * time.Millisecond)
		during(1500 * time.Millisecond)
		a = f.ask(storage())
		require.False(t, a.Complete)
		require.Contains(t, a.Reason, "during the search")
	})
}

// TestLocal: a keeper of all cells sends no query, and its cached answers follow changes.
func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.local.Store(true)
		f.arrive(f.foreign("a", 1, 1, 24*time.Hour))
		a := f.ask(storage())
		require.Equal(t, query.SourceLocal, a.Source)
		require.True(t, a.Complete)
		require.Len(t, a.Results, 1)
		require.Equal(t, query.SourceCache, f.ask(storage()).Source)
		f.arrive(f.foreign("b", 1, 1, 24*time.Hour))
		synctest.Wait()
		require.Len(t, f.ask(storage()).Results, 2)
		require.Zero(t, f.net.queries.Load())
		require.Zero(t, f.live.followed.Load())
	})
}

// TestTopicsStayFollowed: a change ends the use of an answer, and the next answer takes its topics over. A peer that left
// them between the two would miss the changes that come right after the first, and keep a wrong answer.
func TestTopicsStayFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		first := f.foreign("a", 1, 1, 24*time.Hour)
		f.keep(first)
		require.Len(t, f.ask(storage()).Results, 1)
		end := f.tombstone(first)
		f.keep(end)
		f.arrive(end)
		synctest.Wait()
		require.EqualValues(t, 1, f.live.followed.Load(), "after the change")
		require.Empty(t, f.ask(storage()).Results)
		require.EqualValues(t, 1, f.live.followed.Load(), "the next answer alone")
		require.EqualValues(t, 1, f.live.left.Load())
	})
}

// TestTopicsOfFormerAnswers: answers that serve no more make way for a new question.
func TestTopicsOfFormerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.live.most.Store(1)
		f.keep(f.foreign("a", 1, 1, 24*time.Hour))
		require.Len(t, f.ask(storage()).Results, 1)
		other := storage()
		other.Limit = 1
		f.ask(other)
		require.Zero(t, f.live.left.Load(), "a fresh answer keeps its topics")
		time.Sleep(time.Hour)
		f.ask(other)
		require.EqualValues(t, 1, f.live.left.Load())
		require.EqualValues(t, 1, f.live.followed.Load())
	})
}

// TestTotalAtLeast: an answer marks a total that is a lower bound. A query can request the exact total; the
// cache distinguishes both.
func TestTotalAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.net.local.Store(true)
		const services = 30
		for i := range services {
			f.arrive(f.foreign(fmt.Sprint("s", i), 1, 1, 24*time.Hour))
		}
		nearest := query.Query{Type: "storage", Near: &query.Near{Latitude: 52.5, Longitude: 13.4}, Limit: 5}
		counted := nearest
		counted.ExactTotal = true
		for _, source := range []query.Source{query.SourceLocal, query.SourceCache} {
			a := f.ask(nearest)
			require.Equal(t, source, a.Source)
			require.True(t, a.AtLeast)
			require.True(t, a.Complete, "the best matches are included")
			require.Greater(t, a.Total, len(a.Results))
			exact := f.ask(counted)
			require.Equal(t, source, exact.Source)
			require.False(t, exact.AtLeast)
			require.Equal(t, services, exact.Total)
			require.Equal(t, a.Results, exact.Results)
		}
	})
}

func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.keep(f.foreign("cheap", 0.1, 1, 24*time.Hour))
		f.arrive(f.foreign("dear", 9, 1, 24*time.Hour))
		a := f.ask(query.Query{Type: "storage", Price: query.Price{MaxPrice: ptr(0.5)}, Explain: true})
		require.Len(t, a.Results, 1)
		require.NotEmpty(t, a.Results[0].Explain)
		notes := strings.Join(a.Notes, "\n")
		require.Contains(t, notes, "/dear: ")
		require.Contains(t, notes, "known records: 1 match, 1 left out")
	})
}

func TestInvalidQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		_, err := f.Query(t.Context(), query.Query{})
		require.ErrorIs(t, err, discovery.ErrInvalidQuery)
		require.Equal(t, "type", fault.FieldOf(err))
		require.NotErrorIs(t, err, discovery.ErrInvalidLocation)
		require.Zero(t, f.net.queries.Load())
	})
}

func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		receipt, err := f.Register(t.Context(), offer("mine", 1))
		require.NoError(t, err)
		r, err := f.Resolve(t.Context(), receipt.Key)
		require.NoError(t, err)
		require.Equal(t, receipt.Sequence, r.Sequence())

		kept := f.foreign("theirs", 1, 1, 24*time.Hour)
		f.keep(kept)
		r, err = f.Resolve(t.Context(), kept.Key().String())
		require.NoError(t, err)
		require.Equal(t, kept.Name(), r.Name())

		_, err = f.Withdraw(t.Context(), "mine")
		require.NoError(t, err)
		_, err = f.Resolve(t.Context(), receipt.Key)
		require.ErrorIs(t, err, fault.NotFound)
		_, err = f.Resolve(t.Context(), "/nowhere")
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, "key", fault.FieldOf(err))
		missing := records.Key{Type: "storage", Subtype: "ssd", Cell: "u33dc1", Name: records.Name{Provider: peerOf(t), ID: "x"}}
		_, err = f.Resolve(t.Context(), missing.String())
		require.ErrorIs(t, err, discovery.ErrNoServicesFound)
	})
}

func ptr[T any](v T) *T { return &v }

func peerOf(t *testing.T) peer.ID {
	id, err := peer.IDFromPrivateKey(newKey(t))
	require.NoError(t, err)
	return id
}
