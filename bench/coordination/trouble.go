package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// settling is the pause after the return of a server.
const settling = 3 * time.Second

// failover kills the leader and times the next lock, repeatedly, each system in turn.
func (s *session) failover(ctx context.Context) error {
	fmt.Fprintf(s.Out, "\nSIGKILL of the leader to the next lock at a survivor, %d times\n\n| | median ms | p90 ms | max ms | load |\n|---|---|---|---|---|\n", s.kills)
	took := make([][]time.Duration, len(s.systems))
	for run := range s.kills {
		for i, one := range s.systems {
			got, err := one.do(ctx, task{Op: opKill, Clients: 1, Run: run})
			if err != nil {
				return fault.Wrap(one.name(), err)
			}
			took[i] = append(took[i], got.Max)
			if err := kit.Rest(ctx, time.Second); err != nil {
				return err
			}
			if err := one.mend(ctx); err != nil {
				return fault.Wrap(one.name(), err)
			}
		}
		if err := kit.Rest(ctx, settling); err != nil {
			return err
		}
	}
	for i, one := range s.systems {
		slices.Sort(took[i])
		fmt.Fprintf(s.Out, "| %s | %.0f | %.0f | %.0f | %s |\n", one.name(), kit.Ms(kit.Quantile(took[i], 0.5)), kit.Ms(kit.Quantile(took[i], 0.9)), kit.Ms(kit.Quantile(took[i], 1)), kit.Load())
	}
	return nil
}

// kill ends the leader like a crash and times the next lock, in a session at a survivor.
func (f *fleet) kill(ctx context.Context) (kit.Sample, error) {
	leader, err := f.leader(ctx)
	if err != nil {
		return kit.Sample{}, err
	}
	c, err := client.New(f.address[(leader+1)%members])
	if err != nil {
		return kit.Sample{}, err
	}
	defer func() { _ = c.Close() }() // no call is in flight
	s, err := c.Session(ctx, client.TTL(sessionTTL))
	if err != nil {
		return kit.Sample{}, err
	}
	defer func() { _ = s.Close(ctx) }() // otherwise it lapses
	cycle := func(name string) error {
		held, err := s.Lock(ctx, name)
		if err != nil {
			return err
		}
		return held.Unlock(ctx)
	}
	if err := cycle("bench/warm"); err != nil {
		return kit.Sample{}, err
	}
	began := time.Now()
	f.peers[leader].Kill()
	held, err := s.Lock(ctx, "bench/kill")
	took := time.Since(began)
	if err != nil {
		return kit.Sample{}, err
	}
	return kit.Sample{Count: 1, Seconds: took.Seconds(), Max: took}, held.Unlock(ctx)
}

// leader returns the index of the leader.
func (f *fleet) leader(ctx context.Context) (int, error) {
	at := -1
	err := kit.Until(ctx, serving, asking, "a leader", func(ctx context.Context) error {
		g, err := f.clients[0].Coordination().Group(ctx)
		if at = slices.Index(f.ids, g.Leader); err == nil && at < 0 {
			err = fault.New("leader", fault.Unavailable, "%q is none of us", g.Leader)
		}
		return err
	})
	return at, err
}
