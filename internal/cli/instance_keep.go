package cli

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/instance"
)

// keepServices registers instances and keeps them registered while a command runs, or until
// interrupted without a command.
func (r *remote) keepServices(ctx context.Context, c *client.Client, command []string, list []instance.Registration) error {
	var kept []*client.InstanceHandle
	defer func() { r.deregister(ctx, kept) }()
	connecting, cancel := r.connecting(ctx)
	defer cancel()
	for _, reg := range list {
		p, err := c.Services().Register(connecting, reg)
		if err != nil {
			return err
		}
		kept = append(kept, p)
	}
	if len(command) > 0 {
		return r.runRegistered(ctx, kept, command)
	}
	out := results{of: len(kept)}
	for _, p := range kept {
		out.addInstance(p.Instance())
	}
	if err := out.print(r); err != nil {
		return err
	}
	return r.waitRegistered(ctx, kept)
}

// waitRegistered waits until interrupted. It reports instances with a permanent
// removal by the peer, and returns after the last of them.
func (r *remote) waitRegistered(ctx context.Context, kept []*client.InstanceHandle) error {
	ended := make(chan *client.InstanceHandle, len(kept))
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range kept {
		waiting.Go(func() {
			select {
			case <-p.Done():
				ended <- p
			case <-ctx.Done():
			}
		})
	}
	var last error
	for range kept {
		select {
		case p := <-ended:
			last = p.Err()
			r.say("%s is no longer registered: %s", p.Instance().ID, message(last))
		case <-ctx.Done():
			return nil
		}
	}
	return last
}

// runRegistered runs a command. It reports the end of a registration, and lets the command
// continue.
func (r *remote) runRegistered(ctx context.Context, kept []*client.InstanceHandle, command []string) error {
	first := kept[0].Instance()
	p, err := r.start(command, "BLACKHOLE_SERVICE="+first.Service, "BLACKHOLE_INSTANCE_ID="+first.ID, "BLACKHOLE_LEASE="+first.Lease)
	if err != nil {
		return err
	}
	reporting, stop := context.WithCancel(context.Background())
	var reporter sync.WaitGroup
	reporter.Go(func() { _ = r.waitRegistered(reporting, kept) })
	defer reporter.Wait()
	defer stop()
	return p.wait(ctx)
}

// deregister deregisters instances within the time for cleanup.
func (r *remote) deregister(ctx context.Context, kept []*client.InstanceHandle) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, p := range kept {
		i := p.Instance()
		if err := p.Close(ctx); err != nil {
			r.say("warning: %s could not be deregistered; it ends within %s: %s", i.ID, i.Spec.RemoveAfter, message(err))
		}
	}
}
