package daemon

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records/delegation"
)

// Two peers are one provider: the second offers for the first, and says so. A delegation that does not hold stops the start.
func TestDelegate(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	owner, err := Identity(one)
	require.NoError(t, err)
	delegate, err := Identity(two)
	require.NoError(t, err)
	c := config.Default()
	c.Network.Name = "shop"

	key, err := p2p.LoadIdentity(filepath.Join(one, identityFile))
	require.NoError(t, err)
	id, err := peer.Decode(delegate)
	require.NoError(t, err)
	ended, err := delegation.Sign("shop", key, id, time.Now().Add(-time.Hour), time.Minute)
	require.NoError(t, err)
	signed, err := delegation.Sign("shop", key, id, time.Now().Add(-50*time.Minute), time.Hour)
	require.NoError(t, err)
	early, err := delegation.Sign("shop", key, id, time.Now().Add(time.Hour), time.Hour)
	require.NoError(t, err)
	elsewhere, err := Delegate(one, "other", delegate, time.Hour)
	require.NoError(t, err)
	stranger, err := Identity(t.TempDir())
	require.NoError(t, err)
	foreign, err := Delegate(one, "shop", stranger, time.Hour)
	require.NoError(t, err)
	for what, text := range map[string]string{
		"is damaged": "?", "was not signed by": elsewhere.Text(), "is for the delegate": foreign.Text(), "ended at": ended.Text(), "begins in the future": early.Text(),
	} {
		bad := c
		bad.Data, bad.HTTP, bad.GRPC, bad.DNS = two, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
		bad.Discovery.OffersFor = text
		l, err := listen(bad)
		require.NoError(t, err)
		log, journal := newJournal(bad.Log, t.Output())
		_, err = build(t.Context(), bad, l, log, journal, "test")
		require.ErrorContains(t, err, what)
		require.Equal(t, "discovery.offers_for", fault.FieldOf(err))
	}

	c.Discovery.Delegates = []string{delegate}
	first := startWith(t, c, one)
	c = config.Default()
	c.Network.Name, c.Discovery.OffersFor = "shop", signed.Text()
	second := startWith(t, c, two, first.addr)
	until(t, "a connection", func() bool { return len(second.parts.node.Host().Network().Peers()) > 0 })
	_, err = first.Register(t.Context(), compute("a", 1, 1, 1))
	require.NoError(t, err)
	_, err = second.Register(t.Context(), compute("b", 1, 1, 1))
	require.NoError(t, err)
	until(t, "both offers of one provider", func() bool {
		a, err := first.Query(t.Context(), query.Query{Type: "compute", ProviderID: owner})
		require.NoError(t, err)
		return len(a.Results) == 2 && a.Complete && !a.Proved.IsZero()
	})
	until(t, "the warning that it ends", func() bool {
		s, err := second.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, owner, s.OffersFor)
		return slices.ContainsFunc(s.Conditions, func(c discovery.Condition) bool { return c.Name == string(condition.Delegation) })
	})
}
