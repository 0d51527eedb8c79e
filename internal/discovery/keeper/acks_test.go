package keeper

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/records"
)

// A repeated announcement of an own record goes only to the keepers that missed the first one. A new
// version, and a repetition after ackTTL, go to all.
func TestRepeatedStoreReachesMissingKeepersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := keepertest.NewProvider(t)
		w := newCluster(t, 4, never, func(i int, c *protocol.Config) {
			if i == 0 {
				c.Self = p.Id
			}
		})
		a, slow := w.nodes[0], w.nodes[3]
		served := func() (all []int) {
			for _, n := range w.nodes[1:] {
				all = append(all, n.counts.Operations("serve_store"))
			}
			return all
		}
		store := func(r *records.Record) records.Stored {
			o := a.Store(t.Context(), []*records.Record{r})[0]
			require.NoError(t, o.Err)
			return o.Stored
		}
		slow.server.rpc.Close()
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		first := store(r)
		require.Equal(t, first.Of-1, first.On)
		slow.server.rpc = protocol.Listen(slow.config, slow.server.handle)
		require.Equal(t, records.Stored{On: first.Of, Of: first.Of}, store(r))
		require.Equal(t, []int{1, 1, 1}, served())
		newer := p.Sign(t, keepertest.Offer("one"), 2, time.Now())
		store(newer)
		require.Equal(t, []int{2, 2, 2}, served())
		time.Sleep(ackTTL)
		store(newer)
		require.Equal(t, []int{3, 3, 3}, served())
	})
}
