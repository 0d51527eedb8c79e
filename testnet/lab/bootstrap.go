package lab

import (
	"context"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

const strandedFor = 20 * time.Second // length of the watch of a newcomer

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
