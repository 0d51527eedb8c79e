package tour

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/sample"
)

// offerAnnounced registers a server with an offer. A consumer at another peer finds the offer
// while the server lives, and loses it after the end of the server.
func offerAnnounced(ctx context.Context, t *Tour) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := app.Serve()
	if err != nil {
		return "", err
	}
	defer s.Die()
	offers, err := market.Offers(t.Cities, market.MinOffers, 1)
	if err != nil {
		return "", err
	}
	offer, home := offers[0], t.Network.Peers[0]
	offer.ID, offer.Metadata.Endpoints = "cdn-while-served", []string{"http://" + s.Address()}
	q := query.Query{Type: offer.Metadata.Type, ProviderID: home.ID.String()}
	q.Health = query.HealthAny
	seen, err := t.watch(ctx, q)
	if err != nil {
		return "", err
	}
	registration := checked(s)
	registration.Offer = offer
	began := time.Now()
	if err := register(ctx, home, web, registration); err != nil {
		return "", err
	}
	if err := sighted(ctx, seen, offer.ID, "added"); err != nil {
		return "", err
	}
	announced := time.Since(began)
	died := time.Now()
	s.Die()
	if err := sighted(ctx, seen, offer.ID, "withdrawn"); err != nil {
		return "", err
	}
	withdrawn := time.Since(died)
	err = home.API.Deregister(ctx, web, registration.ID)
	if kind := fault.KindOf(err); err != nil && kind != fault.Gone && kind != fault.NotFound { // on a busy machine it may be long dead
		return "", err
	}
	return fmt.Sprintf("found at %s %v after the registration with %s, and withdrawn %v after the server's death", t.consumer().Name,
		announced.Round(time.Millisecond), home.Name, withdrawn.Round(time.Millisecond)), nil
}

// sighted waits for an event of one record. Updates from new measurements may come earlier.
func sighted(ctx context.Context, seen <-chan sighting, id, kind string) error {
	for {
		s, err := nextSighting(ctx, seen)
		if err != nil {
			return fault.New("tour.sighted", fault.KindOf(err), "%s is not %s: %w", id, kind, err)
		}
		if s.Record != nil && s.Record.ID == id && string(s.Kind) == kind {
			return nil
		}
	}
}

// withdraw ends one offer at its provider. No living peer may find it afterwards, by search or by
// key; other offers of the provider stay.
func withdraw(ctx context.Context, t *Tour) (string, error) {
	provider := t.Network.Peers[0]
	owned := func(l market.Listing) bool { return l.Provider == provider.ID }
	all := t.Market.Where(owned)
	if len(all) == 0 {
		return "", fault.New("tour.withdraw", fault.Invalid, "%s offers nothing: register more", provider.Name)
	}
	gone := all[0]
	if _, err := resolve(ctx, t.consumer(), gone.Key); err != nil {
		return "", fault.Wrap("before the withdrawal", err)
	}
	q := query.Query{Type: gone.Type(), ProviderID: provider.ID.String(), Sort: query.SortPrice, Limit: queries.MaxLimit}
	q.Health = query.HealthAny

	began := time.Now()
	if _, err := provider.Offers().Withdraw(ctx, gone.Offer.ID); err != nil {
		return "", err
	}
	t.Market.Withdraw(gone.Name())
	for _, p := range t.Network.Living() {
		err := await.Until(ctx, soon, gone.Offer.ID+" is gone from "+p.Name, func(ctx context.Context) error {
			return t.lacks(ctx, p, q, gone.Key)
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s of %s gone from %d peers after %v", gone.Offer.ID, provider.Name,
		len(t.Network.Living()), time.Since(began).Round(time.Millisecond)), nil
}

// pause has a provider leave one offer out of all answers, as a peer that stops does with all of them, and serve it again.
func pause(ctx context.Context, t *Tour) (string, error) {
	provider := t.Network.Peers[0]
	all := t.Market.Where(func(l market.Listing) bool { return l.Provider == provider.ID })
	if len(all) == 0 {
		return "", fault.New("tour.pause", fault.Invalid, "%s offers nothing: register more", provider.Name)
	}
	id, q := all[0].Offer.ID, query.Query{Type: all[0].Type(), ProviderID: provider.ID.String(), Limit: queries.MaxLimit}
	everywhere := func(what string, holds func(query.AnswerView) bool) error {
		return at(ctx, t.Network.Living(), q, id+what, holds)
	}
	found := func(a query.AnswerView) bool { return lists(a, id) }
	if err := everywhere(" is found at ", found); err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := provider.Client.Offers().Pause(ctx, id, 0); err != nil {
		return "", err
	}
	err := everywhere(" is gone from ", func(a query.AnswerView) bool {
		return !found(a) && slices.ContainsFunc(a.Excluded, func(e query.Excluded) bool { return e.ID == id && e.Reason == "paused by its provider" })
	})
	if err != nil {
		return "", err
	}
	gone := time.Since(began)
	if _, err := provider.Client.Offers().Resume(ctx, id); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of %s gone from %d peers after %v, and back", id, provider.Name, len(t.Network.Living()), gone.Round(time.Millisecond)),
		everywhere(" is back at ", found)
}

// at waits until the answers of peers hold.
func at(ctx context.Context, peers []*network.Peer, q query.Query, what string, holds func(query.AnswerView) bool) error {
	for _, p := range peers {
		err := await.Until(ctx, soon, what+p.Name, func(ctx context.Context) error {
			a, err := ask(ctx, p, q)
			if err == nil && !holds(a) {
				err = fault.New("tour.at", fault.Conflict, "%d results, left out: %v", len(a.Results), a.Excluded)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lists reports whether an answer has an offer of one provider.
func lists(a query.AnswerView, id string) bool {
	return slices.ContainsFunc(a.Results, func(r query.ResultView) bool { return r.Record.ID == id })
}

// stopPeer stops a peer in order, and starts it again. No other peer sells its offers meanwhile.
func stopPeer(ctx context.Context, t *Tour) (string, error) {
	leaver := t.Network.Peers[2]
	all := t.Market.Where(func(l market.Listing) bool { return l.Provider == leaver.ID && l.Usable() })
	if len(all) == 0 {
		return "", fault.New("tour.stopPeer", fault.Invalid, "%s offers nothing: register more", leaver.Name)
	}
	id, q := all[0].Offer.ID, query.Query{Type: all[0].Type(), ProviderID: leaver.ID.String(), Limit: queries.MaxLimit}
	found := func(a query.AnswerView) bool { return lists(a, id) }
	if err := at(ctx, t.Network.Living(), q, id+" is found at ", found); err != nil {
		return "", err
	}
	leaver.Interrupt()
	began := time.Now()
	err := at(ctx, t.Network.Living(), q, leaver.Name+" is sold no more by ", func(a query.AnswerView) bool {
		return len(a.Results) == 0 && slices.ContainsFunc(a.Excluded, func(e query.Excluded) bool { return e.Reason == "stopped by its provider" })
	})
	if err != nil {
		return "", err
	}
	gone := time.Since(began)
	if err := t.Network.Restart(ctx, leaver); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s stopped: its offers gone from %d peers %v after its end, and back after its start", leaver.Name, len(t.Network.Living())-1, gone.Round(time.Millisecond)),
		at(ctx, t.Network.Living(), q, id+" is back at ", found)
}

// liarFoundOut has a provider sell a service that does not exist and claims to be perfect. Peers speak to it, and to what the
// provider sells honestly.
func liarFoundOut(ctx context.Context, t *Tour) (string, error) {
	const lie = "cdn-nowhere"
	liar, err := app.Serve()
	if err != nil {
		return "", err
	}
	liar.Die()
	offers, err := market.Offers(t.Cities, market.MinOffers, 1)
	if err != nil {
		return "", err
	}
	home, perfect, o := t.Network.Peers[0], 100.0, offers[0]
	q := query.Query{Type: o.Metadata.Type, ProviderID: home.ID.String(), Limit: queries.MaxLimit}
	o.ID, o.Metadata.Endpoints, o.Health = lie, []string{"http://" + liar.Address()}, &records.Health{Status: "HEALTHY", UptimePercent: &perfect}
	if _, err := home.Offers().Register(ctx, o); err != nil {
		return "", err
	}
	began := time.Now()
	var said string
	others := slices.DeleteFunc(t.Network.Living(), func(p *network.Peer) bool { return p == home }) // nobody is a witness of itself
	err = at(ctx, others, q, lie+" is found out by ", func(a query.AnswerView) bool {
		for _, e := range a.Excluded {
			if e.ID == lie {
				said = e.Reason
			}
		}
		return said != "" && !lists(a, lie) && slices.ContainsFunc(a.Results, func(r query.ResultView) bool {
			return r.Endpoint != nil && r.Endpoint.State == records.Answers
		})
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	if _, err := home.Offers().Withdraw(ctx, lie); err != nil {
		return "", err
	}
	return fmt.Sprintf("it claims to be perfect; %d peers leave it out after %v (%s), and show that honest ones answer", len(others),
		took.Round(time.Millisecond), said), nil
}

// lacks reports a withdrawn offer that a peer still finds, or an expected offer that it lacks.
func (t *Tour) lacks(ctx context.Context, p *network.Peer, q query.Query, key string) error {
	a, err := ask(ctx, p, q)
	if err != nil {
		return err
	}
	if err := t.judge(q, a); err != nil {
		return err
	}
	switch found, err := resolve(ctx, p, key); {
	case err == nil:
		return fault.New("tour.withdraw", fault.Conflict, "%s resolves %s to sequence %d", p.Name, key, found)
	case !errors.Is(err, fault.NotFound):
		return err
	}
	return nil
}

// resolve returns the sequence of the record under a key.
func resolve(ctx context.Context, p *network.Peer, key string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := p.Offers().Resolve(ctx, key)
	return r.Sequence, fault.Wrap(p.Name, err)
}

// killVictim kills a provider like a crash.
func (t *Tour) killVictim(ctx context.Context) error {
	if err := t.victimAnswers(ctx, t.ownedByVictim(), query.HealthUsable); err != nil {
		return fault.Wrap("before the kill", err)
	}
	t.killedAt = time.Now()
	t.victim().Kill()
	t.Market.Down(t.victim().ID)
	return nil
}

func (t *Tour) ownedByVictim() market.Selection {
	return t.Market.Where(func(l market.Listing) bool { return l.Provider == t.victim().ID })
}

// killedNotUsable: the records of the killed provider stay, but the consumer soon lists none of them as usable, and
// shows the failed measurement beside the claimed health.
func killedNotUsable(ctx context.Context, t *Tour) (string, error) {
	victim, owned := t.victim(), t.ownedByVictim()
	err := await.Until(ctx, soon, "no service of "+victim.Name+" is usable", func(ctx context.Context) error {
		return t.victimAnswers(ctx, owned, query.HealthUsable)
	})
	if err != nil {
		return "", err
	}
	took := time.Since(t.killedAt)
	claims := map[string]int{}
	for _, kind := range owned.Kinds() {
		a, err := ask(ctx, t.consumer(), t.ofVictim(kind, query.HealthAny))
		if err != nil {
			return "", err
		}
		if err := shownDead(a, owned, claims); err != nil {
			return "", err
		}
	}
	if err := t.victimAnswers(ctx, owned, query.HealthAny); err != nil {
		return "", fault.Wrap("with any health", err)
	}
	if claims["HEALTHY"] == 0 {
		return "", fault.New("tour.killedNotUsable", fault.Invalid, "%s claimed to be healthy with none of its services: register more", victim.Name)
	}
	return fmt.Sprintf("none of the %d services of %s usable %v after the kill; found unreachable beside its claim HEALTHY of %d",
		len(owned), victim.Name, took.Round(time.Millisecond), claims["HEALTHY"]), nil
}

// victimAnswers compares the consumer's results for the offers of the victim with the registered
// offers.
func (t *Tour) victimAnswers(ctx context.Context, owned market.Selection, health query.Health) error {
	for _, kind := range owned.Kinds() {
		q := t.ofVictim(kind, health)
		a, err := ask(ctx, t.consumer(), q)
		if err != nil {
			return err
		}
		if err := t.judge(q, a); err != nil {
			return fault.Wrap(kind, err)
		}
	}
	return nil
}

func (t *Tour) ofVictim(kind string, health query.Health) query.Query {
	q := query.Query{Type: kind, ProviderID: t.victim().ID.String(), Sort: query.SortPrice, Limit: queries.MaxLimit}
	q.Health = health
	return q
}

// shownDead checks that each result is measured as unreachable beside an unchanged claim, and
// counts the claims.
func shownDead(a query.AnswerView, owned market.Selection, claims map[string]int) error {
	const op = "tour.shownDead"
	for _, r := range a.Results {
		if r.Measured == nil || r.Measured.State != records.Unreachable {
			return fault.New(op, fault.Conflict, "%s is not shown as unreachable", r.Record.ID)
		}
		for _, l := range owned {
			if claim := r.Record.Health.Status; l.Offer.ID == r.Record.ID && l.Offer.Health.Status != claim {
				return fault.New(op, fault.Conflict, "%s claims %s, and its provider said %s", r.Record.ID, claim, l.Offer.Health.Status)
			}
		}
		claims[r.Record.Health.Status]++
	}
	return nil
}

const (
	pace       = 50 * time.Millisecond // least time between two updates
	eventLimit = time.Minute           // from an update to its event
)

// watchUpdates changes prices of compute offers, one provider after the other, under a watch of a
// consumer at another peer. It measures from before each call of Update to the arrival of the
// event with its price, on the clock of this process.
func watchUpdates(ctx context.Context, t *Tour) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := query.Query{Type: "compute"}
	q.Health = query.HealthAny
	seen, err := t.watch(ctx, q)
	if err != nil {
		return "", err
	}
	services := t.Market.Where(func(l market.Listing) bool { return l.Type() == "compute" && !l.Down && l.Provider != t.consumer().ID })
	if len(services) == 0 {
		return "", fault.New("tour.watchUpdates", fault.Invalid, "nobody but the consumer offers compute: register more")
	}
	providers, raised := map[string]bool{}, map[records.Name]market.Listing{}
	var published, visible []time.Duration
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := range t.Updates {
		// A stride through the list, which is ordered by provider.
		l := services[i*len(services)/min(t.Updates, len(services))%len(services)]
		u, err := t.update(ctx, l, dearer(l, i/len(services)), seen)
		if err != nil {
			return "", err
		}
		providers[l.Provider.String()], raised[l.Name()] = true, l
		published, visible = append(published, u.published), append(visible, u.visible)
		<-tick.C
	}
	t.PublishP95, t.UpdateP99 = sample.Quantile(published, 0.95), sample.Quantile(visible, 0.99)
	q.Sort, q.Limit = query.SortPrice, queries.MaxLimit
	if _, err := t.expect(ctx, q); err != nil {
		return "", fault.Wrap("the search after the updates", err)
	}
	for _, l := range raised { // the prices of the beginning return
		if _, err := t.update(ctx, l, *l.Offer.Pricing.BasePrice, seen); err != nil {
			return "", err
		}
		<-tick.C
	}
	return fmt.Sprintf("%d updates of %d providers, seen after %v (median), %v (p99)", t.Updates, len(providers),
		sample.Quantile(visible, 0.5).Round(10*time.Microsecond), t.UpdateP99.Round(10*time.Microsecond)), nil
}

// dearer is the price of an offer in a round of changes: 1 to 5 percent more than in the beginning, and another one in each round.
func dearer(l market.Listing, round int) float64 {
	return math.Round(*l.Offer.Pricing.BasePrice*float64(101+round%5)*100) / 1e4
}

// sighting is an event of the watch with its arrival time.
type sighting struct {
	client.Event
	at  time.Time
	err error // the watch ended
}

// watch starts a watch at the consumer and skips the initial matches. Its goroutine ends with
// ctx.
func (t *Tour) watch(ctx context.Context, q query.Query) (<-chan sighting, error) {
	w, err := t.consumer().Offers().Watch(ctx, q, "")
	if err != nil {
		return nil, err
	}
	seen := make(chan sighting, 16)
	go func() {
		for {
			ev, err := w.Next()
			select {
			case seen <- sighting{Event: ev, at: time.Now(), err: err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		s, err := nextSighting(ctx, seen)
		if err != nil {
			return nil, fault.Wrap("the watch's present matches", err)
		}
		if s.Kind == "progress" {
			return seen, nil
		}
	}
}

func nextSighting(ctx context.Context, seen <-chan sighting) (sighting, error) {
	limit := time.NewTimer(eventLimit)
	defer limit.Stop()
	select {
	case s := <-seen:
		return s, s.err
	case <-limit.C:
		return sighting{}, fault.New("tour.watch", fault.Timeout, "no event within %v", eventLimit)
	case <-ctx.Done():
		return sighting{}, fault.Wrap("tour.watch", ctx.Err())
	}
}

// timing has the durations of one update, both from before its call.
type timing struct {
	published time.Duration // to its receipt
	visible   time.Duration // to its event
}

// update sets the price of an offer and waits for its event.
func (t *Tour) update(ctx context.Context, l market.Listing, price float64, seen <-chan sighting) (timing, error) {
	o := priced(l.Offer, price)
	callCtx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	began := time.Now()
	receipt, err := t.peer(l).Offers().Update(callCtx, o)
	if err != nil {
		return timing{}, err
	}
	u := timing{published: time.Since(began)}
	t.Market.Update(l.Provider, o)
	for {
		s, err := nextSighting(ctx, seen)
		if err != nil {
			return timing{}, fault.Wrap("update of "+l.Name().String(), err)
		}
		if s.Record != nil && s.Record.ID == o.ID && s.Record.Sequence == receipt.Sequence {
			u.visible = s.at.Sub(began)
			return u, showsPrice(s, price)
		}
	}
}

func showsPrice(s sighting, price float64) error {
	if got := s.Record.Pricing.BasePrice; s.Kind != "updated" || got == nil || *got != price {
		return fault.New("tour.update", fault.Conflict, "the event is %q and does not show the price %v", s.Kind, price)
	}
	return nil
}

// priced copies an offer with another price, without sharing changed parts.
func priced(o records.Offer, price float64) records.Offer {
	pricing := *o.Pricing
	pricing.BasePrice = &price
	o.Pricing = &pricing
	return o
}

// peer returns the provider of a listing.
func (t *Tour) peer(l market.Listing) *network.Peer {
	for _, p := range t.Network.Peers {
		if p.ID == l.Provider {
			return p
		}
	}
	panic("tour: a listing without its provider: " + l.Name().String()) // impossible: peers registered all listings
}
