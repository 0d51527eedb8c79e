package tour

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
)

func TestHeldWantsEveryStep(t *testing.T) {
	all := make([]Result, len(steps()))
	for i := range all {
		all[i].OK = true
	}
	require.True(t, Held(all))
	require.False(t, Held(all[1:]))
	all[3].OK = false
	require.False(t, Held(all))
}

// TestSkip: a step that cannot be walked is told apart from one that failed.
func TestSkip(t *testing.T) {
	for _, c := range []struct {
		err      error
		ok, skip bool
	}{{nil, true, false}, {errors.New("torn"), false, false}, {fault.Wrap("op", skipped("no names here")), true, true}} {
		r := new(Tour).take(t.Context(), step{"a step", func(context.Context, *Tour) (string, error) { return "", c.err }})
		require.Equal(t, []bool{c.ok, c.skip}, []bool{r.OK, r.Skip}, r.Detail)
	}
}

// TestShownDead: neither silence nor a good measurement nor a changed claim will do.
func TestShownDead(t *testing.T) {
	owned := market.Selection{{Offer: records.Offer{ID: "a", Health: &records.Health{Status: "HEALTHY"}}}}
	answer := func(claim string, m *records.Measured) query.AnswerView {
		r := query.ResultView{Measured: m}
		r.Record.ID, r.Record.Health = "a", &records.Health{Status: claim}
		return query.AnswerView{Results: []query.ResultView{r}}
	}
	claims := map[string]int{}
	require.NoError(t, shownDead(answer("HEALTHY", &records.Measured{State: records.Unreachable}), owned, claims))
	require.Equal(t, map[string]int{"HEALTHY": 1}, claims)
	require.Error(t, shownDead(answer("HEALTHY", nil), owned, claims))
	require.Error(t, shownDead(answer("HEALTHY", &records.Measured{State: records.Reachable}), owned, claims))
	require.Error(t, shownDead(answer("UNHEALTHY", &records.Measured{State: records.Unreachable}), owned, claims))
}

// TestAlike: watchers that were told of the same in more steps or fewer agree, and others do not.
func TestAlike(t *testing.T) {
	whole := []scene{{"ADDED", "UNKNOWN", 3}, {"MODIFIED", "UP", 4}, {"MODIFIED", "DOWN", 5}, {"DELETED", "DOWN", 6}}
	fewer := []scene{{"ADDED", "UP", 4}, {"MODIFIED", "DOWN", 5}, {"DELETED", "DOWN", 6}}
	watchers := []*watcher{{peer: &network.Peer{Name: "a"}}, {peer: &network.Peer{Name: "b"}}}
	require.NoError(t, alike(watchers, [][]scene{whole, fewer}))
	require.NoError(t, alike(watchers, [][]scene{fewer, whole}))
	for name, wrong := range map[string][]scene{
		"not from the beginning": whole[1:],
		"backwards":              {whole[0], whole[2], whole[1], whole[3]},
		"twice":                  {whole[0], whole[1], whole[1], whole[2], whole[3]},
		"added twice":            {whole[0], fewer[0], whole[2], whole[3]},
		"another status":         {whole[0], {"MODIFIED", "DOWN", 4}, whole[2], whole[3]},
		"another end":            {whole[0], whole[1], whole[2], {"DELETED", "DOWN", 7}},
	} {
		require.Error(t, alike(watchers, [][]scene{whole, wrong}), name)
	}
}
