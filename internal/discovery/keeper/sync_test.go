package keeper

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keeper/digest"
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

// spread returns n records of many providers across Europe.
func spread(t testing.TB, n int, random *rand.Rand) []*records.Record {
	recs := make([]*records.Record, n)
	var p provider
	for i := range recs {
		if i%50 == 0 {
			p = newProvider(t)
		}
		lat, lon := 36+20*random.Float64(), -10+40*random.Float64()
		recs[i] = p.sign(t, offer(fmt.Sprintf("s%04d", i), priced(random.Float64()), func(o *records.Offer) {
			o.Location.Latitude, o.Location.Longitude = &lat, &lon
		}), 1, time.Now())
	}
	return recs
}

// large raises the limit of an index.
func large(_ int, c *Config) { c.Index = index.New(index.Config{MaxPerProvider: 10_000}) }

// A new peer in a small network has all records after its first round, withdrawals included, and
// soon answers alone; later records reach it directly.
func TestJoinerIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4, large)
		recs := spread(t, 2000, rand.New(rand.NewPCG(1, 1)))
		p := newProvider(t)
		gone := p.sign(t, offer("gone"), 1, time.Now())
		tomb := p.withdraw(t, gone, time.Now())
		joined := w.nodes[3]
		for _, n := range w.nodes[:3] {
			n.put(t, recs...)
			n.put(t, tomb)
		}
		joined.put(t, gone) // absent at the withdrawal
		plan := compile(t, around(100))
		require.False(t, joined.sync.settled(plan.Cells(9)))

		start, first := time.Now(), joined.sync.last.Load()
		for joined.sync.last.Load() == first {
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("the first round ended %s after the start", time.Since(start))
		require.Equal(t, len(recs), joined.Index.Len())
		latest, _ := joined.Index.Latest(gone.Name())
		require.True(t, latest.Withdrawn())

		time.Sleep(wholeTTL + 5*time.Second)
		require.True(t, joined.sync.settled(plan.Cells(9)))
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
		p := newProvider(t)
		both := p.sign(t, offer("both"), 1, time.Now())
		fresher := p.sign(t, offer("both", priced(7)), 2, time.Now())
		ended := p.sign(t, offer("ended"), 1, time.Now())
		end := p.withdraw(t, ended, time.Now())
		left, right := batch(t, newProvider(t), 70, time.Now()), batch(t, newProvider(t), 300, time.Now())
		w.nodes[0].put(t, append(left, both, end)...)
		w.nodes[5].put(t, append(right, fresher, ended)...)
		time.Sleep(time.Minute)
		plan := compile(t, around(100))
		for i, n := range w.nodes {
			require.True(t, n.sync.settled(plan.Cells(9)), i)
			require.Equal(t, []int{71, 302}[i/3], n.Index.Len())
		}

		w.dht.split(everybody)
		synctest.Wait()
		for _, n := range w.nodes {
			require.False(t, n.sync.settled(plan.Cells(9)), "the routing table changed")
		}
		time.Sleep(syncGap + syncSoon + time.Second)
		for _, n := range w.nodes {
			require.Equal(t, 371, n.Index.Len())
			got, _ := n.Index.Get(both.Name())
			require.Equal(t, fresher.Digest(), got.Digest())
			_, lives := n.Index.Get(ended.Name())
			require.False(t, lives, "the withdrawal wins")
		}
		time.Sleep(syncEvery)
		for _, n := range w.nodes {
			require.True(t, n.sync.settled(plan.Cells(9)))
		}
	})
}

// In a large network a peer pulls exactly the records of its cells, and a peer that replaces
// another learns them from the remaining keepers.
func TestResponsibilityMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 28, large)
		random := rand.New(rand.NewPCG(2, 2))
		recs := spread(t, 40, random)
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
		recs := spread(t, 500, rand.New(rand.NewPCG(3, 3)))
		for _, n := range w.nodes {
			n.put(t, recs...)
		}
		time.Sleep(2 * time.Minute)
		c := w.nodes[0].counts
		served := c.of(c.operations, "serve_sync")
		require.Positive(t, served)
		require.Zero(t, c.of(c.operations, "serve_pull"))
		y := w.nodes[0].sync
		mine := y.viewOf(y.table()).sharedWith(w.nodes[1].Self, true)
		require.Equal(t, 1, mine.set.Len(), "one type, one cell")
		root := mine.set.Root()
		asked := &pb.Request{TimeoutMs: 10_000, Op: &pb.Request_Sync{Sync: &pb.SyncRequest{Whole: true, Sums: root[:]}}}
		told := &pb.Response{Op: &pb.Response_Sync{Sync: &pb.SyncResponse{Whole: true, Same: true}}}
		t.Logf("an idle comparison is %d bytes", proto.Size(asked)+proto.Size(told)+2)
		require.Less(t, proto.Size(asked)+proto.Size(told), 64)
	})
}

// comparisonWith runs one comparison of the first node with a peer that answers with the given
// function.
func comparisonWith(t *testing.T, answer func(*pb.Request) *pb.Response, held ...*records.Record) (*node, error) {
	w := newCluster(t, 2, func(_ int, c *Config) { c.Limits.Sync = -1 })
	honest, hostile := w.nodes[0], w.nodes[1]
	honest.put(t, held...)
	hostile.corrupt(answer)
	_, err := honest.sync.compare(t.Context(), hostile.Self, honest.sync.table())
	return honest, err
}

// A violation of the protocol ends the comparison, and none of its records stay.
func TestHostilePartner(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // start of virtual time
	p := newProvider(t)
	newer := p.sign(t, offer("known"), 2, now)
	other := p.sign(t, offer("other"), 1, now)
	database := p.sign(t, records.Offer{ID: "data", Metadata: records.Metadata{Type: "database"}}, 1, now) // outside the listed cell
	forged := slices.Clone(newer.Envelope())
	forged[len(forged)-1] ^= 1
	cell := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: "global"}
	entry := digest.Append(nil, digest.EntryOf(newer, p.id.String()))
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
		"elsewhere":  liar(&pb.SyncResponse{Entries: digest.Append(nil, digest.EntryOf(database, p.id.String()))}, database.Envelope()),
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
				require.Equal(t, 1, n.counts.of(n.counts.distrusted, "unauthentic"), n.counts.distrusted)
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
				require.Empty(t, n.counts.distrusted)
			})
		})
	}
}

// Entries without a record are skipped; records that the index refuses are not pulled again.
func TestListedButMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, func(_ int, c *Config) {
			c.Index = index.New(index.Config{MaxPerProvider: 5})
			c.Limits.Sync = -1
		})
		a, b := w.nodes[0], w.nodes[1]
		p := newProvider(t)
		b.put(t, batch(t, p, 5, time.Now())...)
		a.put(t, p.sign(t, offer("mine"), 1, time.Now()))
		for range 2 {
			_, err := a.sync.compare(t.Context(), b.Self, a.sync.table())
			require.NoError(t, err)
			require.Equal(t, 5, a.Index.Len(), "the provider's quota applies")
			time.Sleep(viewTTL)
		}
		require.Equal(t, 1, b.counts.of(b.counts.operations, "serve_pull"))
	})
}

// A peer has peerComparisons under way, the waiting ones included; another peer is not held up by them.
func TestComparisonsOfAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := bare(t, 3, Limits{})
		leave := k.server.bulk.occupy(t)
		ask := func(id peer.ID) error {
			req := &pb.Request{Op: &pb.Request_Sync{Sync: &pb.SyncRequest{Sums: make([]byte, digest.SumSize)}}}
			return rpc.Restore("", k.server.respond(source{peer: id}, req, nil).GetRefusal())
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

// The radius of a key equals the distance of its farthest keeper.
func TestRadius(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		everybody := peersOf(1 + random.IntN(60))
		self := everybody[0]
		n := newPeerTable(self, everybody, false)
		key := fmt.Sprint(random.Int64())
		closest := nearest(key, everybody, Replicas)
		r, kept := n.radiusOf(key)
		require.Equal(t, slices.Contains(closest, self), kept)
		if !kept {
			continue
		}
		for _, id := range everybody {
			require.Equal(t, slices.Contains(closest, id), r.covers(sha256.Sum256([]byte(id))))
		}
		require.ElementsMatch(t, closest, append(n.keepers(&r), self))
	}
}

// unsplit is a peer without split cells.
type unsplit struct{}

func (unsplit) cellsOf(r *records.Record) []records.CellKey     { return r.Cells() }
func (unsplit) sampleOf(records.CellKey) map[digest.ID]struct{} { return nil }
func (unsplit) anyDeep() bool                                   { return false }

// Cells inside other cells are compared through the outer cells, unless these are split.
func TestSharedCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := index.New(index.Config{MaxPerProvider: 10_000})
		for _, r := range spread(t, 60, rand.New(rand.NewPCG(6, 6))) {
			_, err := x.Put(r, time.Now())
			require.NoError(t, err)
		}
		near := newPeerTable("self", []peer.ID{"a", "b"}, false)
		small := newView(x, near, time.Now(), unsplit{}, nil)
		require.Len(t, small.sharedWith("a", false).cells, 3, "the global cell, and the cells of two providers")
		require.Same(t, small.sharedWith("a", false), small.sharedWith("a", false))
		split := &sampling{samples: make(map[records.CellKey]map[digest.ID]struct{})}
		for c := range small.cells().cells {
			if c.Cell == "global" && !c.OfProvider() {
				split.samples[c] = map[digest.ID]struct{}{}
			}
		}
		rest := newView(x, near, time.Now(), split, small).sharedWith("a", false)
		require.Greater(t, len(rest.cells), 2)
		for _, h := range rest.cells {
			require.True(t, h.cell.OfProvider() || h.cell.Cell == "global" || h.cell.Cell.Len() == 2 && h.cell.Subtype == records.AnySubtype, h.key)
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(small.types())), []records.CellKey{{Type: "compute", Subtype: "_", Cell: "global"}})
	})
}

// A view of a quiet keeper serves until a record expires; with split cells, which change without the index, a minute.
func TestQuietViewServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := index.New(index.Config{})
		first := time.Now().Add(24 * time.Hour)
		for _, r := range spread(t, 10, rand.New(rand.NewPCG(8, 8))) {
			_, err := x.Put(r, time.Now())
			require.NoError(t, err)
			if r.Expires().Before(first) {
				first = r.Expires()
			}
		}
		v := newView(x, newPeerTable("self", nil, true), time.Now(), unsplit{}, nil)
		now, last := v.made, first.Add(-time.Second)
		require.Greater(t, last.Sub(now), viewMaxTTL)
		require.True(t, v.valid(x.Seq(), last, false))
		require.False(t, v.valid(x.Seq(), first, false), "a record expired")
		require.False(t, v.valid(x.Seq()+1, now.Add(viewTTL), false), "a record changed")
		require.True(t, v.valid(x.Seq()+1, now.Add(viewTTL-1), false))
		require.True(t, v.valid(x.Seq(), now.Add(viewMaxTTL-1), true))
		require.False(t, v.valid(x.Seq(), now.Add(viewMaxTTL), true), "split cells")
		require.False(t, v.valid(x.Seq(), now.Add(-viewMaxTTL), false), "the clock was set back")
	})
}

// BenchmarkView copies an index as a round does after a change: of the routing table, or of one record.
func BenchmarkView(b *testing.B) {
	x := index.New(index.Config{MaxPerProvider: 100_000})
	recs := spread(b, 10_000, rand.New(rand.NewPCG(7, 7)))
	for _, r := range recs[1:] {
		_, _ = x.Put(r, time.Now())
	}
	for name, whole := range map[string]bool{"whole": true, "cells": false} {
		b.Run(name, func(b *testing.B) {
			near := newPeerTable("self", peersOf(40), whole)
			for b.Loop() {
				newView(x, near, time.Now(), unsplit{}, nil).sharedWith("other", whole)
			}
		})
	}
	b.Run("next", func(b *testing.B) {
		near := newPeerTable("self", peersOf(40), false)
		first := newView(x, near, time.Now(), unsplit{}, nil)
		first.sharedWith("other", false)
		_, _ = x.Put(recs[0], time.Now())
		for b.Loop() {
			newView(x, near, time.Now(), unsplit{}, first).sharedWith("other", false)
		}
	})
}

// BenchmarkSync compares two keepers on real sockets: with equal records, and with an empty index
// against 2,000 records.
func BenchmarkSync(b *testing.B) {
	recs := spread(b, 2000, rand.New(rand.NewPCG(9, 9)))
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
			if _, err := ks[0].sync.compare(b.Context(), ks[1].Self, ks[0].sync.table()); err != nil {
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
			if _, err := ks[0].sync.compare(b.Context(), ks[1].Self, ks[0].sync.table()); err != nil || ks[0].Index.Len() != len(recs) {
				b.Fatal(err, ks[0].Index.Len())
			}
		}
	})
}
