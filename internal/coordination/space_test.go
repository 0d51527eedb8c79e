package coordination_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// TestKeyFlood: one caller fills its share of the keys without a lease, and then many callers fill the room for keys. All
// members say so, and others go on: they write while there is room, and lock and register always.
func TestKeyFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3)
		for i, p := range w.peers {
			p.limits = func(l coord.Limits) coord.Limits {
				l.Keys, l.PerOwner.UnleasedKeys = 100, 40
				return l
			}
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		time.Sleep(time.Second)
		flood := func(owner string) (n int, err error) {
			for ; err == nil; n++ {
				_, _, err = ops.Of(w.peers[0]).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: fmt.Sprintf("%s/%d", owner, n)}}}}})
			}
			return n - 1, err
		}
		low := func(i int) bool { return slices.Contains(w.peers[i].conditions.ActiveNames(), "space_low") }

		n, err := flood("@flooder")
		require.Equal(t, 40, n)
		require.ErrorIs(t, err, fault.NoSpace)
		require.Equal(t, "per_owner.unleased_keys", fault.FieldOf(err))
		time.Sleep(time.Minute)
		require.False(t, low(0))

		_, err = flood("@second")
		require.ErrorIs(t, err, fault.NoSpace)
		require.Equal(t, "keys", fault.FieldOf(err), "the reserve is not for keys")
		time.Sleep(time.Minute)
		for i := range w.peers {
			require.True(t, low(i), i)
			require.InDelta(t, 1, w.peers[i].Stats().SpaceUsed, 0.05)
		}

		honest := w.peers[1]
		r, _, err := ops.Of(honest).Do(t.Context(), ops.Command{Owner: "@honest", Op: &ops.LeaseGrant{TTL: 60_000}})
		require.NoError(t, err)
		_, _, err = ops.Of(honest).Do(t.Context(), ops.Command{Owner: "@honest", Op: &ops.Lock{Name: "db", Lease: r.Lease}})
		require.NoError(t, err)
		value, err := proto.Marshal(&agentv1.Instance{Namespace: "default", ServiceName: "web", Id: "a", Port: 80})
		require.NoError(t, err)
		entry := directory.Entry{Key: directory.Key("default", "web", "a"), Value: value}
		_, _, err = ops.Of(honest).Do(t.Context(), ops.Command{Owner: "@honest", Op: &ops.RegisterBatch{Lease: r.Lease, Generation: 1, Puts: []directory.Entry{entry}}})
		require.NoError(t, err)

		_, _, err = ops.Of(honest).Do(t.Context(), ops.Command{Owner: "@flooder", Op: &ops.Txn{Then: []ops.Step{{Delete: spanOf("@flooder/")}}}})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		for i := range w.peers {
			require.False(t, low(i), i)
		}
	})
}

func spanOf(prefix string) *coord.Span {
	s := coord.Under(prefix)
	return &s
}
