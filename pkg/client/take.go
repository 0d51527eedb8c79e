package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	takeWithin   = 45 * time.Second // units are held for a minute: what is held first still is when all is confirmed
	holdWithin   = 10 * time.Second // for the answer of one provider
	holdGrace    = 2 * time.Second  // for that of another one, when all is held: it may rank better, or hold units to give back
	giveBackTime = 5 * time.Second
	quotedAtOnce = 16 // candidates whose providers are asked what is free
	heldAtOnce   = 2  // candidates that hold units at a time: the second is there if the first refuses
)

// Want says what Take takes.
type Want struct {
	Units    uint32        // 0 means 1
	For      time.Duration // at most: an offer may allow less; 0: as long as each offer allows
	Hold     bool          // leaves the grants held, for a minute at most, until Extend or the first connection
	OneOffer bool          // takes all units of one offer
}

// Refused is an offer that gave nothing, and why.
type Refused struct {
	Key string
	Err error
}

// Taken is what Take got.
type Taken struct {
	Grants  []Grant // none after an error
	Refused []Refused
	Kept    []Grant          // those that could not be given back: each ends with its time
	Answer  query.AnswerView // with the candidates
}

// taking is one call of Take.
type taking struct {
	Offers
	query  query.Query
	want   Want
	need   uint32          // units that are not held yet
	silent map[string]bool // providers without a quote
	dead   map[string]bool // those of them without an answer to a hold
	t      Taken
}

// candidate is an offer that may give units.
type candidate struct {
	Reservation
	provider string
	most     uint32
}

// Take takes units of the offers that a query finds, in the order of the answer and of as few as it can. An offer may
// cost what the answer says, or up to MaxPrice of a query without a volume. Take asks what is free, lets two
// candidates at a time hold units, confirms what is needed by Extend and gives the rest back at once. Offers whose
// providers do not answer in two seconds come last, and do not count for the limit of the query. A hold
// without an answer is given up after ten. After an error, the end of ctx included, all is given back. A hold whose answer was lost ends after a minute.
// Errors: those of Query; NotFound without a candidate; the kind of the first refusal.
func (o Offers) Take(ctx context.Context, q query.Query, want Want) (Taken, error) {
	const op = "client.Offers.Take"
	if want.For < 0 {
		return Taken{}, fault.Wrap(op, fault.Invalidf("for", want.For, "must not be negative"))
	}
	q.Where = append(slices.Clone(q.Where), query.Clause{Field: "stock.total", Op: query.OpStated})
	k := taking{Offers: o, query: q, want: want, need: max(want.Units, 1)}
	k.silent, k.dead = make(map[string]bool), make(map[string]bool)
	within, cancel := context.WithTimeout(ctx, takeWithin)
	defer cancel()
	err := k.find(within)
	for i := 0; err == nil && !want.Hold && i < len(k.t.Grants); i++ {
		var g Grant
		if g, err = o.Extend(within, k.t.Grants[i], 0); err == nil {
			k.t.Grants[i] = g
		}
	}
	if err != nil {
		k.giveBack(ctx, k.t.Grants)
		k.t.Grants = nil
	}
	return k.t, fault.Wrap(op, err)
}

var errSilent = &fault.Error{Kind: fault.Timeout, Err: errors.New("its provider gives no answer")}

// find holds as many units as are needed, or says why not. Providers without an answer do not count for the
// limit of the query: more is asked for, and they come last.
func (k *taking) find(ctx context.Context) (err error) {
	if k.t.Answer, err = k.Query(ctx, k.query); err != nil {
		return err
	}
	fresh := k.t.Answer.Results
	var unsure []candidate
	for k.need > 0 && len(fresh) > 0 && ctx.Err() == nil {
		before := len(unsure)
		for part := range slices.Chunk(fresh, quotedAtOnce) {
			sure, silent, err := k.ask(ctx, part)
			if err != nil {
				return err
			}
			unsure = append(unsure, silent...)
			if k.hold(ctx, sure); k.need == 0 {
				break
			}
		}
		fresh = nil
		if more := int(k.t.Answer.Total) > len(k.t.Answer.Results); k.need > 0 && more && len(unsure) > before {
			fresh = k.beyond(ctx)
		}
	}
	k.hold(ctx, unsure)
	units := max(k.want.Units, 1)
	had := fmt.Sprintf("%d of %s were to be had", units-k.need, fault.Counted(int(units), "unit"))
	switch {
	case ctx.Err() != nil:
		return fault.New("", fault.KindOf(ctx.Err()), "%s in time: %w", had, ctx.Err())
	case len(k.t.Answer.Results) == 0:
		return fault.New("", fault.NotFound, "no offer with stock was found")
	case k.need > 0:
		kind := fault.Conflict
		if len(k.t.Refused) > 0 {
			kind = fault.KindOf(k.t.Refused[0].Err)
		}
		return fault.New("", kind, "%s of %s", had, fault.Counted(len(k.t.Answer.Results), "offer"))
	}
	return nil
}

// beyond asks for four times as many offers, and returns the new ones; none after an error, which a peer with
// a smaller limit gives.
func (k *taking) beyond(ctx context.Context) (fresh []query.ResultView) {
	known := make(map[string]bool)
	for _, r := range k.t.Answer.Results {
		known[r.Record.Key] = true
	}
	q := k.query
	q.Limit = 4 * len(k.t.Answer.Results)
	a, err := k.Query(ctx, q)
	if err != nil {
		return nil
	}
	fresh = slices.DeleteFunc(a.Results, func(r query.ResultView) bool { return known[r.Record.Key] })
	k.t.Answer.Results, k.t.Answer.Total = slices.Concat(k.t.Answer.Results, fresh), a.Total
	return fresh
}

// ask asks what is free of found offers. It returns those that give units, and those of silent providers.
func (k *taking) ask(ctx context.Context, found []query.ResultView) (sure, unsure []candidate, err error) {
	quotes := make([]Quote, len(found))
	var keys []string
	var places []int
	for i := range found {
		if quotes[i].Err = errSilent; !k.silent[found[i].Record.ProviderID] {
			keys, places = append(keys, found[i].Record.Key), append(places, i)
		}
	}
	if len(keys) > 0 {
		told, err := k.Quote(ctx, keys...)
		if err != nil {
			return nil, nil, err
		}
		for i, q := range told[:min(len(told), len(places))] {
			quotes[places[i]] = q
		}
	}
	least := uint32(1)
	if k.want.OneOffer {
		least = k.need
	}
	for i, q := range quotes {
		v := &found[i].Record
		stock, price := cmp.Or(v.Metadata.Stock, &records.Stock{}), cmp.Or(v.Pricing, &records.Pricing{})
		c := candidate{provider: v.ProviderID, most: q.Most, Reservation: Reservation{
			Key: v.Key, Sequence: cmp.Or(q.Sequence, v.Sequence), For: k.want.For, MaxPrice: price.BasePrice, Hold: true,
		}}
		if k.query.MaxPrice != nil && k.query.Volume == nil {
			c.MaxPrice = k.query.MaxPrice
		}
		if longest := cmp.Or(time.Duration(stock.MaxTTL)*time.Second, records.DefaultGrantTTL); c.For > longest {
			c.For = longest
		}
		no := q.Err
		switch kind := fault.KindOf(no); {
		case no != nil && (kind == fault.Timeout || kind == fault.Unavailable):
			share := cmp.Or(stock.MaxPerConsumer, (stock.Total+3)/4)
			c.most = max(min(share, stock.Total), least) // the provider refuses if that is too much
			unsure = append(unsure, c)
			k.silent[v.ProviderID] = true
			continue
		case no != nil:
		case q.Price != nil && (price.BasePrice == nil || q.Currency != price.Currency || q.PriceUnit != price.PriceUnit):
			no = fault.New("", fault.Conflict, "costs %v %s %s by now", *q.Price, q.Currency, q.PriceUnit)
		case q.Most < least:
			no = fault.New("", fault.Conflict, "gives you %d units now, not %d: %d of %d are free", q.Most, least, q.Free, q.Total)
		}
		if no != nil {
			k.t.Refused = append(k.t.Refused, Refused{v.Key, no})
		} else {
			sure = append(sure, c)
		}
	}
	return sure, unsure, nil
}

// hold lets candidates hold what is needed.
func (k *taking) hold(ctx context.Context, queue []candidate) {
	for k.need > 0 && ctx.Err() == nil {
		queue = slices.DeleteFunc(slices.Clone(queue), func(c candidate) bool { return k.dead[c.provider] })
		if len(queue) == 0 {
			return
		}
		now := queue[:min(heldAtOnce, len(queue))]
		queue = queue[len(now):]
		got, errs := k.reserve(ctx, now)
		var spare []Grant
		for i, g := range got {
			switch {
			case errs[i] != nil:
				k.t.Refused = append(k.t.Refused, Refused{now[i].Key, errs[i]})
				if by := now[i].provider; k.silent[by] && fault.KindOf(errs[i]) == fault.Timeout {
					k.dead[by] = true
				}
			case g.Units <= k.need:
				k.t.Grants = append(k.t.Grants, g)
				k.need -= g.Units
			default:
				if spare = append(spare, g); k.need > 0 {
					queue = slices.Insert(slices.Clone(queue), 0, now[i]) // next for fewer
				}
			}
		}
		k.giveBack(ctx, spare)
	}
}

// reserve lets candidates hold units. It waits for none that gives no answer.
func (k *taking) reserve(ctx context.Context, all []candidate) (got []Grant, errs []error) {
	limited, stop := context.WithCancel(ctx)
	defer stop()
	limit := time.AfterFunc(holdWithin, stop)
	defer limit.Stop()
	got, errs = make([]Grant, len(all)), make([]error, len(all))
	var work sync.WaitGroup
	for i, c := range all {
		c.Units = min(c.most, k.need)
		work.Go(func() {
			switch got[i], errs[i] = k.Reserve(limited, c.Reservation); {
			case errs[i] == nil && got[i].Units >= k.need:
				limit.Reset(holdGrace)
			case errs[i] != nil && limited.Err() != nil && ctx.Err() == nil:
				errs[i] = fault.New("", fault.Timeout, "its provider gave no answer in time")
			}
		})
	}
	work.Wait()
	return got, errs
}

// giveBack releases grants, also after the end of ctx.
func (k *taking) giveBack(ctx context.Context, all []Grant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
	defer cancel()
	errs := make([]error, len(all))
	var work sync.WaitGroup
	for i, g := range all {
		work.Go(func() { _, errs[i] = k.Release(ctx, g) })
	}
	work.Wait()
	for i, g := range all {
		if errs[i] != nil && fault.KindOf(errs[i]) != fault.NotFound { // over
			k.t.Kept = append(k.t.Kept, g)
		}
	}
}
