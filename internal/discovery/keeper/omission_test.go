package keeper

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/evidence"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// signedCluster is a network whose peers sign what they say, and offer something.
type signedCluster struct {
	*lightCluster
	random *rand.Rand // not for the peers
}

func newSignedCluster(t testing.TB, n int, limits wire.Limits, seed uint64) *signedCluster {
	w := newLimitedCluster(t, 0, limits)
	var mu sync.Mutex // guards drawn
	drawn := rand.New(rand.NewPCG(seed, 2))
	w.draw = func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return drawn.IntN(n)
	}
	w.keys = make(map[peer.ID]crypto.PrivKey)
	s := &signedCluster{lightCluster: w, random: rand.New(rand.NewPCG(seed, 1))}
	for range n {
		s.joinOne(limits)
	}
	return s
}

func (w *signedCluster) joinOne(limits wire.Limits) *lightNode {
	p := keepertest.NewProvider(w.t)
	w.keys[p.Id] = p.Key
	return w.join(p.Id, limits)
}

// offer signs and stores a version of an offer of a node at some place.
func (w *signedCluster) offer(n *lightNode, id string, sequence uint64, ttl time.Duration) *records.Record {
	r, err := records.Sign("test", w.keys[n.Self], keepertest.Offer(id, func(o *records.Offer) {
		lat, lon := 140*w.random.Float64()-70, 360*w.random.Float64()-180
		o.Location = &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE"}
	}), records.Stamp{Sequence: sequence, Issued: n.Now(), Expires: n.Now().Add(ttl)})
	require.NoError(w.t, err)
	_, _ = n.Index.Put(r, n.Now()) // there may be no room
	n.Store(w.t.Context(), []*records.Record{r})
	return r
}

// hide makes a node hide whatever its index loses, from its next receipt on.
func (w *signedCluster) hide(n *lightNode) {
	n.Signer = evidence.NewSigner("test", w.keys[n.Self], w.random.Uint64(), func() uint64 { return 0 })
}

// TestHidingKeepersAreShown: two keepers of a cell hide a record that they took. Within two hours both are shown to hide it, to its provider
// and to the other keepers of the cell.
func TestHidingKeepersAreShown(t *testing.T) {
	trials := number(t, "BLACKHOLE_KEEPER_EPOCHS", 60)
	if testing.Short() {
		trials = 25
	}
	synctest.Test(t, func(t *testing.T) {
		w := newSignedCluster(t, 40, wire.Limits{Sync: -1}, 5)
		defer w.close()
		shown, told, others := 0, 0, 0
		for trial := range trials {
			synctest.Wait()
			provider := w.nodes[w.random.IntN(len(w.nodes))]
			for _, n := range w.nodes {
				w.hide(n)
			}
			r := w.offer(provider, fmt.Sprintf("s%d", trial), 1, 24*time.Hour)
			cells := r.Cells()
			c := cells[w.random.IntN(len(cells))]
			keepers := slices.DeleteFunc(w.keepersOf(c), func(n *lightNode) bool { return n == provider })
			w.random.Shuffle(len(keepers), func(i, j int) { keepers[i], keepers[j] = keepers[j], keepers[i] })
			liars, honest := keepers[:2], keepers[2:]
			for _, n := range liars {
				require.True(t, n.Index.Forget(r))
			}
			found := func() bool {
				return provider.omissions.Known(liars[0].Self) && provider.omissions.Known(liars[1].Self)
			}
			for range 120 {
				if found() {
					break
				}
				time.Sleep(time.Minute)
				synctest.Wait()
			}
			if found() {
				shown++
			}
			for _, n := range w.nodes {
				for _, liar := range liars {
					if slices.Contains(honest, n) {
						others++
						if n.omissions.Known(liar.Self) && n.client.Avoided(liar.Self) {
							told++
						}
					}
				}
				for _, other := range w.nodes {
					require.False(t, !slices.Contains(liars, other) && n.omissions.Known(other.Self), "an honest keeper is accused")
				}
			}
			require.True(t, provider.Index.Remove(r.Name()))
			time.Sleep(2 * time.Hour)
		}
		t.Logf("shown %d of %d, told to %d of %d", shown, trials, told, others)
		require.GreaterOrEqual(t, float64(shown), 0.99*float64(trials))
	})
}

// TestHonestKeepersHideNothing: while peers join, leave and restart, records move, end and find no room, and clocks differ, nothing that a
// keeper signs shows that it hides a record.
func TestHonestKeepersHideNothing(t *testing.T) {
	epochs := number(t, "BLACKHOLE_KEEPER_EPOCHS", 100)
	if testing.Short() {
		epochs = 60
	}
	synctest.Test(t, func(t *testing.T) {
		limits := wire.Limits{}
		w := newSignedCluster(t, 24, limits, 7)
		defer func() { w.close() }()
		w.room = 60_000 // of those that join or restart
		apart := func(id peer.ID) time.Duration { return time.Duration(id[len(id)-1]%50)*time.Second - 25*time.Second }
		w.now = func(id peer.ID) time.Time { return time.Now().Add(apart(id)) }
		var live []*records.Record
		sequence, full, omitted := uint64(0), 0, 0
		for epoch := range epochs {
			n := w.nodes[w.random.IntN(len(w.nodes))]
			switch k := w.random.IntN(20); {
			case k < 8 || len(live) < 30:
				sequence++
				live = append(live, w.offer(n, fmt.Sprintf("s%d", w.random.IntN(4)), sequence, 20*time.Minute)) // so that there is room in the long run
			case k < 11: // withdraw
				r := live[w.random.IntN(len(live))]
				if owner := w.node(r.Name().Provider); owner != nil {
					sequence++
					tomb, err := records.Tombstone(w.keys[owner.Self], r, records.Stamp{Sequence: sequence, Issued: owner.Now(), Expires: owner.Now().Add(time.Hour)})
					require.NoError(t, err)
					_, _ = owner.Index.Put(tomb, owner.Now())
					owner.Store(t.Context(), []*records.Record{tomb})
				}
			case k < 13: // restart with an empty memory
				require.NoError(t, n.Close())
				w.nodes[slices.Index(w.nodes, n)] = w.start(n.host, limits)
			case k < 15 && len(w.nodes) > 18: // leave
				require.NoError(t, n.Close())
				w.hosts.Delete(n.Self)
				w.dht.edit(func() {
					w.dht.peers = slices.DeleteFunc(w.dht.peers, func(id peer.ID) bool { return id == n.Self })
					w.dht.fire()
				})
				w.nodes = slices.DeleteFunc(w.nodes, func(o *lightNode) bool { return o == n })
			case k < 17 && len(w.nodes) < 32: // join
				w.joinOne(limits)
			case k < 18: // a keeper loses records as no keeper of theirs
				for _, r := range n.Index.OfProvider(live[w.random.IntN(len(live))].Name().Provider) {
					n.Index.Forget(r)
				}
			}
			time.Sleep(time.Duration(w.random.IntN(16)) * time.Second)
			live = live[max(0, len(live)-60):]
			for range 4 {
				r := live[w.random.IntN(len(live))]
				owner := w.node(r.Name().Provider)
				if owner == nil {
					continue
				}
				cell, held := owner.Receipts(r, wire.MaxHeld)
				c, err := records.ParseCellKey(cell)
				if err != nil {
					continue
				}
				asker := w.nodes[w.random.IntN(len(w.nodes))]
				for _, h := range held {
					if peer.ID(h.Keeper) == asker.Self {
						continue
					}
					req, resp, err := asker.Probe(t.Context(), peer.ID(h.Keeper), r, c)
					if err != nil {
						continue
					}
					full++
					x := complete(t, h, r, req, resp)
					if o, err := evidence.Open("test", x, w.verifier, asker.Now()); err == nil {
						newer, _ := w.node(o.Keeper).Index.Latest(r.Name())
						require.True(t, o.Refuted(newer), "epoch %d: an honest keeper is accused of hiding %s", epoch, r.Name())
						omitted++
					}
				}
			}
			for _, n := range w.nodes {
				for _, other := range w.nodes {
					require.False(t, n.omissions.Known(other.Self), "epoch %d: an honest keeper is accused", epoch)
				}
			}
		}
		t.Logf("%d answers in %d epochs; %d without the record, all with a newer version", full, epochs, omitted)
		require.Greater(t, full, epochs)
		w.requireTrust()
	})
}

func complete(t testing.TB, h *pb.Omission, r *records.Record, req *pb.QueryRequest, resp *pb.QueryResponse) *pb.Omission {
	m, err := evidence.Complete(h, r.Envelope(), req, resp.GetSigned())
	require.NoError(t, err)
	return m
}

// TestProviderCannotFrame: a provider stores a newer version elsewhere, which ends at once, and shows the answer without the older one. The
// keeper shows the newer version to whoever hears it, and nobody believes the provider.
func TestProviderCannotFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSignedCluster(t, 5, wire.Limits{Sync: -1}, 9)
		defer w.close()
		provider, keeper, judge := w.nodes[0], w.nodes[1], w.nodes[2]
		r := w.offer(provider, "s", 1, 24*time.Hour)
		cell, held := provider.Receipts(r, wire.MaxHeld)
		at := slices.IndexFunc(held, func(h *pb.Omission) bool { return peer.ID(h.Keeper) == keeper.Self })
		c, err := records.ParseCellKey(cell)
		require.NoError(t, err)
		o := keepertest.Offer("s", func(o *records.Offer) {
			o.Metadata.Type, o.Capabilities, o.Pricing = "other", nil, nil
		})
		later, err := records.Sign("test", w.keys[provider.Self], o, records.Stamp{Sequence: 2, Issued: time.Now(), Expires: time.Now().Add(time.Second)})
		require.NoError(t, err)
		_, err = keeper.Index.Put(later, time.Now())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		keeper.Index.Expire(time.Now())
		req, resp, err := judge.Probe(t.Context(), keeper.Self, r, c)
		require.NoError(t, err)
		m := complete(t, held[at], r, req, resp)
		x, err := evidence.Open("test", m, w.verifier, time.Now())
		require.NoError(t, err, "the answer alone proves it")
		require.True(t, x.Refuted(later))
		_, _, err = provider.client.Call(t.Context(), judge.Self, &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Omission: m}}})
		require.NoError(t, err)
		require.False(t, judge.omissions.Known(keeper.Self))
		require.Empty(t, judge.counts.Distrust())
	})
}

// TestAuditsAreFew: nobody has a peer ask ten keepers with each of many requests. Who asks a peer about itself is not refused.
func TestAuditsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSignedCluster(t, 5, wire.Limits{Sync: -1}, 13)
		defer w.close()
		provider, judge := w.nodes[0], w.nodes[2]
		r := w.offer(provider, "s", 1, 24*time.Hour)
		cell, held := provider.Receipts(r, wire.MaxHeld)
		held[0].Envelope = r.Envelope()
		asked := func(from netip.Prefix) (served int) {
			for range 100 {
				_, err := judge.Serve(t.Context(), wire.Source{Peer: provider.Self, Prefix: from}, &pb.FindingsRequest{Audit: &pb.Audit{Cell: cell, Held: held}})
				if err == nil {
					served++
				} else {
					require.Equal(t, fault.LimitReached, fault.KindOf(err))
				}
			}
			return served
		}
		require.LessOrEqual(t, asked(netip.MustParsePrefix("198.51.100.0/24")), 60)
		require.NotZero(t, asked(netip.MustParsePrefix("203.0.113.0/24")), "others have a share of their own")
	})
}

// TestKeeperUnderChangeHidesNothing: a keeper gives receipts and answers at the same time as it loses records of each kind: for want of room, by
// removal, by newer versions, which move or end, by expiry, by a restart. It can refute each omission that its
// receipts and answers seem to prove.
func TestKeeperUnderChangeHidesNothing(t *testing.T) {
	epochs := number(t, "BLACKHOLE_KEEPER_EPOCHS", 1000)
	if testing.Short() {
		epochs = 300
	}
	synctest.Test(t, func(t *testing.T) {
		w := newSignedCluster(t, 3, wire.Limits{Sync: -1}, 11)
		defer func() { w.close() }()
		provider, asker := w.nodes[0], w.nodes[1]
		restart := func() {
			require.NoError(t, w.nodes[2].Close())
			w.room = 40_000
			w.nodes[2] = w.start(w.nodes[2].host, wire.Limits{Sync: -1})
		}
		restart()
		crowd := keepertest.Many(t, 40, 5)
		type said struct {
			held []*pb.Omission
			r    *records.Record
		}
		type answered struct {
			req  *pb.QueryRequest
			resp *pb.QueryResponse
			lost uint64 // before the answer
		}
		newest := make(map[records.Name]*records.Record) // as other keepers know it
		var taken []said
		var answers []answered
		sequence, judged, left := uint64(0), 0, 0
		for range epochs {
			keeper := w.nodes[2]
			sequence++
			offer := keepertest.Offer(fmt.Sprintf("s%d", w.random.IntN(3)), func(o *records.Offer) {
				if w.random.IntN(4) == 0 {
					*o.Location.Latitude += 10
				}
			})
			life := []time.Duration{time.Minute, time.Hour}[w.random.IntN(2)]
			r, err := records.Sign("test", w.keys[provider.Self], offer, records.Stamp{Sequence: sequence, Issued: time.Now(), Expires: time.Now().Add(life)})
			require.NoError(t, err)
			if w.random.IntN(5) == 0 {
				sequence++
				r, err = records.Tombstone(w.keys[provider.Self], r, records.Stamp{Sequence: sequence, Issued: time.Now(), Expires: time.Now().Add(life)})
				require.NoError(t, err)
			}
			newest[r.Name()] = r
			event, some := w.random.IntN(8), crowd[w.random.IntN(len(crowd))]
			var work sync.WaitGroup
			work.Go(func() { provider.Store(t.Context(), []*records.Record{r}) })
			work.Go(func() {
				switch event {
				case 0:
					keeper.Index.Remove(r.Name())
				case 1, 2, 3:
					_, _ = keeper.Index.Put(some, time.Now())
				case 4:
					keeper.Index.Expire(time.Now())
				case 5:
					if last := len(taken) - 1; last >= 0 {
						keeper.Index.Forget(taken[last].r)
					}
				}
			})
			for range 2 {
				lost := keeper.Index.Losses()
				req, resp, err := asker.Probe(t.Context(), keeper.Self, r, keepertest.CellOfBerlin(w.random.IntN(3)))
				if err == nil {
					answers = append(answers, answered{req, resp, lost})
				}
			}
			work.Wait()
			if event == 6 && w.random.IntN(20) == 0 {
				restart()
				answers = nil
			}
			_, held := provider.Receipts(r, wire.MaxHeld)
			held = slices.DeleteFunc(held, func(h *pb.Omission) bool { return peer.ID(h.Keeper) != keeper.Self })
			taken = append(taken, said{held, r})
			taken, answers = taken[max(0, len(taken)-8):], answers[max(0, len(answers)-4):]
			for _, s := range taken {
				for _, h := range s.held {
					for _, a := range answers {
						judged++
						o, err := evidence.Open("test", complete(t, h, s.r, a.req, a.resp), w.verifier, time.Now())
						if err == nil {
							left++
							newer, _ := w.nodes[2].Index.Latest(s.r.Name())
							if a.lost != w.nodes[2].Index.Losses() { // what refutes it may be lost here
								newer = newest[s.r.Name()]
							}
							require.True(t, o.Refuted(newer), "an honest keeper is accused")
						}
					}
				}
			}
			time.Sleep(time.Duration(w.random.IntN(10)) * time.Second)
		}
		t.Logf("%d pairs of a receipt and an answer in %d epochs; %d without the record, all with a newer version", judged, epochs, left)
		require.Greater(t, left, 0)
	})
}
