package service

import (
	"context"
	"sync"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/guard"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/instance"
)

// registered are instances that a command keeps registered, with the console of the command.
type registered struct {
	*remote.Peer
	handles []*client.InstanceHandle
}

// keepServices registers instances and keeps them registered while a command runs, or until
// interrupted without a command.
func keepServices(ctx context.Context, r *remote.Peer, c *client.Client, command []string, list []instance.Registration) error {
	kept := &registered{Peer: r}
	defer func() { kept.end(ctx) }()
	connecting, cancel := r.Connecting(ctx)
	defer cancel()
	for _, reg := range list {
		p, err := c.Services().Register(connecting, reg)
		if err != nil {
			return err
		}
		kept.handles = append(kept.handles, p)
	}
	if len(command) > 0 {
		return kept.run(ctx, command)
	}
	out := remote.Results{Of: len(kept.handles)}
	for _, p := range kept.handles {
		addInstance(&out, p.Instance())
	}
	if err := out.Print(r); err != nil {
		return err
	}
	return kept.wait(ctx)
}

// wait waits until interrupted. It reports instances with a permanent
// removal by the peer, and returns after the last of them.
func (r *registered) wait(ctx context.Context) error {
	ended := make(chan *client.InstanceHandle, len(r.handles))
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range r.handles {
		waiting.Go(func() {
			select {
			case <-p.Done():
				ended <- p
			case <-ctx.Done():
			}
		})
	}
	var last error
	for range r.handles {
		select {
		case p := <-ended:
			last = p.Err()
			r.Say("%s is no longer registered: %s", p.Instance().ID, exit.Message(last))
		case <-ctx.Done():
			return nil
		}
	}
	return last
}

// run runs a command. It reports the end of a registration, and lets the command continue.
func (r *registered) run(ctx context.Context, command []string) error {
	first := r.handles[0].Instance()
	p, err := guard.Start(r.Console, command, "BLACKHOLE_SERVICE="+first.Service, "BLACKHOLE_INSTANCE_ID="+first.ID, "BLACKHOLE_LEASE="+first.Lease)
	if err != nil {
		return err
	}
	reporting, stop := context.WithCancel(context.Background())
	var reporter sync.WaitGroup
	reporter.Go(func() { _ = r.wait(reporting) })
	defer reporter.Wait()
	defer stop()
	return p.Wait(ctx)
}

// end deregisters the instances within the time for cleanup.
func (r *registered) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), remote.CleanupTimeout)
	defer cancel()
	for _, p := range r.handles {
		i := p.Instance()
		if err := p.Close(ctx); err != nil {
			r.Say("warning: %s could not be deregistered; it ends within %s: %s", i.ID, i.Spec.RemoveAfter, exit.Message(err))
		}
	}
}
