package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	networkName = "sim"
	introducers = 3                     // peers that the others join by
	joinPause   = 40 * time.Millisecond // between two joins
	joinCrowd   = 40                    // peers above which the pause grows in proportion
	settling    = 20 * time.Second      // after the last join: about what a joiner takes to fill its table
	forming     = 3 * time.Minute       // at most, beyond that
	quieting    = 15 * time.Second      // after the last change
	patience    = 10 * time.Second      // of a user
)

// cluster is one played network.
type cluster struct {
	t       *testing.T
	params  Params
	began   time.Time
	rand    *rand.Rand
	wire    *wire
	market  *market
	oracle  *oracle
	peers   []*simPeer // in the order of joining, dead ones included
	hostile []*simPeer
	closing sync.WaitGroup
	figures Figures

	mu        sync.Mutex // guards the samples
	published []time.Duration
	first     []time.Duration
	warm      []time.Duration
	visible   []time.Duration
	failures  []string
	asked     map[peer.ID]bool
}

func newCluster(t *testing.T, p Params) *cluster {
	w := &cluster{
		t: t, params: p, began: time.Now(), rand: rand.New(rand.NewPCG(p.Seed, 0)),
		wire: newWire(p.RTT, p.Loss, p.Seed), market: newMarket(p.Seed), oracle: newOracle(),
		asked: make(map[peer.ID]bool),
	}
	t.Cleanup(w.end)
	return w
}

// end closes everything, so that the bubble can end.
func (w *cluster) end() {
	for _, p := range append(w.alive(), w.hostile...) {
		w.closing.Go(func() { _ = p.close() })
	}
	w.closing.Wait()
	w.wire.net.Close()
}

func (w *cluster) alive() []*simPeer {
	var out []*simPeer
	for _, p := range w.peers {
		if !p.dead {
			out = append(out, p)
		}
	}
	return out
}

// join adds peers one after the other and waits until they have settled. A newcomer dials
// most of a network of hundreds, and closes what it does not need after some ten seconds:
// the larger the network, the slower it grows, or all would be connected to all.
func (w *cluster) join(n int) []*simPeer {
	w.t.Helper()
	from := len(w.peers)
	for range n {
		i := len(w.peers)
		p, err := startPeer(w.wire, newPlace(w.wire.addressOf(i), keyOf(w.params.Seed, uint64(i))), w.doors(), w.params.Connections)
		require.NoError(w.t, err)
		w.peers = append(w.peers, p)
		time.Sleep(joinPause * time.Duration(max(joinCrowd, i)) / joinCrowd)
	}
	w.oracle.know(w.peers)
	time.Sleep(settling)
	w.form()
	return w.peers[from:]
}

// form waits until every peer knows enough others to be a part of the network: a burst of
// newcomers may find their introducers full, and then tries again later.
func (w *cluster) form() {
	peers := w.alive()
	enough := min(keep.Replicas, len(peers)-1)
	start := time.Now()
	for {
		outside := 0
		for _, p := range peers {
			outside += number(p.node.Routing().Size() < enough)
		}
		if outside == 0 {
			break
		}
		if time.Since(start) > forming {
			w.fail("%s after the last join %d of %d peers know fewer than %d others", forming+settling, outside, len(peers), enough)
			break
		}
		time.Sleep(time.Second)
	}
	if waited := time.Since(start); waited > 0 {
		w.figures.Forming = max(w.figures.Forming, (settling + waited).Seconds())
		time.Sleep(settling)
	}
}

// doors are the first peers that live.
func (w *cluster) doors() []peer.AddrInfo {
	var out []peer.AddrInfo
	for _, p := range w.alive() {
		if len(out) < introducers {
			out = append(out, p.info())
		}
	}
	return out
}

// kill takes peers off the network without a goodbye.
func (w *cluster) kill(peers []*simPeer) {
	for _, p := range peers {
		p.dead = true
		w.wire.silence(p.addr)
	}
	for _, p := range peers {
		w.closing.Go(func() { _ = p.close() }) // nobody hears it
	}
}

// some draws n living peers.
func (w *cluster) some(n int) []*simPeer {
	all := w.alive()
	w.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

// stagger does something at many peers at once, each starting at its own moment within a
// period, and waits. The period is that of a hundred peers; more take longer, for each of them
// looks places up and is connected to many others afterwards.
func (w *cluster) stagger(peers []*simPeer, within time.Duration, do func(*simPeer)) {
	const crowd = 100
	within = within * time.Duration(max(crowd, len(peers))) / crowd
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			time.Sleep(within * time.Duration(i) / time.Duration(len(peers)))
			do(p)
		})
	}
	wg.Wait()
}

// grow brings a network up and fills it.
func (w *cluster) grow() {
	w.join(w.params.Peers)
	w.populate(w.peers, w.params.Records)
	time.Sleep(quieting)
}

// populate has peers register n services in turns.
func (w *cluster) populate(peers []*simPeer, n int) {
	work := make(map[*simPeer][]records.Offer)
	for i := range n {
		p := peers[i%len(peers)]
		work[p] = append(work[p], w.market.offer())
	}
	w.stagger(peers, 10*time.Second, func(p *simPeer) {
		for _, o := range work[p] {
			w.register(p, o)
		}
	})
}

func (w *cluster) register(p *simPeer, o records.Offer) {
	name := records.Name{Provider: p.id, ID: o.ID}
	w.oracle.expect(name)
	start := time.Now()
	_, err := p.discovery.Register(w.t.Context(), o)
	took := time.Since(start)
	if err != nil {
		w.fail("register %s: %v", name, err)
		return
	}
	w.noted(p, o.ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.published = append(w.published, took)
}

// noted tells the oracle of a service's newest version.
func (w *cluster) noted(p *simPeer, id string) *records.Record {
	r, err := p.discovery.Own(id)
	if err != nil {
		w.fail("%s of %s: %v", id, short(p.id), err)
		return nil
	}
	w.oracle.signed(r)
	return r
}

// reprice updates a service.
func (w *cluster) reprice(p *simPeer, id string, price float64) *records.Record {
	r, err := p.discovery.Own(id)
	if err != nil {
		w.fail("%s of %s: %v", id, short(p.id), err)
		return nil
	}
	o := records.OfferOf(r.Service())
	o.Pricing.BasePrice = &price
	if _, err := p.discovery.Update(w.t.Context(), o); err != nil {
		w.fail("update %s of %s: %v", id, short(p.id), err)
	}
	return w.noted(p, id)
}

func (w *cluster) withdraw(p *simPeer, id string) {
	if _, err := p.discovery.Withdraw(w.t.Context(), id); err != nil {
		w.fail("withdraw %s of %s: %v", id, short(p.id), err)
		return
	}
	w.oracle.withdrawn(records.Name{Provider: p.id, ID: id})
}

// owned lists the living services of peers with their owners.
func (w *cluster) owned(peers []*simPeer) []service {
	var out []service
	for _, p := range peers {
		for _, r := range p.discovery.OwnAll() {
			out = append(out, service{p, r})
		}
	}
	return out
}

// service is a record with the peer that offers it.
type service struct {
	owner  *simPeer
	record *records.Record
}

// asking is a series of queries.
type asking struct {
	name   string
	quiet  bool // P2 is demanded
	each   int  // queries of each peer
	within time.Duration
	draw   func() query.Query // nil: the market's
}

// ask has peers ask, judges the answers, and adds a stage to the figures.
func (w *cluster) ask(peers []*simPeer, s asking) {
	if s.draw == nil {
		s.draw = w.market.question
	}
	questions := make(map[*simPeer][]query.Query)
	for range s.each {
		for _, p := range peers {
			questions[p] = append(questions[p], s.draw())
		}
	}
	stage := Stage{Name: s.name, Quiet: s.quiet, At: time.Since(w.began).Seconds(), Reasons: make(map[string]int)}
	var took []time.Duration
	wanted, found := 0, 0
	w.stagger(peers, s.within, func(p *simPeer) {
		for _, q := range questions[p] {
			v, d, err := w.question(p, q, s.quiet)
			w.mu.Lock()
			stage.Queries++
			w.tally(v, err, s.quiet)
			if err == nil {
				took = append(took, d)
				wanted, found = wanted+v.wanted, found+v.found
				stage.Complete += number(v.complete)
				stage.Exact += number(v.exact)
				if !v.complete {
					stage.Reasons[reasonOf(v.reason)]++
				}
			}
			w.mu.Unlock()
		}
	})
	stage.Recall, stage.Took = 1, spreadOf(took)
	if wanted > 0 {
		stage.Recall = float64(found) / float64(wanted)
	}
	w.figures.Stages = append(w.figures.Stages, stage)
	if w.params.Verbose {
		fmt.Printf("stage %s\n", stage)
	}
}

// tally counts an answer; w.mu is held.
func (w *cluster) tally(v comparison, err error, quiet bool) {
	f := &w.figures
	f.Queries++
	switch {
	case err != nil:
		f.Failed++
	case v.complete:
		f.Complete++
		f.Overstated += number(!quiet && v.found < v.wanted)
	default:
		f.Incomplete++
	}
}

// question asks one and judges the answer.
func (w *cluster) question(p *simPeer, q query.Query, quiet bool) (comparison, time.Duration, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	q.Explain = quiet // a breach then tells whom the peer asked
	start := time.Now()
	a, err := p.discovery.Query(ctx, q)
	took := time.Since(start)
	w.mu.Lock()
	if w.asked[p.id] {
		w.warm = append(w.warm, took)
	} else {
		w.first = append(w.first, took)
	}
	w.asked[p.id] = true
	w.mu.Unlock()
	if err != nil {
		return comparison{}, took, err
	}
	return w.oracle.judge(asked{p.id, q}, a, quiet), took, nil
}

// fail takes note of what must not happen and breaks no property. The test fails after the
// bubble has ended: then its figures are told all the same.
func (w *cluster) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, fmt.Sprintf(format, args...))
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// halves gives a partition of all peers: those at odd places on side 1.
func (w *cluster) halves() (sides map[netip.Addr]int, left, right []*simPeer) {
	sides = make(map[netip.Addr]int)
	for i, p := range w.peers {
		sides[p.addr] = i % 2
		if p.dead {
			continue
		}
		if i%2 == 0 {
			left = append(left, p)
		} else {
			right = append(right, p)
		}
	}
	return sides, left, right
}
