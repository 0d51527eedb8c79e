package keep

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Messages stay within bounds and hold every item once, in order.
func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var items []storeItem
		for i := range rapid.IntRange(0, 3000).Draw(t, "items") {
			size := (i * 7919) % (records.MaxSize + 1)
			items = append(items, storeItem{of: new(send), wire: &pb.StoreItem{Envelope: make([]byte, size), Cells: []string{"c"}}})
		}
		var again []storeItem
		for _, message := range pack(items) {
			require.NotEmpty(t, message)
			req := &pb.StoreRequest{}
			for _, p := range message {
				req.Items = append(req.Items, p.wire)
			}
			var b bytes.Buffer
			require.NoError(t, rpc.NewCodec(&b, &network.NullScope{}, protocol.RequestFormat()).WriteMessage(&pb.Request{TimeoutMs: math.MaxUint32, Op: &pb.Request_Store{Store: req}}))
			require.LessOrEqual(t, b.Len(), protocol.MaxRequest)
			require.NoError(t, rpc.NewCodec(&b, &network.NullScope{}, protocol.RequestFormat()).ReadMessage(new(pb.Request)))
			again = append(again, message...)
		}
		require.Equal(t, items, again)
	})
}

func targetsOf(recs []*records.Record) (targets []target) {
	for _, r := range recs {
		targets = append(targets, target{&send{record: r}, r.Cells()})
	}
	return targets
}

// Every keeper of every cell of a record gets the record once, with exactly its cells.
func TestRoute(t *testing.T) {
	p := keepertest.NewProvider(t)
	recs := keepertest.Batch(t, p, 3, time.Now())
	sets := map[records.CellKey]*Set{}
	for _, c := range recs[0].Cells() {
		sets[c] = NewSet(Nearest(KeyOf(c), keepertest.PeersOf(40), Replicas), nil)
	}
	targets := targetsOf(recs)
	all := func(peer.ID, records.CellKey, *records.Record) bool { return true }
	got := map[string]bool{}
	for _, s := range batchesOf(targets, sets, all) {
		for _, item := range s.items {
			for _, c := range item.wire.Cells {
				what := fmt.Sprint(s.to, item.of.record.Name(), c)
				require.False(t, got[what])
				got[what] = true
			}
		}
	}
	require.Len(t, got, len(recs)*len(sets)*Replicas)
	one := sets[recs[0].Cells()[0]].Peers[0]
	only := func(id peer.ID, _ records.CellKey, r *records.Record) bool { return id == one && r == recs[1] }
	some := batchesOf(targets, sets, only)
	require.Len(t, some, 1)
	require.Len(t, some[0].items, 1, "unwanted records are not sent")
}

func TestTally(t *testing.T) {
	sends := []*send{{}, {}, {}, {}}
	stale := func(record int, sequence uint64) storeItem {
		return storeItem{of: sends[record], err: fault.New("", fault.Exists, "stale"), sequence: sequence}
	}
	full := storeItem{of: sends[2], err: fault.New("", fault.LimitReached, "full")}
	out := tally("self", sends, []storeBatch{
		{to: "a", items: []storeItem{{of: sends[0]}, stale(1, 7), full}},
		{to: "b", items: []storeItem{stale(0, 9), stale(1, 8), full}},
	}, nil)
	require.Equal(t, records.Outcome{Stored: records.Stored{On: 1, Of: 2}}, out[0])
	require.Equal(t, records.Stored{On: 0, Of: 2}, out[1].Stored)
	require.ErrorIs(t, out[1].Err, fault.Exists)
	require.Equal(t, uint64(8), fault.ValueOf(out[1].Err))
	require.ErrorIs(t, out[2].Err, fault.LimitReached)
	require.Equal(t, records.Outcome{}, out[3])

	seen := []*send{{}, {}}
	out = tally("self", seen, []storeBatch{{to: "self", items: []storeItem{{of: seen[0]}, {of: seen[1]}}}, {to: "a", items: []storeItem{{of: seen[1]}}}, {to: "self", items: []storeItem{{of: seen[1]}}}}, nil)
	require.True(t, out[0].Stored.ThisPeerOnly)
	require.False(t, out[1].Stored.ThisPeerOnly, "a holds it too")
}

// Weighed calls stay within the weight, one at a time may exceed it, and every call runs or is late.
func TestWeighed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		random := rand.New(rand.NewPCG(3, 4))
		weights := make([]int, 200)
		for i := range weights {
			weights[i] = 1 + random.IntN(60)
		}
		weights[7] = 1000
		var mu sync.Mutex
		var under, calls, most, done int
		late := weighed(ctx, 20, 100, weights, func(i int) {
			w := min(weights[i], 100)
			mu.Lock()
			under, calls = under+w, calls+1
			most = max(most, under)
			require.LessOrEqual(t, under, 100)
			require.LessOrEqual(t, calls, 20)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			under, calls, done = under-w, calls-1, done+1
			mu.Unlock()
		})
		require.Greater(t, most, 80)
		require.NotEmpty(t, late)
		require.Equal(t, len(weights), done+len(late))
	})
}
