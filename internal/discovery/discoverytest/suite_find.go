package discoverytest

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func testQuery(t *testing.T, api API, h *Harness) {
	dear := h.Foreign(t, Offer("dear", Priced(3)))
	h.Foreign(t, Offer("cheap", Priced(2)))
	h.Foreign(t, Offer("far", At(-33.9, 18.4)))
	began := h.Now()
	h.Peers.Find(dear.Name().Provider, probe.Outcome{State: records.Reachable, RoundTrip: 1500 * time.Microsecond})

	q := compute(near(52.5, 13.4, 100), func(q *query.Query) { q.Sort, q.Limit = query.SortPrice, 1 })
	a, err := api.Query(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, []string{"cheap"}, names(a))
	require.Equal(t, 2, a.Total, "limit applies after ranking")
	require.True(t, a.Complete, a.Reason)
	require.Equal(t, query.SourceNetwork, a.Source)
	require.InDelta(t, 2.25, *a.Results[0].DistanceKM, 0.1)
	require.Positive(t, a.Results[0].Score)
	require.Nil(t, a.Results[0].Measured)
	require.Empty(t, a.Notes)

	again, err := api.Query(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, query.SourceCache, again.Source)
	require.Equal(t, a.Results, again.Results)

	limit := 10 // each question is new, so that no answer is from the cache
	var measured *records.Measured
	require.Eventually(t, func() bool {
		limit++
		all, err := api.Query(t.Context(), compute(func(q *query.Query) { q.Limit = limit }))
		require.NoError(t, err)
		require.Len(t, all.Results, 3)
		for _, r := range all.Results {
			require.Nil(t, r.DistanceKM, "the query has no place")
			if r.Record.ID == "dear" {
				require.Equal(t, dear.View(), r.Record)
				measured = r.Measured
			}
		}
		return measured != nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, records.Reachable, measured.State)
	require.Equal(t, 1500*time.Microsecond, measured.RoundTrip)
	require.WithinRange(t, measured.CheckedAt, began.Add(-time.Second), h.Now().Add(time.Second))
	none, err := api.Query(t.Context(), query.Query{Type: "nothing-of-the-kind"})
	require.NoError(t, err, "zero matches are an answer")
	require.Empty(t, none.Results)
	require.True(t, none.Complete)
}

func testQueryExplains(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("a"))
	h.Foreign(t, Offer("b", Priced(9)))
	limit := 5.0
	a, err := api.Query(t.Context(), compute(func(q *query.Query) { q.Explain, q.MaxPrice = true, &limit }))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names(a))
	require.NotEmpty(t, a.Results[0].Explain)
	require.NotEmpty(t, a.Notes)
}

func testQueryRefuses(t *testing.T, api API, _ *Harness) {
	negative, nan := -1.0, math.NaN()
	for field, edit := range map[string]func(*query.Query){
		"type":           func(q *query.Query) { q.Type = "" },
		"sort":           func(q *query.Query) { q.Sort = "beauty" },
		"health":         func(q *query.Query) { q.Health = "splendid" },
		"limit":          func(q *query.Query) { q.Limit = -1 },
		"near.latitude":  near(91, 0, 1),
		"near.longitude": near(0, math.Inf(1), 1),
		"near.radius_km": near(0, 0, 0),
		"max_price":      func(q *query.Query) { q.MaxPrice = &negative },
		"min_uptime":     func(q *query.Query) { q.MinUptime = &nan },
		"provider_id":    func(q *query.Query) { q.ProviderID = "nobody" },
		"countries[0]":   func(q *query.Query) { q.Countries = []string{"Fiji"} },
	} {
		_, err := api.Query(t.Context(), compute(edit))
		refused(t, err, fault.Invalid, field, discovery.ErrInvalidQuery)
		require.NotErrorIs(t, err, discovery.ErrInvalidService)
	}
	_, err := api.Query(t.Context(), compute(func(q *query.Query) { q.Limit = queries.MaxLimit + 1 }))
	refused(t, err, fault.Invalid, "limit", discovery.ErrInvalidQuery)
}

func testQueryUnanswered(t *testing.T, api API, h *Harness) {
	h.Network.Fail(fault.New("keeper.Query", fault.Unavailable, "no keeper answers"))
	_, err := api.Query(t.Context(), compute())
	require.ErrorIs(t, err, discovery.ErrDHTOperation)
	h.Network.Fail(context.DeadlineExceeded)
	_, err = api.Query(t.Context(), compute())
	require.ErrorIs(t, err, discovery.ErrQueryTimeout)

	_, err = api.Register(t.Context(), Offer("a"))
	require.NoError(t, err)
	a, err := api.Query(t.Context(), compute())
	require.NoError(t, err, "local matches are better than none")
	require.Equal(t, []string{"a"}, names(a))
	require.False(t, a.Complete)
	require.NotEmpty(t, a.Reason)
	require.Equal(t, query.SourceLocal, a.Source)
}

// expect reads one event.
func expect(t *testing.T, next Next, kind query.EventKind, id string) Event {
	t.Helper()
	ev, err := next()
	require.NoError(t, err)
	require.Equal(t, kind, ev.Kind)
	if id == "" {
		require.Nil(t, ev.Record)
	} else {
		require.Equal(t, id, ev.Record.ID)
	}
	return ev
}

func testWatch(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("f"))
	next, err := api.Watch(t.Context(), compute(near(52.5, 13.4, 100)), "")
	require.NoError(t, err)
	expect(t, next, query.Added, "f")
	require.NotEmpty(t, expect(t, next, query.Progress, "").Cursor)

	_, err = api.Register(t.Context(), Offer("elsewhere", At(0, 0)))
	require.NoError(t, err)
	_, err = api.Register(t.Context(), Offer("a"))
	require.NoError(t, err)
	added := expect(t, next, query.Added, "a")
	own, err := api.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, own, *added.Record)

	_, err = api.Update(t.Context(), Offer("a", Priced(2)))
	require.NoError(t, err)
	require.Equal(t, 2.0, *expect(t, next, query.Updated, "a").Record.Pricing.BasePrice)
	_, err = api.Update(t.Context(), Offer("a", At(0, 0)))
	require.NoError(t, err)
	expect(t, next, query.Removed, "a")
	_, err = api.Update(t.Context(), Offer("a"))
	require.NoError(t, err)
	expect(t, next, query.Added, "a")
	_, err = api.Withdraw(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, expect(t, next, query.Withdrawn, "a").Record.Withdrawn)
}

func testWatchResumes(t *testing.T, api API, _ *Harness) {
	next, err := api.Watch(t.Context(), compute(), "")
	require.NoError(t, err)
	start := expect(t, next, query.Progress, "").Cursor
	for _, id := range []string{"a", "b"} {
		_, err = api.Register(t.Context(), Offer(id))
		require.NoError(t, err)
	}
	again, err := api.Watch(t.Context(), compute(), start)
	require.NoError(t, err)
	middle := expect(t, again, query.Added, "a").Cursor
	expect(t, again, query.Added, "b")
	again, err = api.Watch(t.Context(), compute(), middle)
	require.NoError(t, err)
	expect(t, again, query.Added, "b")

	lost, err := api.Watch(t.Context(), compute(), "1-1-0")
	require.NoError(t, err)
	expect(t, lost, query.Reset, "")
	for range 2 {
		ev, err := lost()
		require.NoError(t, err)
		require.Equal(t, query.Added, ev.Kind)
	}
	expect(t, lost, query.Progress, "")
}

func testWatchRefuses(t *testing.T, api API, _ *Harness) {
	_, err := api.Watch(t.Context(), compute(near(91, 0, 1)), "")
	refused(t, err, fault.Invalid, "near.latitude", discovery.ErrInvalidQuery)
	_, err = api.Watch(t.Context(), compute(func(q *query.Query) { q.Sort = "beauty" }), "")
	refused(t, err, fault.Invalid, "sort", discovery.ErrInvalidQuery)
	_, err = api.Watch(t.Context(), compute(), "yesterday")
	refused(t, err, fault.Invalid, "after", discovery.ErrInvalidQuery)
}

func testWatchEnds(t *testing.T, api API, _ *Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	next, err := api.Watch(ctx, compute(), "")
	require.NoError(t, err)
	expect(t, next, query.Progress, "")
	cancel()
	_, err = next()
	require.ErrorIs(t, fault.Wrap("", err), fault.Canceled)
}
