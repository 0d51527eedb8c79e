package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	lossyServers = 8
	lossyOffers  = 40 // services, spread over the peers
	lossLimit    = time.Minute
)

// bad is a network with 150 ms round trips that loses and reorders.
func bad() netns.Quality {
	return netns.Quality{Delay: 75 * time.Millisecond, Loss: 0.05, Reorder: 0.1, Late: 20 * time.Millisecond}
}

// loss plays a whole network over bad links: peers join, services come and go, locks change hands.
func loss(ctx context.Context, w *world) error {
	w.internet.SetQuality(bad())
	n, offers := lossyServers, lossyOffers
	if w.Short {
		n, offers = 5, 10
	}
	began := time.Now()
	public, err := w.servers(ctx, n, publicAddress, func(s *process.Spec) {
		s.Settings = []string{"COORDINATION_ENABLED=true", "COORDINATION_CLIENTS=network"}
	})
	if err != nil {
		return err
	}
	w.say("ready after %.1f s", time.Since(began).Seconds())
	for _, p := range public {
		w.watch(ctx, p)
	}
	keys := make([]string, offers)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i := range offers {
		group.Go(func() (err error) {
			keys[i], err = w.register(groupCtx, public[i%n], fmt.Sprintf("offer-%d", i))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := w.allFind(ctx, public, lossLimit, keys...); err != nil {
		return err
	}
	for i := 0; i < offers; i += 2 {
		if err := w.withdraw(ctx, public[i%n], fmt.Sprintf("offer-%d", i)); err != nil {
			return err
		}
	}
	for i := 0; i < offers; i += 2 {
		for _, p := range public {
			if err := w.awaitGone(ctx, p, keys[i], lossLimit); err != nil {
				return err
			}
		}
	}
	w.say("%d services withdrawn, gone at all peers; %d packets were lost", offers/2, w.internet.Dropped())
	return errors.Join(share(ctx, w, public[0], public[n-1]), w.sound(ctx, public[0], public[n-1]))
}
