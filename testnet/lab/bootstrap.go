package lab

import (
	"context"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	strandedFor = 20 * time.Second // length of the watch of a newcomer
	joinLimit   = time.Minute      // from the return of the bootstrap peer
)

// bootstrapGone stops the only bootstrap peer. A restarted peer knows others and rejoins. A newcomer
// reports its isolation, gives no complete answer, and joins after the return of the bootstrap peer.
func bootstrapGone(ctx context.Context, w *world) error {
	public, err := w.servers(ctx, officeServer, publicAddress, nil)
	if err != nil {
		return err
	}
	key, err := w.register(ctx, public[1], "of-a-server")
	if err != nil {
		return err
	}
	bootstrap, old := public[0], public[2]
	bootstrap.stop(ctx)
	old.stop(ctx)
	w.say("the bootstrap peer is gone, and %s restarts", old.name)
	if err := old.start(); err != nil {
		return err
	}
	w.watch(ctx, old)
	if err := old.awaitReady(ctx, startLimit, officeServer-2); err != nil {
		w.violated("%v", err)
	}
	if err := w.allFind(ctx, []*peer{old}, findLimit, key); err != nil {
		return err
	}
	fresh, err := w.server(ctx, "newcomer", officeServer, []*peer{bootstrap})
	if err != nil {
		return err
	}
	if err := stranded(ctx, w, fresh); err != nil {
		return err
	}
	if err := bootstrap.start(); err != nil {
		return err
	}
	began := time.Now()
	if err := fresh.awaitReady(ctx, joinLimit, officeServer-1); err != nil {
		w.violated("%v", err)
		return ctx.Err()
	}
	w.say("%s joined %.1f s after the start of the bootstrap peer", fresh.name, time.Since(began).Seconds())
	return w.allFind(ctx, []*peer{fresh, bootstrap}, findLimit, key)
}

// stranded requires a peer without contacts to be unready, with the reason.
func stranded(ctx context.Context, w *world, p *peer) error {
	if err := await.Until(ctx, startLimit, p.name+" answers", func(ctx context.Context) error {
		_, err := p.look(ctx)
		return err
	}); err != nil {
		return err
	}
	w.watch(ctx, p)
	if err := await.Pause(ctx, strandedFor); err != nil {
		return err
	}
	s, err := p.look(ctx)
	if err != nil {
		return err
	}
	ready, err := p.get(ctx, "/readyz")
	if err != nil {
		return err
	}
	a, err := w.find(ctx, p, true)
	switch {
	case s.Ready || len(s.Conditions) == 0:
		w.violated("%s knows nobody: ready %v, conditions %v", p.name, s.Ready, names(s.Conditions))
	case err == nil && a.Complete:
		w.violated("%s knows nobody and says complete", p.name)
	case err != nil && fault.KindOf(err) != fault.Unavailable:
		w.violated("%s knows nobody and fails with %v", p.name, err)
	}
	w.say("%s is alone: %s", p.name, strings.TrimSpace(ready))
	return w.diagnosed(ctx, p, "network", "PROBLEM", "bootstrap")
}
