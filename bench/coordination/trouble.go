package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
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

// storm lets many leases end at one time, and compares the work of other clients during and
// before.
func (s *session) storm(ctx context.Context) error {
	fmt.Fprintf(s.Out, "\n%d leases that end within a second: a client each that writes, reads and locks, before and meanwhile; "+
		"then how long a lock outlived the time to live of a holder that died in it\n\n"+
		"| | writes /s | reads /s | locks /s | rate kept, worst | lock freed after its TTL, ms | all ended after, s | load |\n|---|---|---|---|---|---|---|---|\n", s.leases)
	for _, one := range s.systems {
		got, err := one.do(ctx, task{Op: opStorm, Batch: s.leases, Duration: s.Duration})
		if err != nil {
			return fault.Wrap(one.name(), err)
		}
		x := got.Extra
		fmt.Fprintf(s.Out, "| %s | %.0f, %.0f | %.0f, %.0f | %.0f, %.0f | %.2f | %.0f | %.1f | %s |\n", one.name(),
			x["write before"], x["write"], x["read before"], x["read"], x["lock before"], x["lock"],
			min(x["write"]/x["write before"], x["read"]/x["read before"], x["lock"]/x["lock before"]), x["freed"], x["ended"], kit.Load())
	}
	return nil
}

// storm runs the storm of one system.
func (f *fleet) storm(ctx context.Context, t task) (kit.Sample, error) {
	const granting = 1500 // leases a second, at least; otherwise more peers start first
	out := kit.Sample{Extra: map[string]float64{}}
	ends := time.Now().Add(time.Duration(t.Batch/granting)*time.Second + 2*t.Duration + 15*time.Second)
	if err := f.crowd(ctx, t.Batch, func() time.Duration { return time.Until(ends) }); err != nil {
		return out, err
	}
	if err := f.others(ctx, t.Duration, func(op string, s kit.Sample) { out.Extra[op+" before"] = s.Rate() }); err != nil {
		return out, err
	}
	freed, err := f.dies(ctx, time.Until(ends))
	if err != nil {
		return out, err
	}
	if err := kit.Rest(ctx, time.Until(ends)); err != nil {
		return out, err
	}
	err = f.others(ctx, t.Duration, func(op string, s kit.Sample) { out.Extra[op] = s.Rate() })
	if err != nil {
		return out, err
	}
	out.Extra["freed"] = float64(<-freed) / 1e6
	err = kit.Until(ctx, 5*time.Minute, asking, "the leases ended", func(ctx context.Context) error {
		g, err := f.clients[0].Coordination().Group(ctx)
		if err == nil && g.Leases > 100 { // sessions are leases too
			err = fault.New("storm", fault.Unavailable, "%d are left", g.Leases)
		}
		return err
	})
	out.Extra["ended"] = time.Since(ends).Seconds()
	return out, err
}

// crowd grants leases through additional peers, since each peer has a quota, and stops those
// peers afterwards.
func (f *fleet) crowd(ctx context.Context, leases int, ttl func() time.Duration) error {
	const each = 9000
	clients := []*client.Client{f.clients[0], f.clients[1], f.clients[2]}
	for i := members; i*each < leases; i++ {
		if len(f.ids) <= i {
			if err := f.house(ctx, i); err != nil {
				return err
			}
		}
		free, err := kit.Ports(2)
		if err != nil {
			return err
		}
		p := f.peer(i, "/ip4/127.0.0.1/tcp/"+free[0], "127.0.0.1:"+free[1])
		if err := p.Start(); err != nil {
			return err
		}
		defer p.Stop()
		c, err := client.New("127.0.0.1:" + free[1])
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // no call is in flight
		clients = append(clients, c)
	}
	for _, c := range clients {
		err := kit.Until(ctx, serving, asking, "a client of the group", func(ctx context.Context) error {
			_, _, err := ops.Of(c.Coordination()).Range(ctx, ops.Query{Span: coord.Exactly("ready")}, ops.Linearizable)
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := grants(ctx, clients, leases, ttl)
	return err
}

// dies binds a lock to an unrenewed lease that ends with the storm, and returns the delay of its
// end for a waiter.
func (f *fleet) dies(ctx context.Context, ttl time.Duration) (<-chan time.Duration, error) {
	const name = "bench/dies"
	// The lease ends in the middle of the storm.
	granted := time.Now()
	id, ttl, err := f.client(0).Leases().Grant(ctx, ttl+500*time.Millisecond)
	if err != nil {
		return nil, err
	}
	claim := ops.Command{Op: &ops.Lock{Name: name, Lease: id, Wait: true}}
	if _, _, err := ops.Of(f.client(0).Coordination()).Acquire(ctx, claim, time.Second); err != nil {
		return nil, err
	}
	waiting, err := f.client(1).Session(ctx, client.TTL(sessionTTL))
	if err != nil {
		return nil, err
	}
	freed := make(chan time.Duration, 1)
	go func() { // ends with the free lock, at the latest with ctx
		held, err := waiting.Lock(ctx, name)
		if err == nil {
			freed <- time.Since(granted) - ttl
			_ = held.Unlock(ctx) // otherwise it lapses
		} else {
			freed <- time.Hour
		}
		_ = waiting.Close(ctx) // the same
	}()
	return freed, nil
}

// others lets three clients do one operation each, all at the same time, and reports the work of
// each.
func (f *fleet) others(ctx context.Context, d time.Duration, tell func(op string, s kit.Sample)) error {
	sessions, end, err := f.sessions(ctx, 1)
	defer end()
	if err != nil {
		return err
	}
	value := make([]byte, 128)
	put := func(ctx context.Context) (int, error) {
		_, _, err := ops.Of(f.client(0).Coordination()).Do(ctx, ops.Command{
			Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "bench/other", Value: value}}}},
		})
		return 1, err
	}
	if _, err := put(ctx); err != nil {
		return err
	}
	work := map[string]kit.Worker{
		"write": put,
		"read":  readOf(f.client(1), "bench/other"),
		"lock": func(ctx context.Context) (int, error) {
			held, err := sessions[0].Lock(ctx, "bench/others")
			if err != nil {
				return 0, err
			}
			return 1, held.Unlock(ctx)
		},
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for op, w := range work {
		all.Go(func() {
			got := kit.Closed(ctx, d, []kit.Worker{w})
			mu.Lock()
			defer mu.Unlock()
			tell(op, got)
		})
	}
	all.Wait()
	return nil
}
