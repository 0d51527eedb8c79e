package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// skewCase is one wrong clock and its effects.
type skewCase struct {
	skew    time.Duration
	warning string // part of the receipt's warning; "" for none
	seen    bool   // the peer's record is visible at peers with a right clock
	sees    bool   // the peer sees the records of the others
}

func skewCases() []skewCase {
	return []skewCase{
		{skew: 90 * time.Second, seen: true, sees: true},
		{skew: -90 * time.Second, seen: true, sees: true},
		{skew: 5 * time.Minute, warning: "5m0s ahead of its keepers' clocks: other peers refuse this record as issued in the future", sees: true},
		{skew: -5 * time.Minute, warning: "5m0s behind its keepers' clocks: for other peers this record expires that much earlier", seen: true},
		{skew: 10 * time.Minute, warning: "10m0s ahead of", sees: true},
		{skew: -10 * time.Minute, warning: "10m0s behind", seen: true},
		{skew: 25 * time.Hour, warning: "25h0m0s ahead of"},
		{skew: -25 * time.Hour, warning: "25h0m0s behind its keepers' clocks: for other peers this record has expired"},
	}
}

// TestWrongClock joins a peer with a wrong clock to peers with right ones.
func TestWrongClock(t *testing.T) {
	for _, peers := range []int{3, 4, 6} {
		for _, c := range skewCases() {
			t.Run(fmt.Sprintf("%d peers, %s", peers, c.skew), func(t *testing.T) {
				if peers > 3 {
					long(t)
				}
				synctest.Test(t, func(t *testing.T) { playWrongClock(t, peers, c) })
			})
		}
	}
}

func playWrongClock(t *testing.T, peers int, c skewCase) {
	w := newCluster(t, Params{Peers: peers, Seed: 1, RTT: 20 * time.Millisecond})
	w.join(peers - 1)
	for i, p := range w.peers {
		_, err := p.discovery.Register(t.Context(), offerOf(fmt.Sprint("honest-", i)))
		require.NoError(t, err)
	}
	time.Sleep(quieting)
	at := newPlace(address(peers), keyOf(w.params.Seed, uint64(peers)))
	at.skew = c.skew
	wrong, err := startPeer(w.wire, at, w.doors(), 0)
	require.NoError(t, err)
	w.peers = append(w.peers, wrong)

	for range 600 { // from the first moment on
		requireHonest(t, wrong, peers-1)
		time.Sleep(100 * time.Millisecond)
	}
	require.Contains(t, conditionOf(wrong), strings.TrimPrefix(fmt.Sprint(c.skew.Abs()), "-"))
	receipt, err := wrong.discovery.Register(t.Context(), offerOf("own"))
	require.NoError(t, err)
	if c.warning == "" {
		require.Empty(t, receipt.Warnings)
	} else {
		require.Len(t, receipt.Warnings, 1)
		require.Contains(t, receipt.Warnings[0], c.warning)
	}
	time.Sleep(quieting)
	for _, p := range w.peers[:peers-1] {
		a, err := p.discovery.Query(t.Context(), anyDatabase())
		require.NoError(t, err)
		require.True(t, a.Complete, a.Reason)
		require.Equal(t, c.seen, slices.Contains(idsOf(a), "own"))
		require.Empty(t, conditionOf(p), "one wrong clock among %d does not put the others in doubt", peers)
	}
	a := requireHonest(t, wrong, peers-1)
	require.Contains(t, idsOf(a), "own")
	require.Equal(t, c.sees, len(a.Results) == peers, "%v", idsOf(a))

	wrong.skewed.Store(0) // NTP sets the clock
	time.Sleep(2 * time.Minute)
	require.Empty(t, conditionOf(wrong))
	for _, p := range w.peers {
		a, err := p.discovery.Query(t.Context(), anyDatabase())
		require.NoError(t, err)
		require.True(t, a.Complete, a.Reason)
		require.Len(t, a.Results, peers, "all records are visible everywhere: %v", idsOf(a))
		requireNoDistrust(t, p)
	}
}

// requireHonest asks a peer and requires an answer that claims no more than the peer knows.
func requireHonest(t *testing.T, p *simPeer, live int) *query.Answer {
	t.Helper()
	a, err := p.discovery.Query(t.Context(), anyDatabase())
	if err != nil {
		return nil
	}
	require.False(t, a.Complete && len(a.Results) < live, "complete, but %d of %d live records are missing", live-len(a.Results), live)
	if !a.Complete {
		require.NotEmpty(t, a.Reason)
	}
	if !a.AtLeast {
		require.Equal(t, a.Total, len(a.Results), "the total contradicts the results")
	}
	return a
}

func conditionOf(p *simPeer) string {
	for _, c := range p.conditions.Active() {
		if c.Name == condition.ClockOffset {
			return c.String()
		}
	}
	return ""
}

func requireNoDistrust(t *testing.T, p *simPeer) {
	t.Helper()
	for what, n := range p.counts.seen(t) {
		require.False(t, strings.HasPrefix(what, distrusted), "%s %d times at %s", what, n, short(p.id))
	}
}

func offerOf(id string) records.Offer {
	return records.Offer{ID: id, Metadata: records.Metadata{Type: "database", Name: id}}
}

func anyDatabase() query.Query {
	return query.Query{Type: "database", Quality: query.Quality{Health: query.HealthAny}}
}

func idsOf(a *query.Answer) []string {
	ids := make([]string, len(a.Results))
	for i, r := range a.Results {
		ids[i] = r.Record.Name().ID
	}
	return ids
}
