package protocol

import (
	"log/slog"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Keepers of two networks raise the condition, and it ends some time after the last refusal. Keepers of a single
// network could belong to one stranger, and raise nothing.
func TestConditionOfOlderKeepers(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	conditions, counts := condition.NewSet(slog.New(slog.DiscardHandler), clock), keepertest.NewCounts(t)
	host := keepertest.Addressed{Of: map[peer.ID]string{"a": "/ip4/40.1.7.1/udp/1", "b": "/ip4/40.1.7.2/udp/1", "c": "/ip4/41.1.7.1/udp/1"}}
	config := Config{Host: host, Now: clock, Signals: Signals{Conditions: conditions, Metrics: counts.Discovery}}
	c := NewClient(NewLife(config), config, nil)
	refusal := strictproto.Refuse([]string{"query.query.15", "query.query.sort"})
	c.lacking.note("a", refusal)
	c.lacking.note("b", refusal)
	require.Empty(t, conditions.ActiveNames())
	c.lacking.note("c", refusal)
	require.Equal(t, []string{"older_keepers"}, conditions.ActiveNames())
	require.Contains(t, conditions.Active()[0].String(), "3 keepers of an older version do not know max_error_rate, sort")
	require.Equal(t, 3, counts.Lacks()["query.query.max_error_rate"])
	require.Equal(t, []string{"max_error_rate", "sort"}, c.lacking.filtersOf("c"))
	now = now.Add(lackingTTL + time.Second)
	c.lacking.tell(now)
	require.Empty(t, conditions.ActiveNames())
	require.Empty(t, c.lacking.filtersOf("c"))
}

// What this version does not know either says nothing about the keeper's version.
func TestRefusalWithoutNames(t *testing.T) {
	counts := keepertest.NewCounts(t)
	config := Config{Host: keepertest.Addressed{}, Now: time.Now, Signals: Signals{Metrics: counts.Discovery}}
	c := NewClient(NewLife(config), config, nil)
	c.lacking.note("peer-1", strictproto.Refuse([]string{"query.query.899", "nothing"}))
	c.lacking.note("peer-1", fault.New("", fault.Unsupported, "split"))
	require.Empty(t, counts.Lacks())
	require.Empty(t, c.lacking.filtersOf("peer-1"))
}
