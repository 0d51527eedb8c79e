package keeper

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// watched is a peer of a large network that follows a plan and keeps none of its cells.
type watched struct {
	*cluster
	watcher *node
	plan    *query.Plan
	keepers []*node
	resyncs atomic.Int64
}

func newWatched(t *testing.T, edit ...func(*query.Query)) *watched {
	w := &watched{cluster: newCluster(t, 24, func(_ int, c *wire.Config) { c.Limits.Sync = -1 })}
	q := keepertest.Around(0.05)
	q.Price = query.Price{}
	for _, e := range edit {
		e(&q)
	}
	w.plan = keepertest.Compile(t, q)
	cells := w.plan.Cells(coverCells)
	for _, n := range w.nodes {
		if !slices.ContainsFunc(cells, func(c records.CellKey) bool { return slices.Contains(w.keepersOf(c), n) }) {
			w.watcher = n
		}
	}
	if w.watcher == nil {
		t.Fatalf("every peer keeps one of %d cells", len(cells))
	}
	w.keepers = w.keepersOf(berlin(w.plan))
	stop := w.watcher.Watch(t.Context(), w.plan, func() {
		w.resyncs.Add(1)
		_, _ = w.watcher.Query(t.Context(), w.plan)
	})
	t.Cleanup(stop)
	time.Sleep(3 * time.Second)
	return w
}

// berlin returns the plan's cell with the records of the tests.
func berlin(p *query.Plan) records.CellKey {
	cells := p.Cells(coverCells)
	lat, lon := 52.52, 13.405
	for _, c := range cells {
		if b := c.Cell.Box(); b.MinLat <= lat && lat < b.MaxLat && b.MinLon <= lon && lon < b.MaxLon {
			return c
		}
	}
	return cells[0]
}

// store stores a record at the keepers of the cell only: keepers of other cells may send it to the
// watcher.
func (w *watched) store(t *testing.T, r *records.Record) {
	for _, n := range w.keepers {
		if !n.gone {
			n.put(t, r)
		}
	}
	time.Sleep(time.Second)
}

// followed returns the keeper that streams the cell of the records.
func (w *watched) followed(t *testing.T) *node {
	at := slices.IndexFunc(w.keepers, func(n *node) bool {
		return !n.gone && n.server.watches.Served(w.watcher.Self) > 0
	})
	require.GreaterOrEqual(t, at, 0, "no keeper is followed")
	return w.keepers[at]
}

func (w *watched) knows(r *records.Record) bool {
	latest, ok := w.watcher.Index.Latest(r.Name())
	return ok && latest.Digest() == r.Digest()
}

// Changes of a cell reach a watcher that does not keep the cell.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		require.LessOrEqual(t, w.resyncs.Load(), int64(2), "one query serves all the cells")
		p := keepertest.NewProvider(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		w.store(t, r)
		require.True(t, w.knows(r))
		next := p.Sign(t, keepertest.Offer("one", keepertest.Priced(5)), 2, time.Now())
		w.store(t, next)
		require.True(t, w.knows(next))
		tomb := p.Withdraw(t, next, time.Now())
		w.store(t, tomb)
		require.True(t, w.knows(tomb))
		elsewhere := p.Sign(t, keepertest.Offer("two", func(o *records.Offer) { lat := -33.0; o.Location.Latitude = &lat }), 1, time.Now())
		w.store(t, elsewhere)
		require.False(t, w.knows(elsewhere), "outside the cells")
		time.Sleep(10 * time.Minute)
		require.LessOrEqual(t, w.resyncs.Load(), int64(2), "a quiet stream stays open")
		w.followed(t)
	})
}

// A narrow plan receives only relevant changes, including the end of a match.
func TestWatchSendsRelevantChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		most := 2.0
		w := newWatched(t, func(q *query.Query) {
			q.Price = query.Price{MaxPrice: &most, Currency: "USDC", PriceUnit: "per-hour"}
		})
		p := keepertest.NewProvider(t)
		dear := p.Sign(t, keepertest.Offer("dear", keepertest.Priced(9)), 1, time.Now())
		cheap := p.Sign(t, keepertest.Offer("cheap", keepertest.Priced(1)), 1, time.Now())
		w.store(t, dear)
		w.store(t, cheap)
		require.False(t, w.knows(dear))
		require.True(t, w.knows(cheap))
		rises := p.Sign(t, keepertest.Offer("cheap", keepertest.Priced(8)), 2, time.Now())
		w.store(t, rises)
		require.True(t, w.knows(rises))
	})
}

// Another keeper replaces a lost one, and no change in between is lost: neither new records nor
// withdrawals.
func TestWatchOutlivesKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		p := keepertest.NewProvider(t)
		ends := p.Sign(t, keepertest.Offer("ends"), 1, time.Now())
		w.store(t, ends)
		require.True(t, w.knows(ends))
		before := w.resyncs.Load()
		dead := w.followed(t)
		dead.leave(t)
		tomb, fresh := p.Withdraw(t, ends, time.Now()), p.Sign(t, keepertest.Offer("fresh"), 1, time.Now())
		w.store(t, tomb)
		w.store(t, fresh)
		time.Sleep(15 * time.Second)
		require.True(t, w.knows(tomb))
		require.True(t, w.knows(fresh))
		require.Greater(t, w.resyncs.Load(), before, "the watcher must query again")
		require.NotSame(t, dead, w.followed(t))
		later := p.Sign(t, keepertest.Offer("later"), 1, time.Now())
		w.store(t, later)
		require.True(t, w.knows(later))
	})
}

// A broken stream resumes after its cookie, without a query.
func TestWatchResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		before := w.resyncs.Load()
		keeper := w.followed(t)
		keeper.cut()
		p := keepertest.NewProvider(t)
		r := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
		w.store(t, r)
		time.Sleep(2 * time.Second)
		require.True(t, w.knows(r))
		require.Equal(t, before, w.resyncs.Load())
		require.Same(t, keeper, w.followed(t))

		keeper.server.rpc.Close()
		keeper.server.watches = ask.NewWatches(keeper.authority, keeper.splits, keeper.sync.Snapshot) // lost all changes so far
		keeper.server.listen()
		time.Sleep(watchBeat + 3*time.Second)
		require.Greater(t, w.resyncs.Load(), before)
	})
}

// A keeper that violates the protocol is left, and none of its records stay.
func TestHostileWatch(t *testing.T) {
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	p := keepertest.NewProvider(t)
	forged := slices.Clone(p.Sign(t, keepertest.Offer("one"), 1, bubble).Envelope())
	forged[len(forged)-1] ^= 1
	away := p.Sign(t, keepertest.Offer("two", func(o *records.Offer) { lat := -33.0; o.Location.Latitude = &lat }), 1, bubble)
	for name, m := range map[string]*pb.WatchResponse{
		"forged":            {Envelopes: [][]byte{forged}},
		"not watched":       {Envelopes: [][]byte{away.Envelope()}, Cookie: &pb.Cookie{Seq: 1}},
		"another operation": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 2, func(_ int, c *wire.Config) { c.Limits.Sync = -1 })
				a, b := w.nodes[0], w.nodes[1]
				b.corrupt(func(*pb.Request) *pb.Response {
					if m == nil {
						return &pb.Response{Op: &pb.Response_Pull{Pull: new(pb.PullResponse)}}
					}
					return &pb.Response{Op: &pb.Response_Watch{Watch: m}}
				})
				plan := keepertest.Compile(t, keepertest.Around(1))
				w.dht.edit(func() {
					w.dht.clients = []peer.ID{a.Self} // it keeps no cell, and follows the keeper
					w.dht.fire()
				})
				stop := a.Watch(t.Context(), plan, func() {})
				time.Sleep(time.Second)
				stop()
				require.Positive(t, a.counts.Distrust()["unauthentic"])
				require.Zero(t, a.Index.Len())
				require.True(t, a.client.Avoided(b.Self))
			})
		})
	}
}

// A record that moves out of the watched cell is no violation of the protocol, whatever the watcher
// knows of it: the newer version, from another source, an older one, or nothing.
func TestWatchOfAMovingRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		p := keepertest.NewProvider(t)
		away := func(o *records.Offer) { lat := -33.0; o.Location.Latitude = &lat }
		for i, known := range []uint64{0, 1, 2} {
			id := fmt.Sprint("moving", i)
			versions := []*records.Record{p.Sign(t, keepertest.Offer(id), 1, time.Now()), p.Sign(t, keepertest.Offer(id, away), 2, time.Now())}
			w.store(t, versions[0])
			switch known {
			case 0:
				w.watcher.Index.Remove(versions[0].Name())
			case 2:
				w.watcher.put(t, versions[1])
			}
			w.store(t, versions[1])
			require.Equal(t, known > 0, w.knows(versions[1]))
			require.Zero(t, w.watcher.counts.Distrust()["unauthentic"])
		}
	})
}

func TestWatchLimits(t *testing.T) {
	w := wire.PeerLimit{Total: maxServedWatches, PerPeer: maxPeerWatches}
	for range maxPeerWatches {
		require.True(t, w.Enter("a"))
	}
	require.False(t, w.Enter("a"))
	require.True(t, w.Enter("b"))
	w.Leave("a")
	require.True(t, w.Enter("a"))
}
