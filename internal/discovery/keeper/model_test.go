package keeper

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/registry"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// script says what happens in a network, to whole peers and to simulated ones.
type script struct {
	peers   []peer.ID // first the providers, which stay; then other peers; then later joiners
	present int
	keys    []crypto.PrivKey // of the first peers
	offers  int
	each    int // offers of one provider
	refresh time.Duration
	acts    []act // by time
	until   time.Duration
	places  spread
}

// act is a change of one offer or peer.
type act struct {
	at    time.Duration
	kind  actKind
	who   int // provider, offer or peer
	price float64
}

type actKind uint8

const (
	registers actKind = iota // all offers of a provider
	changes
	withdraws
	joins
	leaves
)

const settled = 40 * time.Minute // counts begin

// newScript draws a script: all providers register within half of the time until counts begin. From then on an offer changes its price once
// in a day, every second of them again 20 s later; 1 of 50 offers is withdrawn; 5 % of the peers leave in an hour, and as many join.
func newScript(t *testing.T, peers, offers int, lasts time.Duration) *script {
	random := rand.New(rand.NewPCG(1, 2))
	s := &script{present: peers, offers: offers, each: max(20, (offers*5/4+peers-1)/peers), refresh: min(registry.DefaultRefresh, lasts), until: settled + lasts, places: atCities()}
	during := func() time.Duration { return settled + time.Duration(random.Int64N(int64(lasts))) }
	for i := range (offers + s.each - 1) / s.each {
		p := keepertest.NewProvider(t)
		s.keys, s.peers = append(s.keys, p.Key), append(s.peers, p.Id)
		s.acts = append(s.acts, act{time.Duration(random.Int64N(int64(settled / 2))), registers, i, 0})
	}
	for len(s.peers) < peers {
		s.peers = append(s.peers, peer.ID(fmt.Sprint("peer ", len(s.peers))))
	}
	for i := range offers {
		if random.Int64N(int64(24*time.Hour)) < int64(lasts) {
			at := during()
			s.acts = append(s.acts, act{at, changes, i, 0.01 + random.Float64()*10})
			if random.IntN(2) == 0 {
				s.acts = append(s.acts, act{at + 20*time.Second, changes, i, 0.01 + random.Float64()*10})
			}
		}
		if random.IntN(50) == 0 {
			s.acts = append(s.acts, act{during(), withdraws, i, 0})
		}
	}
	there := random.Perm(peers - len(s.keys))
	for i := range min(max(2, int(float64(peers)*0.05*lasts.Hours())), len(there)) {
		s.acts = append(s.acts, act{during(), leaves, len(s.keys) + there[i], 0}, act{during(), joins, len(s.peers), 0})
		s.peers = append(s.peers, peer.ID(fmt.Sprint("peer ", len(s.peers))))
	}
	slices.SortStableFunc(s.acts, func(a, b act) int { return int(a.at - b.at) })
	return s
}

// offer returns an offer, with another price than the first one if it is not zero.
func (s *script) offer(i int, price float64) records.Offer {
	o := worldOffer(rand.New(rand.NewPCG(11, uint64(i))), i, s.places)
	if price != 0 {
		*o.Pricing.BasePrice = price
	}
	return o
}

func (s *script) sign(i int, price float64, st records.Stamp) *records.Record {
	st.Expires = st.Issued.Add(registry.DefaultTTL)
	r, err := records.Sign("test", s.keys[i/s.each], s.offer(i, price), st)
	if err != nil {
		panic(err)
	}
	return r
}

// numberOf returns the number of an offer.
func numberOf(n records.Name) int {
	i, err := strconv.Atoi(strings.TrimPrefix(n.ID, "s"))
	if err != nil {
		panic(err)
	}
	return i
}

// played is a network of whole peers that plays a script.
type played struct {
	*lightCluster
	*script
	limits  wire.Limits
	began   time.Time
	acts    []act // to come
	sellers []*seller
}

func play(t *testing.T, s *script, limits wire.Limits) *played {
	w := &played{lightCluster: newLimitedCluster(t, 0, limits), script: s, limits: limits, began: time.Now(), acts: s.acts}
	for _, id := range s.peers[:s.present] {
		w.join(id, limits)
	}
	for _, n := range w.nodes {
		n.sync.Table()
		n.sync.Know.SetInformed(true, time.Now())
	}
	random := rand.New(rand.NewPCG(5, 6))
	for i, key := range s.keys {
		w.sellers = append(w.sellers, &seller{lightCluster: w.lightCluster, node: w.nodes[i], lossy: true, config: registry.Config{
			Network: "test", Dir: "/r", FS: vfs.NewMem(), Key: key, Refresh: s.refresh, Jitter: random.Float64,
		}})
		w.sellers[i].open()
	}
	return w
}

// run plays until a time, in steps of a second.
func (w *played) run(until time.Duration) {
	for ; time.Since(w.began) < until; time.Sleep(time.Second) {
		for len(w.acts) > 0 && w.acts[0].at <= time.Since(w.began) {
			w.act(w.acts[0])
			w.acts = w.acts[1:]
		}
		for _, s := range w.sellers {
			if due, ok := s.registry.NextDue(); ok && !due.After(time.Now()) {
				s.announce(s.registry.Due(time.Now(), 1000))
			}
		}
	}
}

func (w *played) act(a act) {
	switch a.kind {
	case registers:
		var offers []records.Offer
		for i := a.who * w.each; i < min((a.who+1)*w.each, w.offers); i++ {
			offers = append(offers, w.offer(i, 0))
		}
		recs, errs := w.sellers[a.who].registry.Register(offers, time.Now())
		require.NoError(w.t, errors.Join(errs...))
		w.sellers[a.who].announce(recs)
	case changes, withdraws:
		s, o := w.sellers[a.who/w.each], w.offer(a.who, a.price)
		if _, live := s.registry.Get(o.ID); !live {
			return
		}
		replace := s.registry.Update
		if a.kind == withdraws {
			replace = func(o records.Offer, now time.Time) (*records.Record, error) { return s.registry.Withdraw(o.ID, now) }
		}
		r, err := replace(o, time.Now())
		require.NoError(w.t, err)
		s.announce([]*records.Record{r})
	case joins:
		w.join(w.peers[a.who], w.limits)
	case leaves:
		w.leave(w.peers[a.who])
	}
}

// leave ends a node.
func (w *played) leave(id peer.ID) {
	i := slices.IndexFunc(w.nodes, func(n *lightNode) bool { return n.Self == id })
	w.hosts.Delete(id)
	w.dht.edit(func() {
		w.dht.peers = slices.DeleteFunc(slices.Clone(w.dht.peers), func(p peer.ID) bool { return p == id })
		w.dht.fire()
	})
	require.NoError(w.t, w.nodes[i].Close())
	w.nodes = slices.Delete(w.nodes, i, i+1)
}

func (w *played) close() {
	for _, s := range w.sellers {
		require.NoError(w.t, s.registry.Close())
	}
	w.lightCluster.close()
}

// spreadOf describes a figure of all peers.
type spreadOf []int

func (f spreadOf) mean() float64 {
	sum := 0
	for _, n := range f {
		sum += n
	}
	return float64(sum) / float64(len(f))
}

func (f spreadOf) String() string {
	slices.Sort(f)
	at := func(part float64) int { return f[int(part*float64(len(f)-1))] }
	return fmt.Sprintf("%.1f, %d at the median, %d at 99 %%, %d at most", f.mean(), at(0.5), at(0.99), at(1))
}

// Figures of simulated peers are those of whole ones. BLACKHOLE_KEEPER_PEERS, BLACKHOLE_KEEPER_RECORDS and BLACKHOLE_KEEPER_HOURS choose
// another network; of more than 400 peers only the simulation knows.
func TestEventsOfDiscovery(t *testing.T) {
	atSize(t)
	peers := number(t, "BLACKHOLE_KEEPER_PEERS", 32)
	s := newScript(t, peers, scaled(t, 2100), time.Duration(number(t, "BLACKHOLE_KEEPER_HOURS", 1))*time.Hour)
	if peers > 400 {
		defer debug.SetGCPercent(debug.SetGCPercent(50)) // see TestMain
	}
	x := newSimulation(s)
	x.run(settled)
	clear(x.load)
	x.announced = 0
	x.run(s.until)
	stores, held := x.log(t)
	if peers > 400 {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := play(t, s, wire.Limits{Sync: 24 * time.Hour}) // peers compare when others come or leave
		defer w.close()
		w.run(settled)
		for _, n := range w.nodes {
			n.counts.Forget()
		}
		w.run(s.until)
		var got, kept spreadOf
		for _, n := range w.nodes {
			n.Index.Expire(time.Now())
			got, kept = append(got, n.counts.Operations("serve_store")), append(kept, n.Index.Len())
		}
		t.Logf("played: STORE requests received: %s", got)
		t.Logf("played: records held: %s", kept)
		require.InEpsilon(t, got.mean(), stores.mean(), 0.1)
		require.InEpsilon(t, kept.mean(), held.mean(), 0.1)
		require.InEpsilon(t, slices.Max(kept), slices.Max(held), 0.1)
	})
}

// However many peers came and left, the keepers of simulated cells are those of route.
func TestSimulatedKeepersAreTheClosest(t *testing.T) {
	s := newScript(t, 200, 400, 6*time.Hour)
	x := newSimulation(s)
	x.run(s.until)
	var there []peer.ID
	for i, id := range s.peers {
		if x.alive[x.at[i]] {
			there = append(there, id)
		}
	}
	require.NotEqual(t, s.peers[:s.present], there)
	for at, c := range x.named {
		var want []int32
		for _, id := range route.Nearest(route.KeyOf(records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: at}), there, route.Replicas) {
			want = append(want, x.at[slices.Index(s.peers, id)])
		}
		require.Equal(t, want, x.keepersOf(c))
	}
}

// A simulated cell that lost most of its records is whole again after its windows and Grace: then its keepers have all others.
func TestSimulatedCellMerges(t *testing.T) {
	s := newScript(t, 100, 2200, 2*time.Hour)
	for i := 300; i < s.offers; i++ {
		s.acts = append(s.acts, act{settled, withdraws, i, 0})
	}
	x := newSimulation(s)
	global := x.named[geo.Global]
	x.run(settled)
	require.NotNil(t, x.cells[global].divided)
	x.run(settled + 6*cell.Grace)
	require.Nil(t, x.cells[global].divided)
	for o := range x.liveIn(&x.cells[global]) {
		for _, k := range x.keepersOf(global) {
			require.True(t, o.holds(k))
		}
	}
}

// log writes the figures of the simulated peers that are there.
func (x *simulation) log(t *testing.T) (stores, held spreadOf) {
	all, partners, sent := map[string]spreadOf{}, x.partners(), 0
	for p, n := range x.held() {
		if !x.alive[p] {
			continue
		}
		l := x.load[p]
		sent += l.sent
		for name, n := range map[string]int{
			"STORE requests received": l.stores, "records received in them": l.records, "STORE requests sent": l.sent, "summaries told": l.reports,
			"bytes pulled": l.pulled, "records held": n, "partners of comparisons": partners[p],
		} {
			all[name] = append(all[name], n)
		}
	}
	divided := 0
	for i := range x.cells {
		if x.cells[i].divided != nil {
			divided++
		}
	}
	t.Logf("%d records of a type at cities, %d of each provider, %d peers, %s: %d cells are divided; %d announcements, %.1f STOREs each",
		x.offers, x.each, x.present, x.until-settled, divided, x.announced, float64(sent)/float64(x.announced))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Logf("%s: %s", name, all[name])
	}
	return all["STORE requests received"], all["records held"]
}
