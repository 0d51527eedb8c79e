package coordination_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
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
		require.ErrorIs(t, err, fault.PoolExhausted)
		require.Equal(t, "pool.keys.share", fault.FieldOf(err))
		time.Sleep(time.Minute)
		require.False(t, low(0))

		for _, owner := range []string{"@second", "@third", "@fourth", "@fifth"} {
			_, err = flood(owner)
			require.ErrorIs(t, err, fault.PoolExhausted)
		}
		require.Equal(t, "pool.keys", fault.FieldOf(err), "the reserve is not for keys")
		time.Sleep(time.Minute)
		for i := range w.peers {
			require.True(t, low(i), i)
			require.InDelta(t, 1, w.peers[i].Stats().PoolsUsed["keys"], 0.05)
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

// TestGreedyCallers: callers and strange peers that take all they get of the leases, clients and keys, one or five, do not shut out
// another peer: it grants a lease, locks and registers, also after a restart of all. Refusals name the pool.
func TestGreedyCallers(t *testing.T) {
	for name, mark := range map[string]string{"callers": "@greedy-", "callers without names of strange peers": "~greedy-", "strange peers": "greedy-"} {
		for _, greedy := range []int{1, 5} {
			t.Run(fmt.Sprint(greedy, " ", name), func(t *testing.T) { greedyCallers(t, greedy, mark) })
		}
	}
}

func greedyCallers(t *testing.T, greedy int, mark string) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 4)
		for i, p := range w.peers[:3] {
			p.limits = func(l coord.Limits) coord.Limits {
				l.Leases, l.Clients, l.Keys, l.Bytes = 500, 100, 2000, 400_000
				l.PerOwner = coord.Quota{Leases: 50, Claims: 40, Clients: 20, Bytes: 25_000, UnleasedKeys: 500, UnleasedBytes: 100_000}
				return l
			}
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		time.Sleep(time.Second)
		for n := range greedy {
			w.takeAll(w.peers[0], fmt.Sprint(mark, n))
		}
		w.start(3, w.listed(3))
		w.requireRoom(w.peers[3], 1)
		for _, p := range w.peers {
			p.stop(t)
		}
		for i := range w.peers {
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		w.requireRoom(w.peers[3], 2)
		w.requireRoom(w.peers[1], 3)
	})
}

// takeAll takes leases, clients and keys for a caller of a peer, more clients than there are.
func (w *testCluster) takeAll(at *node, owner string) {
	for range 110 {
		_, err := at.Execute(w.t.Context(), coord.CommandOf(owner, &apiv1.OpenClientRequest{}))
		require.NoError(w.t, err)
	}
	for pool, op := range map[string]func(n int) ops.Op{
		"leases": func(int) ops.Op { return &ops.LeaseGrant{TTL: 3600_000} },
		"keys": func(n int) ops.Op {
			return &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: fmt.Sprintf("%s/%d", owner, n)}}}}
		},
	} {
		var err error
		for n := 0; err == nil; n++ {
			_, _, err = ops.Of(at).Do(w.t.Context(), ops.Command{Owner: owner, Op: op(n)})
		}
		named, _ := fault.PoolOf(err)
		require.Equal(w.t, pool, named)
	}
}

// requireRoom requires a lease and a lock for a caller of a peer, and a lease and an entry for the peer itself.
func (w *testCluster) requireRoom(at *node, generation uint64) {
	name := fmt.Sprint("room-", generation)
	do := func(owner string, op ops.Op) ops.Result {
		r, _, err := ops.Of(at).Do(w.t.Context(), ops.Command{Owner: owner, Op: op})
		require.NoError(w.t, err)
		return r
	}
	caller := principals.Anonymous(at.id())
	lease := do(caller, &ops.LeaseGrant{TTL: 60_000}).Lease
	do(caller, &ops.Lock{Name: name, Lease: lease})
	value, err := proto.Marshal(&agentv1.Instance{Namespace: "default", ServiceName: "web", Id: name, Port: 80})
	require.NoError(w.t, err)
	entry := directory.Entry{Key: directory.Key("default", "web", name), Value: value}
	own := do(at.id(), &ops.LeaseGrant{TTL: 60_000}).Lease
	do(at.id(), &ops.RegisterBatch{Lease: own, Generation: generation, Puts: []directory.Entry{entry}})
	for _, p := range w.peers {
		found, _, err := ops.Of(p).Range(w.t.Context(), ops.Query{Span: coord.Exactly(entry.Key)}, ops.Linearizable)
		require.NoError(w.t, err)
		require.Len(w.t, found.Keys, 1)
	}
}
