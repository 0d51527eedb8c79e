package cli

import (
	"context"
	"os/exec"
	"sync"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// keepServices registers instances for as long as a command runs, or until interrupted.
func (r *remote) keepServices(ctx context.Context, c *client.Client, g *registering, list []instance.Registration) error {
	var kept []*client.Presence
	defer func() { r.part(ctx, kept) }()
	reaching, cancel := ctx, context.CancelFunc(func() {})
	if g.patience > 0 {
		reaching, cancel = context.WithTimeout(ctx, g.patience)
	}
	defer cancel()
	for _, reg := range list {
		p, err := c.Services().Register(reaching, reg)
		if err != nil {
			return err
		}
		kept = append(kept, p)
	}
	if len(g.command) > 0 {
		return r.app.accompany(ctx, kept, g.command)
	}
	out := done{of: len(kept)}
	for _, p := range kept {
		out.add(p.Instance().ID, p.Instance(), nil)
	}
	if err := out.print(r); err != nil {
		return err
	}
	return r.app.stay(ctx, kept)
}

// stay waits until interrupted. It tells of instances that the peer does not take back, and ends
// with the last of them.
func (a App) stay(ctx context.Context, kept []*client.Presence) error {
	ended := make(chan *client.Presence)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range kept {
		waiting.Go(func() {
			select {
			case <-p.Done():
			case <-ctx.Done():
				return
			}
			select {
			case ended <- p:
			case <-ctx.Done():
			}
		})
	}
	var last error
	for range kept {
		select {
		case p := <-ended:
			last = p.Err()
			a.say("%s is registered no more: %s", p.Instance().ID, message(last))
		case <-ctx.Done():
			return nil
		}
	}
	return last
}

// accompany runs a command, which ends as it likes. Its instances are its own affair to it: that one is
// registered no more is told and ends nothing.
func (a App) accompany(ctx context.Context, kept []*client.Presence, command []string) error {
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // what the user asked for
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	first := kept[0].Instance()
	cmd.Env = append(append([]string{}, a.Environ...),
		"BLACKHOLE_SERVICE="+first.Service, "BLACKHOLE_INSTANCE_ID="+first.ID, "BLACKHOLE_LEASE="+first.Lease)
	c, err := start(cmd)
	if err != nil {
		return coded{126, fault.New("", fault.Internal, "%s: %w", command[0], err)}
	}
	telling, stop := context.WithCancel(context.Background())
	var told sync.WaitGroup
	told.Go(func() { _ = a.stay(telling, kept) })
	defer told.Wait()
	defer stop()
	select {
	case <-c.done:
	case <-ctx.Done():
		c.terminate()
		<-c.done
	}
	return c.ending()
}

// part deregisters instances, as far as that is quick.
func (r *remote) part(ctx context.Context, kept []*client.Presence) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	for _, p := range kept {
		i := p.Instance()
		if err := p.Close(ctx); err != nil {
			r.app.say("warning: %s could not be deregistered; it ends within %s: %s", i.ID, i.RemoveAfter, message(err))
		}
	}
}
