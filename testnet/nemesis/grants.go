package nemesis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

const (
	// Buyers is the default of a Config.
	Buyers = 14

	sellers   = 4 // the first and the last peers: some of them are members of the group, and some never
	stock     = 5 // units of each offer
	unit      = "slot"
	longest   = 8 * time.Second
	freeAgain = longest + longest/20 + 20*time.Second // after the last request: the time of a grant, its margin, and looks at it
)

// sale is an offer with a stock.
type sale struct {
	seller    *peer
	name, key string
}

// openSales registers an offer at each seller.
func (r *run) openSales(ctx context.Context) (all []sale, err error) {
	if r.Buyers == 0 {
		return nil, nil
	}
	for i := range sellers {
		at := i / 2
		if i%2 == 1 {
			at = len(r.clients()) - 1 - at
		}
		s := sale{seller: r.peers[at], name: "sale-" + r.peers[at].name}
		offer := market.Plain(s.name, 1)
		offer.Metadata.Endpoints, offer.Metadata.Access = nil, records.AccessPeer
		offer.Metadata.Stock = &records.Stock{Unit: unit, Total: stock, MaxTTL: uint32(longest.Seconds()), MaxPerConsumer: stock}
		err := await.Until(ctx, formLimit, "an offer of "+s.seller.name, func(ctx context.Context) error {
			receipt, err := r.net.Peers[at].Offers().Register(ctx, offer)
			if fault.KindOf(err) == fault.Exists { // an earlier attempt had no answer
				receipt, err = r.net.Peers[at].Offers().Update(ctx, offer)
			}
			s.key = receipt.Key
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// startBuyers starts buyers at all peers in turn.
func (r *run) startBuyers(ctx context.Context, sales []sale) *crew {
	ctx, cancel := context.WithCancel(ctx)
	c := &crew{cancel: cancel}
	for i := range r.Buyers {
		w := &worker{run: r, peer: r.clients()[i%len(r.clients())], rng: mathrand.New(mathrand.NewPCG(r.Seed, uint64(6000+i)))}
		others := slices.DeleteFunc(slices.Clone(sales), func(s sale) bool { return s.seller == w.peer })
		c.wg.Go(func() {
			w.work(ctx, func(w *worker, ctx context.Context) { w.buy(ctx, others[w.rng.IntN(len(others))]) })
		})
	}
	return c
}

// buy takes units, uses them for a time, and gives them back or forgets them. It repeats a request that had no answer, and
// some that had one.
func (w *worker) buy(ctx context.Context, s sale) {
	id := make([]byte, 12)
	_, _ = rand.Read(id) // never fails
	want := client.Reservation{
		Key: s.key, Units: 1 + w.rng.Uint32N(3), For: time.Second + time.Duration(w.rng.Int64N(int64(longest-time.Second))),
		Request: hex.EncodeToString(id), Hold: w.chance(20),
	}
	asked := w.now()
	var g client.Grant
	var b history.Purchase
	for range 6 {
		sent := w.now()
		got, err := w.trade(ctx, func(ctx context.Context) (client.Grant, error) { return w.client.Offers().Reserve(ctx, want) })
		if err == nil && got.LeftMs > 0 {
			before := b
			g, b = got, history.Purchase{
				Offer: s.name, Request: want.Request, Provider: got.ProviderID, Token: got.Token, Units: got.Units,
				Call: asked, Return: w.now(), Until: sent + time.Duration(got.LeftMs)*time.Millisecond,
			}
			if before.Token == b.Token {
				b.Return = before.Return
			} else if before.Token != 0 {
				w.seen.grants.Note(before)
			}
		}
		if ctx.Err() != nil || w.refused(err) || err == nil && !w.chance(10) {
			break
		}
		w.think(ctx, time.Second)
	}
	if g.Token == 0 {
		w.think(ctx, 2*breath)
		return
	}
	defer func() { w.seen.grants.Note(b) }()
	w.think(ctx, max(b.Until-w.now(), time.Millisecond))
	if w.chance(40) {
		sent := w.now()
		got, err := w.trade(ctx, func(ctx context.Context) (client.Grant, error) { return w.client.Offers().Extend(ctx, g, 0) })
		if err == nil {
			b.Until = max(b.Until, sent+time.Duration(got.LeftMs)*time.Millisecond)
			w.think(ctx, max(b.Until-w.now(), time.Millisecond))
		}
	}
	if w.chance(60) {
		b.Until = min(b.Until, w.now())
		_, _ = w.trade(ctx, func(ctx context.Context) (client.Grant, error) { return w.client.Offers().Release(ctx, g) })
	}
}

// trade makes one request, and counts it.
func (w *worker) trade(ctx context.Context, call func(context.Context) (client.Grant, error)) (client.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	g, err := call(ctx)
	switch {
	case err == nil:
		w.seen.grants.Count(history.OK)
	case w.refused(err):
		w.seen.grants.Count(history.Refused)
	default:
		w.seen.grants.Count(history.Unknown)
		w.outcome(ctx, err)
	}
	return g, err
}

// refused reports whether an error says that a request had no effect.
func (w *worker) refused(err error) bool {
	return slices.Contains([]fault.Kind{fault.Conflict, fault.LimitReached, fault.Gone, fault.NotFound}, fault.KindOf(err))
}

// settleSales waits until all units are free again.
func (r *run) settleSales(ctx context.Context, sales []sale) {
	for _, s := range sales {
		err := await.Until(ctx, freeAgain+r.Recovery, "all units of "+s.name+" are free again", func(ctx context.Context) error {
			all, err := r.net.Peers[s.seller.index].Offers().Grants(ctx)
			free := client.Stock{ID: s.name, Unit: unit, Free: stock, Total: stock}
			if err == nil && !slices.Contains(all.Stocks, free) {
				err = fault.New("nemesis.settle", fault.Conflict, "%v", all.Stocks)
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			r.violated("T3", "%v", err)
		}
	}
}
