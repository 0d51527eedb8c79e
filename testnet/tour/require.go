package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

const satisfied, insufficient = "satisfied", "insufficient_nodes"

// requirementSatisfied requires two instances of a service with one. A waiter at another peer
// wakes after the second instance, which registers late at a third peer.
func requirementSatisfied(ctx context.Context, t *Tour) (string, error) {
	const name = "tour"
	all := t.Network.Living()
	here, there, third := all[0], all[1], all[2%len(all)]
	if err := register(ctx, here, required, comer("early")); err != nil {
		return "", err
	}
	err := rest(ctx, here, func(ctx context.Context, api *app.REST) error {
		return api.Require(ctx, name, app.Requirement{Service: required, Min: 2})
	})
	if err != nil {
		return "", err
	}
	if err := stalled(ctx, there, name); err != nil {
		return "", err
	}
	woken := make(chan error, 1)
	go func() { // ends with its call; the caller waits for it
		woken <- restWithin(ctx, 2*turn, there, func(ctx context.Context, api *app.REST) error { return satisfiedBy(ctx, api, name, turn.String()) })
	}()
	began := time.Now()
	err = register(ctx, third, required, comer("late"))
	if failed := <-woken; failed != nil || err != nil {
		return "", fault.New("tour.requirementSatisfied", fault.Conflict, "registered: %v; woken: %w", err, failed)
	}
	took := time.Since(began)
	for _, p := range all { // peers without a waiter see the status too
		err := await.Until(ctx, soon, p.Name+" knows", func(ctx context.Context) error {
			return rest(ctx, p, func(ctx context.Context, api *app.REST) error { return satisfiedBy(ctx, api, name, "") })
		})
		if err != nil {
			return "", err
		}
	}
	err = rest(ctx, there, func(ctx context.Context, api *app.REST) error { return api.DropRequirement(ctx, name) })
	return fmt.Sprintf("2 required and 1 there: insufficient; a waiter at %s was woken %v after the second came at %s",
		there.Name, took.Round(100*time.Microsecond), third.Name), err
}

// stalled waits until a peer knows that a requirement lacks one of two instances.
func stalled(ctx context.Context, p *network.Peer, name string) error {
	return await.Until(ctx, soon, p.Name+" knows what is missing", func(ctx context.Context) error {
		return rest(ctx, p, func(ctx context.Context, api *app.REST) error {
			got, err := api.Stands(ctx, name, "")
			if want := (app.Standing{State: insufficient, Needed: 2, Available: 1}); err == nil && got != want {
				return fault.New("tour.stalled", fault.Conflict, "it stands at %+v, not %+v", got, want)
			}
			return err
		})
	})
}

func satisfiedBy(ctx context.Context, api *app.REST, name, wait string) error {
	got, err := api.Stands(ctx, name, wait)
	if err == nil && got.State != satisfied {
		return fault.New("tour.satisfiedBy", fault.Conflict, "it stands at %+v", got)
	}
	return err
}
