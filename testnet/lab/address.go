package lab

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	manyHomes    = 50
	fewHomes     = 12 // more than libp2p's own limit of 8 for one address
	officeServer = 6
)

// oneAddress starts many peers behind one address. Every peer becomes ready, and finds what a
// server and another peer of the office offer.
func oneAddress(ctx context.Context, w *world) error {
	n, limit := manyHomes, 5*time.Minute
	if w.Short {
		n, limit = fewHomes, 2*time.Minute
	}
	public, err := w.servers(ctx, officeServer, publicAddress, nil)
	if err != nil {
		return err
	}
	r, err := w.router("router", "62.10.1.1/32", preserving)
	if err != nil {
		return err
	}
	var office []*peer
	for i := range n {
		h, err := w.host(r.inside, fmt.Sprintf("desk-%d", i+1), fmt.Sprintf("192.168.1.%d/24", 10+i))
		if err != nil {
			return err
		}
		p, err := w.peer(ctx, h, nil)
		if err != nil {
			return err
		}
		p.spec.Bootstrap = addressesOf(public)
		if err := p.start(); err != nil {
			return err
		}
		office = append(office, p)
	}
	began := time.Now()
	w.say("%d peers started behind one address", n)
	var ready []*peer
	for _, p := range office {
		if err := p.awaitReady(ctx, max(limit-time.Since(began), time.Second), 1); err != nil {
			w.violated("%v", err)
			continue
		}
		ready = append(ready, p)
	}
	w.say("%d of %d are ready after %.1f s", len(ready), n, time.Since(began).Seconds())
	if len(ready) == 0 {
		return nil
	}
	for _, p := range []*peer{ready[0], ready[len(ready)-1]} {
		w.watch(ctx, p)
	}
	key, err := w.register(ctx, public[0], "of-a-server")
	if err != nil {
		return err
	}
	other, err := w.register(ctx, ready[0], "of-a-desk")
	if err != nil {
		return err
	}
	if err := w.allFind(ctx, ready, limit, key, other); err != nil {
		return err
	}
	if err := errors.Join(w.sound(ctx, ready[0], ready[len(ready)-1]), w.withdraw(ctx, ready[0], "of-a-desk")); err != nil {
		return err
	}
	return w.observe(ctx)
}
