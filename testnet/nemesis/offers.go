package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/operator"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
	"github.com/blackhole/blackhole/testnet/network"
)

const (
	// comparison bounds the time until all peers have a change that some of them did not take: they compare every
	// 30 s, and a pull follows. Each peer of a small network is a keeper of everything.
	comparison = 40 * time.Second

	offersEach = 3                      // of each peer
	rethink    = time.Second            // longest pause between two changes of one provider
	askEvery   = 250 * time.Millisecond // questions to each peer
	marketID   = "-offer-"
	askLimit   = 10 * time.Second
)

// bazaar is the load on the discovery plane: at every peer, a provider changes offers and a consumer asks for all.
type bazaar struct{ providers, consumers *crew }

// close ends the changes. The consumers end too.
func (b *bazaar) close() {
	b.providers.stop()
	b.consumers.stop()
}

// sells reports whether the run has a market: during an upgrade, and on a stage. Other runs have none: they break the group.
func (r *run) sells() bool { return r.Upgrade != "" || r.Stage != nil }

// startMarket starts providers and consumers.
func (r *run) startMarket(ctx context.Context) *bazaar {
	selling, stopSelling := context.WithCancel(ctx)
	asking, stopAsking := context.WithCancel(ctx)
	b := &bazaar{&crew{cancel: stopSelling}, &crew{cancel: stopAsking}}
	if !r.sells() {
		return b
	}
	for i, p := range r.clients() {
		provider := &worker{run: r, peer: p, rng: rand.New(rand.NewPCG(r.Seed, uint64(3000+i)))}
		s := provider.stall()
		b.providers.wg.Go(func() { provider.work(selling, s.change) })
		consumer := &worker{run: r, peer: p, rng: rand.New(rand.NewPCG(r.Seed, uint64(4000+i)))}
		b.consumers.wg.Go(func() { consumer.work(asking, (*worker).ask) })
	}
	return b
}

// stall is what a provider believes to have registered.
type stall struct {
	names []string
	live  map[string]bool
	doubt map[string]bool // the last call had no answer
}

func (w *worker) stall() stall {
	s := stall{live: make(map[string]bool), doubt: make(map[string]bool)}
	for i := range offersEach {
		s.names = append(s.names, fmt.Sprint(w.peer.name, marketID, i+1))
	}
	return s
}

// change registers, updates or withdraws one offer.
func (s *stall) change(w *worker, ctx context.Context) {
	w.think(ctx, time.Duration(w.pace())*rethink)
	name := s.names[w.rng.IntN(len(s.names))]
	if s.doubt[name] && !s.look(w, ctx, name) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	withdraw := s.live[name] && w.chance(30)
	o := w.begin(history.Op{Kind: "offer", Object: name})
	version := w.seen.offers.Begin(name, withdraw, w.now())
	var receipt records.Receipt
	var err error
	switch {
	case withdraw:
		receipt, err = w.client.Offers().Withdraw(ctx, name)
	case s.live[name]:
		receipt, err = w.client.Offers().Update(ctx, market.Plain(name, version))
	default:
		receipt, err = w.client.Offers().Register(ctx, market.Plain(name, version))
	}
	o.Value = fmt.Sprintf("version %d, stored on %d of %d", version, receipt.Stored.On, receipt.Stored.Of)
	w.end(o, w.outcome(ctx, err), err)
	if s.doubt[name] = err != nil; err == nil {
		s.live[name] = !withdraw
		w.seen.offers.Acknowledge(name, everybody(receipt.Stored, len(w.peers)), w.now())
	}
}

// everybody reports whether all peers took a change, and nobody else was asked: an attacker that takes it may stand for a peer that did not.
func everybody(stored records.Stored, peers int) bool {
	return stored.On == peers && stored.Of == peers
}

// look asks the peer whether it has the offer.
func (s *stall) look(w *worker, ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := w.client.Offers().Get(ctx, name)
	if err != nil && fault.KindOf(err) != fault.NotFound {
		w.think(ctx, breath)
		return false
	}
	s.live[name], s.doubt[name] = err == nil, false
	return true
}

// ask asks for all offers, and judges the answer.
func (w *worker) ask(ctx context.Context) {
	if await.Pause(ctx, time.Duration(w.pace()+1)/2*askEvery) != nil {
		return
	}
	at, troubled := w.now(), w.peer.troubled.Load()
	a, err := w.askAll(ctx, w.client)
	if ctx.Err() == nil {
		w.seen.answers.note(w.peer.name, at, w.now()-at, troubled || w.peer.troubled.Load(), err)
	}
	switch {
	case err == nil:
		w.seen.offers.Judge(a)
	case ctx.Err() == nil:
		w.seen.offers.Fail()
	}
}

// askAll asks for all offers, with a question that no cache knows.
func (w *worker) askAll(ctx context.Context, c *operator.Client) (history.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	least := market.PlainUptime / 2 * w.rng.Float64()
	q := query.Query{Type: market.PlainType, Limit: queries.MaxLimit, Explain: true}
	q.MinUptime, q.Health = &least, query.HealthAny
	a := history.Answer{From: w.peer.name, Asked: w.now(), Found: make(map[string]int)}
	view, err := c.Offers().Query(ctx, q)
	if err != nil {
		return a, err
	}
	a.Answered, a.Complete = w.now(), view.Complete
	a.Note = fmt.Sprintf("source %s, %s%v", view.Source, view.Reason, view.Notes)
	if !view.Complete {
		w.seen.answers.incomplete(view.Reason)
	}
	a.Complete = a.Complete && len(view.Results) < queries.MaxLimit // what strangers add may leave no room
	for _, result := range view.Results {
		if !w.registers(result.Record) {
			continue
		}
		version, err := strconv.Atoi(result.Record.Metadata.Version)
		if err != nil || version == 0 {
			return a, fault.New("nemesis.askAll", fault.Internal, "%s has the version %q", result.Record.ID, result.Record.Metadata.Version)
		}
		a.Found[result.Record.ID] = version
	}
	return a, nil
}

// registers reports whether a record is of the load. On a stage others have offers too.
func (r *run) registers(v records.View) bool {
	return r.Stage == nil || slices.Contains(r.ids, v.ProviderID) && strings.Contains(v.ID, marketID)
}

// settleMarket waits until every peer has exactly the offers of the last changes, and looks for distrust.
func (r *run) settleMarket(ctx context.Context) {
	if !r.sells() {
		return
	}
	var all sync.WaitGroup
	var mu sync.Mutex // guards the report
	for i, p := range r.net.Peers {
		w := &worker{run: r, peer: r.peers[i], rng: rand.New(rand.NewPCG(r.Seed, uint64(5000+i)))}
		all.Go(func() {
			lacks := true // it says that it may lack some
			err := await.Until(ctx, lateness, w.peer.name+" has exactly the offers of the last changes", func(ctx context.Context) error {
				a, err := w.askAll(ctx, p.Client)
				if err != nil {
					return err
				}
				lacks = !a.Complete
				if differs := r.seen.offers.Differs(a); differs != "" || lacks {
					return fault.New("nemesis.settle", fault.Conflict, "complete %v; %s%s", a.Complete, differs, a.Note)
				}
				return nil
			})
			switch {
			case err == nil || ctx.Err() != nil:
			case lacks && r.Stage != nil: // attackers that left were most of what it knew: C10
				mu.Lock()
				r.report.Unsettled = append(r.report.Unsettled, err.Error())
				mu.Unlock()
			default:
				r.violated("P", "%v", err)
			}
			if r.Stage == nil { // else some peers lie
				r.noteDistrust(ctx, i)
			}
		})
	}
	all.Wait()
}

// noteDistrust reads the metrics of a peer's process: all peers are honest.
func (r *run) noteDistrust(ctx context.Context, i int) {
	p := r.peers[i]
	transport := &http.Transport{DialContext: r.ground.Dial(i)}
	defer transport.CloseIdleConnections()
	found, err := network.Distrust(ctx, &http.Client{Transport: transport}, p.HTTP)
	switch {
	case err != nil && ctx.Err() == nil:
		r.violated("T", "%s does not show its metrics: %v", p.name, err)
	case len(found) > 0:
		r.violated("T", "%s distrusts honest peers: %s", p.name, strings.Join(found, ", "))
	}
}
