package keeper

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// put adds records to a node's index directly.
func (n *node) put(t testing.TB, recs ...*records.Record) {
	t.Helper()
	for _, r := range recs {
		_, err := n.Index.Put(r, time.Now())
		require.NoError(t, err)
	}
}

// large raises the limit of an index.
func large(_ int, c *protocol.Config) { c.Index = index.New(index.Config{MaxPerProvider: 10_000}) }

// A new peer in a small network has all records after its first round, withdrawals included, and
// soon answers alone; later records reach it directly.
func TestJoinerIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4, large)
		recs := keepertest.Spread(t, 2000, rand.New(rand.NewPCG(1, 1)))
		p := keepertest.NewProvider(t)
		gone := p.Sign(t, keepertest.Offer("gone"), 1, time.Now())
		tomb := p.Withdraw(t, gone, time.Now())
		joined := w.nodes[3]
		for _, n := range w.nodes[:3] {
			n.put(t, recs...)
			n.put(t, tomb)
		}
		joined.put(t, gone) // absent at the withdrawal
		plan := keepertest.Compile(t, keepertest.Around(100))
		require.False(t, joined.sync.Settled(plan.Cells(9)))

		start, first := time.Now(), joined.sync.Last.Load()
		for joined.sync.Last.Load() == first {
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("the first round ended %s after the start", time.Since(start))
		require.Equal(t, len(recs), joined.Index.Len())
		latest, _ := joined.Index.Latest(gone.Name())
		require.True(t, latest.Withdrawn())

		time.Sleep(wholeTTL + 5*time.Second)
		require.True(t, joined.sync.Settled(plan.Cells(9)))
		asked := w.dht.asked()
		found, err := joined.Query(t.Context(), plan)
		require.NoError(t, err)
		require.True(t, found.Local)
		require.True(t, found.Complete)
		require.NotEmpty(t, found.Notes)
		require.Equal(t, asked, w.dht.asked())
		for _, r := range recs {
			require.Equal(t, plan.Match(r), slices.Contains(found.Records, mustGet(t, joined, r)))
		}
	})
}

func mustGet(t *testing.T, n *node, r *records.Record) *records.Record {
	got, ok := n.Index.Get(r.Name())
	require.True(t, ok)
	return got
}

// Two halves without contact converge after they see each other, and before their comparison no
// peer answers alone.
func TestHalvesConverge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 6, large)
		everybody := w.dht.peers
		halves := [2][]peer.ID{everybody[:3], everybody[3:]}
		w.dht.split(halves[:]...)
		p := keepertest.NewProvider(t)
		both := p.Sign(t, keepertest.Offer("both"), 1, time.Now())
		fresher := p.Sign(t, keepertest.Offer("both", keepertest.Priced(7)), 2, time.Now())
		ended := p.Sign(t, keepertest.Offer("ended"), 1, time.Now())
		end := p.Withdraw(t, ended, time.Now())
		left, right := keepertest.Batch(t, keepertest.NewProvider(t), 70, time.Now()), keepertest.Batch(t, keepertest.NewProvider(t), 300, time.Now())
		w.nodes[0].put(t, append(left, both, end)...)
		w.nodes[5].put(t, append(right, fresher, ended)...)
		time.Sleep(time.Minute)
		plan := keepertest.Compile(t, keepertest.Around(100))
		for i, n := range w.nodes {
			require.True(t, n.sync.Settled(plan.Cells(9)), i)
			require.Equal(t, []int{71, 302}[i/3], n.Index.Len())
		}

		w.dht.split(everybody)
		synctest.Wait()
		for _, n := range w.nodes {
			require.False(t, n.sync.Settled(plan.Cells(9)), "the routing table changed")
		}
		time.Sleep(syncGap + syncSoon + time.Second)
		for _, n := range w.nodes {
			require.Equal(t, 371, n.Index.Len())
			got, _ := n.Index.Get(both.Name())
			require.Equal(t, fresher.Digest(), got.Digest())
			_, lives := n.Index.Get(ended.Name())
			require.False(t, lives, "the withdrawal wins")
		}
		time.Sleep(protocol.SyncEvery)
		for _, n := range w.nodes {
			require.True(t, n.sync.Settled(plan.Cells(9)))
		}
	})
}

// In a large network a peer pulls exactly the records of its cells, and a peer that replaces
// another learns them from the remaining keepers.
func TestResponsibilityMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 28, large)
		random := rand.New(rand.NewPCG(2, 2))
		recs := keepertest.Spread(t, 40, random)
		for _, o := range w.nodes[0].Store(t.Context(), recs) {
			require.NoError(t, o.Err)
		}
		time.Sleep(time.Minute)
		for _, n := range w.nodes[22:] {
			n.leave(t)
		}
		w.nodes = w.nodes[:22]
		left := make([]peer.ID, len(w.nodes))
		for i, n := range w.nodes {
			left[i] = n.Self
		}
		w.dht.edit(func() { w.dht.peers = left; w.dht.fire() })
		time.Sleep(syncGap + syncSoon + 30*time.Second) // a round may wait for lost peers
		for _, r := range recs {
			for _, c := range r.Cells() {
				for _, n := range w.keepersOf(c) {
					_, has := n.Index.Get(r.Name())
					require.True(t, has, "%s is not on a keeper of %s", r.Name(), c)
				}
			}
		}
	})
}

// Without news, partners exchange only a root.
func TestIdleRoundIsSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, large)
		recs := keepertest.Spread(t, 500, rand.New(rand.NewPCG(3, 3)))
		for _, n := range w.nodes {
			n.put(t, recs...)
		}
		time.Sleep(2 * time.Minute)
		c := w.nodes[0].counts
		served := c.Operations("serve_sync")
		require.Positive(t, served)
		require.Zero(t, c.Operations("serve_pull"))
		root := digest.New(nil).Root()
		asked := &pb.Request{TimeoutMs: 10_000, Op: &pb.Request_Sync{Sync: &pb.SyncRequest{Whole: true, Sums: root[:]}}}
		told := &pb.Response{Op: &pb.Response_Sync{Sync: &pb.SyncResponse{Whole: true, Same: true}}}
		t.Logf("an idle comparison is %d bytes", proto.Size(asked)+proto.Size(told)+2)
		require.Less(t, proto.Size(asked)+proto.Size(told), 64)
	})
}

// comparisonWith runs one comparison of the first node with a peer that answers with the given
// function.
func comparisonWith(t *testing.T, answer func(*pb.Request) *pb.Response, held ...*records.Record) (*node, error) {
	w := newCluster(t, 2, func(_ int, c *protocol.Config) { c.Limits.Sync = -1 })
	honest, hostile := w.nodes[0], w.nodes[1]
	honest.put(t, held...)
	hostile.corrupt(answer)
	_, err := honest.sync.Compare(t.Context(), hostile.Self, honest.sync.Table())
	return honest, err
}

// A violation of the protocol ends the comparison, and none of its records stay.
func TestHostilePartner(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // start of virtual time
	p := keepertest.NewProvider(t)
	newer := p.Sign(t, keepertest.Offer("known"), 2, now)
	other := p.Sign(t, keepertest.Offer("other"), 1, now)
	database := p.Sign(t, records.Offer{ID: "data", Metadata: records.Metadata{Type: "database"}}, 1, now) // outside the listed cell
	forged := slices.Clone(newer.Envelope())
	forged[len(forged)-1] ^= 1
	cell := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: "global"}
	entry := digest.Append(nil, protocol.EntryOf(newer, p.Id.String()))
	liar := func(step *pb.SyncResponse, envelopes ...[]byte) func(*pb.Request) *pb.Response {
		return func(req *pb.Request) *pb.Response {
			switch op := req.Op.(type) {
			case *pb.Request_Pull:
				return &pb.Response{Op: &pb.Response_Pull{Pull: &pb.PullResponse{Envelopes: envelopes}}}
			case *pb.Request_Sync:
				resp := &pb.SyncResponse{Whole: true}
				switch {
				case len(op.Sync.Cells) > 0:
					resp = step
				case len(op.Sync.Sums) > digest.SumSize:
					resp.Cells = []*pb.SyncCell{{Cell: cell.String(), Sums: make([]byte, digest.SumSize)}}
				}
				return &pb.Response{Op: &pb.Response_Sync{Sync: resp}}
			}
			return &pb.Response{}
		}
	}
	for name, answer := range map[string]func(*pb.Request) *pb.Response{
		"forged":     liar(&pb.SyncResponse{Entries: entry}, forged),
		"elsewhere":  liar(&pb.SyncResponse{Entries: digest.Append(nil, protocol.EntryOf(database, p.Id.String()))}, database.Envelope()),
		"not asked":  liar(&pb.SyncResponse{Entries: entry}, other.Envelope()),
		"too many":   liar(&pb.SyncResponse{Entries: entry}, newer.Envelope(), newer.Envelope()),
		"no entries": liar(&pb.SyncResponse{Entries: entry[1:]}),
		"endless":    liar(&pb.SyncResponse{Next: &pb.SyncPosition{}}),
		"beyond":     liar(&pb.SyncResponse{Next: &pb.SyncPosition{Cell: 7}}),
		"no sum": func(*pb.Request) *pb.Response {
			return &pb.Response{Op: &pb.Response_Sync{Sync: &pb.SyncResponse{Cells: []*pb.SyncCell{{Cell: cell.String()}}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, err := comparisonWith(t, answer)
				require.ErrorIs(t, err, fault.Unauthentic)
				require.Equal(t, 1, n.counts.Distrust()["unauthentic"], n.counts.Distrust())
			})
		})
	}
}

// What may come from a later version is no violation: an unknown form of response, an unknown kind of cell.
func TestPartnerOfALaterVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		resp *pb.Response
		want error
	}{
		"another form":    {&pb.Response{}, fault.Unsupported},
		"a kind of cells": {&pb.Response{Op: &pb.Response_Sync{Sync: &pb.SyncResponse{Cells: []*pb.SyncCell{{Cell: "/later/x"}}}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, err := comparisonWith(t, func(*pb.Request) *pb.Response { return tc.resp })
				require.ErrorIs(t, err, tc.want)
				require.Empty(t, n.counts.Distrust())
			})
		})
	}
}

// Entries without a record are skipped; records that the index refuses are not pulled again.
func TestListedButMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, func(_ int, c *protocol.Config) {
			c.Index = index.New(index.Config{MaxPerProvider: 5})
			c.Limits.Sync = -1
		})
		a, b := w.nodes[0], w.nodes[1]
		p := keepertest.NewProvider(t)
		b.put(t, keepertest.Batch(t, p, 5, time.Now())...)
		a.put(t, p.Sign(t, keepertest.Offer("mine"), 1, time.Now()))
		for range 2 {
			_, err := a.sync.Compare(t.Context(), b.Self, a.sync.Table())
			require.NoError(t, err)
			require.Equal(t, 5, a.Index.Len(), "the provider's quota applies")
			time.Sleep(viewTTL)
		}
		require.Equal(t, 1, b.counts.Operations("serve_pull"))
	})
}

// A peer has peerComparisons under way, the waiting ones included; another peer is not held up by them.
func TestComparisonsOfAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := bare(t, 3, protocol.Limits{})
		leave := k.server.bulk.occupy(t)
		ask := func(id peer.ID) error {
			req := &pb.Request{Op: &pb.Request_Sync{Sync: &pb.SyncRequest{Sums: make([]byte, digest.SumSize)}}}
			return rpc.Restore("", k.server.respond(protocol.Source{Peer: id}, req, nil).GetRefusal())
		}
		answers := make(chan error, peerComparisons+1)
		for range peerComparisons {
			go func() { answers <- ask("a") }()
		}
		go func() { answers <- ask("b") }()
		synctest.Wait()
		require.ErrorIs(t, ask("a"), fault.LimitReached)
		leave()
		for range peerComparisons + 1 {
			require.NoError(t, <-answers)
		}
		require.NoError(t, ask("a"))
	})
}

// BenchmarkSync compares two keepers on real sockets: with equal records, and with an empty index
// against 2,000 records.
func BenchmarkSync(b *testing.B) {
	recs := keepertest.Spread(b, 2000, rand.New(rand.NewPCG(9, 9)))
	pair := func(b *testing.B) [2]*Keeper {
		ks := loopback(b, "/ip4/127.0.0.1/tcp/0")
		for _, r := range recs {
			_, err := ks[1].Index.Put(r, time.Now())
			require.NoError(b, err)
		}
		return ks
	}
	b.Run("idle", func(b *testing.B) {
		ks := pair(b)
		compare := func() {
			if _, err := ks[0].sync.Compare(b.Context(), ks[1].Self, ks[0].sync.Table()); err != nil {
				b.Fatal(err)
			}
		}
		compare()
		for b.Loop() {
			compare()
		}
	})
	b.Run("joiner", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			ks := pair(b)
			b.StartTimer()
			if _, err := ks[0].sync.Compare(b.Context(), ks[1].Self, ks[0].sync.Table()); err != nil || ks[0].Index.Len() != len(recs) {
				b.Fatal(err, ks[0].Index.Len())
			}
		}
	})
}
