package keep

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestQuotasRefill(t *testing.T) {
	q := newQuotas(protocol.Limits{StoreRate: 2, StoreBurst: 3})
	now := time.Now()
	from := protocol.Source{Prefix: netip.MustParsePrefix("198.51.100.0/24")}
	for range 3 {
		require.NoError(t, q.take(from, now))
	}
	require.ErrorIs(t, q.take(from, now), fault.LimitReached)
	require.NoError(t, q.take(protocol.Source{Prefix: netip.MustParsePrefix("203.0.113.0/24")}, now), "another prefix has its own quota")
	require.NoError(t, q.take(from, now.Add(time.Second)))
	require.NoError(t, q.take(protocol.Source{Exempt: true, Prefix: from.Prefix}, now))
	for i := range 2 * maxPrefixes {
		_ = q.take(protocol.Source{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}, now)
	}
	require.Equal(t, maxPrefixes, q.Len())
}
