package keeper

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/compare"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	roundTrip = 50 * time.Millisecond
	seekEvery = 5 * time.Minute // of the room ask
)

// copied is a large network with more records than one cell holds, some of them without a place. Peers with copies can join it.
type copied struct {
	*lightCluster
	recs       []*records.Record
	old        map[records.Name]*records.Record // first versions of the cheapest records, which all have another one now
	asker      *lightNode
	volunteers []*lightNode
	owners     []keepertest.Provider // their keys
}

func newCopied(t *testing.T, n int, places spread) *copied {
	w := &copied{lightCluster: newLightCluster(t, 40), recs: world(t, n-55, places), old: make(map[records.Name]*records.Record)}
	for range 5 {
		w.recs = append(w.recs, keepertest.NewProvider(t).Sign(t, keepertest.Offer("nowhere", keepertest.Nowhere), 1, time.Now()))
	}
	w.store(w.recs...)
	owner, random := keepertest.NewProvider(t), rand.New(rand.NewPCG(31, 32))
	for version := range uint64(2) {
		for i := range 50 {
			o := keepertest.Offer(fmt.Sprint("cheap", i), keepertest.Priced(0.001+float64(version)/10_000))
			*o.Location.Latitude, *o.Location.Longitude = places(random)
			r := owner.Sign(t, o, 1+version, time.Now())
			if w.store(r); version == 0 {
				w.old[r.Name()] = r
			} else {
				w.recs = append(w.recs, r)
			}
		}
		random = rand.New(rand.NewPCG(31, 32))
	}
	time.Sleep(10 * time.Minute)
	w.asker = w.nodes[7]
	w.hosts.lose(func(_, _ peer.ID) bool { time.Sleep(roundTrip / 2); return false })
	return w
}

func (w *copied) store(recs ...*records.Record) {
	for batch := range slices.Chunk(recs, 1000) {
		for _, o := range w.nodes[0].Store(w.t.Context(), batch) {
			require.NoError(w.t, o.Err)
		}
	}
}

// volunteer adds a peer that offers a copy.
func (w *copied) volunteer() *lightNode {
	owner := keepertest.NewProvider(w.t)
	w.keep = []string{"compute"}
	n := w.join(owner.Id, wire.Limits{Sync: -1})
	w.volunteers, w.owners = append(w.volunteers, n), append(w.owners, owner)
	time.Sleep(25 * time.Minute) // all know it
	w.store(owner.Sign(w.t, compare.Offered("compute"), 1, time.Now()))
	return n
}

// meet makes copies whole and waits until the asker knows who offers some.
func (w *copied) meet() {
	w.round()
	w.ask(w.asker, keepertest.Compile(w.t, query.Query{Limit: 1}))
	time.Sleep(5 * time.Second)
	w.round()
}

// round has the volunteers compare, as they do every 30 s.
func (w *copied) round() {
	for _, n := range w.volunteers {
		n.copies.Round(w.t.Context(), "compute")
		require.Empty(w.t, n.copies.Copy("compute").Lacks)
	}
}

func (w *copied) ask(n *lightNode, p *query.Plan) (found query.Found, requests int, took time.Duration) {
	n.counts.Forget()
	began := time.Now()
	found, err := n.Query(w.t.Context(), p)
	require.NoError(w.t, err)
	return found, n.counts.Operations("ask"), time.Since(began)
}

func (w *copied) exact(p *query.Plan, found query.Found) bool {
	return slices.Equal(best(p, w.recs), keepertest.NamesOf(found.Records)[:min(p.Limit(), len(found.Records))])
}

// A peer with a copy answers each question about the whole world in one round trip. It also answers itself.
func TestCopyAnswersInOneRoundTrip(t *testing.T) {
	atSize(t)
	for name, places := range map[string]spread{"uniform": uniform, "cities": atCities()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCopied(t, scaled(t, 2200), places)
				defer w.close()
				plans := worldQueries(t)
				names := slices.Sorted(maps.Keys(plans))
				type figure struct {
					requests int
					took     time.Duration
				}
				without := make(map[string]figure)
				for _, name := range names {
					found, requests, took := w.ask(w.asker, plans[name])
					require.False(t, found.Copy)
					require.True(t, w.exact(plans[name], found), name)
					without[name] = figure{requests, took.Round(time.Millisecond)}
				}
				volunteer := w.volunteer()
				w.meet()
				volunteer.counts.Forget()
				began := time.Now()
				w.round()
				t.Logf("%d records, a round without news: %d requests in %s", len(w.recs),
					volunteer.counts.Operations("ask")+volunteer.counts.Operations("copy")-1, time.Since(began).Round(time.Millisecond))
				for _, name := range names {
					found, requests, took := w.ask(w.asker, plans[name])
					t.Logf("%d records, %-24s %3d requests in %5s; with a copy %2d in %4s", len(w.recs), name,
						without[name].requests, without[name].took, requests, took)
					require.True(t, w.exact(plans[name], found), name)
					require.True(t, found.Complete, "%s: %s", name, found.Reason)
					require.True(t, found.Copy, "%s: %s", name, found.Notes)
					require.LessOrEqual(t, requests, 9)
					require.Equal(t, roundTrip, took)

					found, _, took = w.ask(volunteer, plans[name])
					require.True(t, w.exact(plans[name], found), name)
					require.True(t, found.Complete && found.Copy, "%s: %s", name, found.Reason)
					require.LessOrEqual(t, took, roundTrip)
				}
				w.requireTrust()
			})
		})
	}
}

// Whoever lies about his copy is found out by what keepers hold, and not asked again for a while. Beside an honest copy a liar delays
// nothing.
func TestLiarsAmongCopies(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newCopied(t, 2200, uniform)
		defer w.close()
		liar := w.volunteer()
		w.meet()
		each := func(resp *pb.QueryResponse, change func(r *records.Record) []byte) {
			var sent [][]byte
			for _, e := range resp.Envelopes {
				r, err := w.verifier.Open(e, time.Now())
				require.NoError(t, err)
				if e = change(r); e != nil {
					sent = append(sent, e)
				}
			}
			resp.Envelopes = sent
		}
		lies := map[string]func(*pb.QueryResponse){
			"withholds a tenth": func(resp *pb.QueryResponse) {
				each(resp, func(r *records.Record) []byte {
					if cell.Rank(r.Name())%10 == 0 {
						return nil
					}
					return r.Envelope()
				})
				resp.Withheld = false
			},
			"old records": func(resp *pb.QueryResponse) {
				each(resp, func(r *records.Record) []byte { return cmp.Or(w.old[r.Name()], r).Envelope() })
			},
			"more than there are":  func(resp *pb.QueryResponse) { resp.Total *= 3 },
			"fewer than there are": func(resp *pb.QueryResponse) { resp.Total, resp.TotalAtLeast = 10, false },
			"silence":              nil,
		}
		plan := keepertest.Compile(t, query.Query{Limit: 300, Sort: query.SortPrice, Explain: true})
		for _, name := range slices.Sorted(maps.Keys(lies)) {
			time.Sleep(11 * time.Minute) // nobody is avoided any more
			w.meet()
			found, _, _ := w.ask(w.asker, plan)
			require.True(t, found.Copy, found.Notes)

			liar.lie(func(resp *pb.Response) {
				switch q := resp.GetQuery(); {
				case q == nil:
				case lies[name] == nil:
					time.Sleep(time.Minute)
				default:
					lies[name](q)
				}
			})
			time.Sleep(2 * idleFor) // earlier streams expire
			w.round()
			liar.counts.Forget()
			for range 3 {
				found, _, _ = w.ask(w.asker, plan)
				require.False(t, found.Copy, "%s: %s", name, found.Notes)
				require.True(t, w.exact(plan, found), name)
				require.True(t, found.Complete, "%s: %s", name, found.Reason)
			}
			liar.host.SetStreamHandler(wire.Protocol("test"), liar.server.rpc.Serve)
		}
	})
}

// An honest copy beside a lying one answers at once: what the liar leaves out, the other lists.
func TestHonestCopyBesideLiar(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newCopied(t, 2200, uniform)
		defer w.close()
		liar, honest := w.volunteer(), w.volunteer()
		w.meet()
		plans := worldQueries(t)
		hidden := func(r *records.Record) bool {
			return r.Name().Provider != w.owners[0].Id && cell.Rank(r.Name())%10 == 0
		}
		liar.lie(func(resp *pb.Response) {
			q := resp.GetQuery()
			if q == nil {
				return
			}
			q.Envelopes = slices.DeleteFunc(q.Envelopes, func(e []byte) bool {
				r, err := w.verifier.Open(e, time.Now())
				require.NoError(t, err)
				return hidden(r)
			})
			q.Withheld = false
		})
		time.Sleep(2 * idleFor) // earlier streams expire
		for _, name := range slices.Sorted(maps.Keys(plans)) {
			w.round()
			found, requests, took := w.ask(w.asker, plans[name])
			require.True(t, w.exact(plans[name], found), name)
			require.True(t, found.Complete && found.Copy, "%s: %s %s", name, found.Reason, found.Notes)
			require.LessOrEqual(t, took, 4*roundTrip, "the liar lies as a keeper too")
			t.Logf("%-24s %d requests, %s", name, requests, took)
			time.Sleep(15 * time.Second)
		}
		require.Positive(t, honest.counts.Operations("serve_query"))
	})
}

// Nobody believes in a copy before it is whole, nor when its peer has no room, nor after its last comparison became old. New records reach it
// with the next round, and so do withdrawals.
func TestCopyIsWholeOrSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCopied(t, 2200, uniform)
		defer w.close()
		n := w.volunteer()
		plan := keepertest.Compile(t, query.Query{Limit: 100, Sort: query.SortPrice, Explain: true})
		used := func() bool {
			w.ask(w.asker, keepertest.Compile(t, query.Query{Limit: 1}))
			time.Sleep(5 * time.Second)
			found, _, _ := w.ask(w.asker, plan)
			require.True(t, w.exact(plan, found))
			require.True(t, found.Complete, found.Reason)
			require.NotContains(t, w.asker.counts.Distrust(), "unauthentic")
			return found.Copy
		}
		require.Contains(t, n.copies.Copy("compute").Lacks, "has not compared all cells yet")
		require.Contains(t, n.copies.Copy("storage").Lacks, "keeps no copy of storage")
		require.False(t, used())

		time.Sleep(seekEvery)
		w.round()
		require.True(t, used())
		since := n.copies.Copy("compute").Since
		require.NotZero(t, since)

		owner := keepertest.NewProvider(t)
		r := owner.Sign(t, keepertest.Offer("new", keepertest.Priced(0.0001)), 1, time.Now())
		w.store(r)
		w.recs = append(w.recs, r)
		n.Index.Remove(r.Name()) // it keeps some of the cells
		require.False(t, used(), "it lacks what the keepers have")
		time.Sleep(seekEvery + 10*time.Minute)
		w.round()
		require.True(t, used())
		gone := owner.Withdraw(t, r, time.Now())
		w.store(gone)
		w.recs = w.recs[:len(w.recs)-1]
		w.round()
		require.True(t, used())
		_, known := n.Index.Get(r.Name())
		require.False(t, known)

		time.Sleep(2*time.Minute + time.Second)
		require.Contains(t, n.copies.Copy("compute").Lacks, "last compared all cells 2m")
		require.False(t, used())
		require.Zero(t, n.copies.Copies()[0].Since)
	})
}

// A copy without room is no copy.
func TestCopyWithoutRoom(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		w := newCopied(t, 2200, uniform)
		defer w.close()
		w.room = 1 << 20
		n := w.volunteer()
		n.copies.Round(t.Context(), "compute")
		require.Contains(t, n.copies.Copy("compute").Lacks, "its index is full")
	})
}
