package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
)

// killProvider kills a provider like a crash. Its records stay, but the consumer soon lists none
// of them as usable, and shows the failed measurement beside the claimed health.
func killProvider(ctx context.Context, t *Tour) (string, error) {
	victim := t.victim()
	owned := t.Market.Where(func(l market.Listing) bool { return l.Provider == victim.ID })
	if err := t.victimAnswers(ctx, owned, query.HealthUsable); err != nil {
		return "", fault.Wrap("before the kill", err)
	}
	began := time.Now()
	t.bereft = began
	victim.Kill()
	t.Market.Down(victim.ID)
	err := await.Until(ctx, soon, "no service of "+victim.Name+" is usable", func(ctx context.Context) error {
		return t.victimAnswers(ctx, owned, query.HealthUsable)
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
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
		return "", fault.New("tour.killProvider", fault.Invalid, "%s claimed to be healthy with none of its services: register more", victim.Name)
	}
	return fmt.Sprintf("none of the %d services of %s usable %v after the kill; found unreachable beside its claim HEALTHY of %d",
		len(owned), victim.Name, took.Round(time.Millisecond), claims["HEALTHY"]), nil
}

// victimAnswers compares the consumer's results for the offers of the victim with the registered
// offers.
func (t *Tour) victimAnswers(ctx context.Context, owned market.Selection, health query.Health) error {
	for _, kind := range owned.Kinds() {
		a, err := ask(ctx, t.consumer(), t.ofVictim(kind, health))
		if err != nil {
			return err
		}
		want := t.Market.Where(func(l market.Listing) bool {
			return l.Provider == t.victim().ID && l.Type() == kind && (health == query.HealthAny || l.Usable())
		})
		if err := want.By(market.Price).Compare(a); err != nil {
			return fault.Wrap(kind, err)
		}
	}
	return nil
}

func (t *Tour) ofVictim(kind string, health query.Health) query.Query {
	q := query.Query{Type: kind, ProviderID: t.victim().ID.String(), Sort: query.SortPrice, Limit: query.MaxLimit}
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
