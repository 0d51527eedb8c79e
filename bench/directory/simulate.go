package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/bench/figure"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	wholes  = 10               // peers with a whole catalog
	quiet   = 10 * time.Second // with keepalives only, two from each peer
	steady  = 10 * time.Second // of changes
	changed = 20               // changes a second
)

// simulate plays peers at a group of three members. All have a lease and register. Some have
// whole catalogs from the start; the catalogs of the others start empty after all registrations
// and follow from there.
func (s *session) simulate(ctx context.Context) (err error) {
	if s.profile != "" {
		stop, err := profile(s.profile)
		if err != nil {
			return err
		}
		defer stop()
	}
	g, err := s.core(ctx)
	if g != nil {
		defer g.stop()
	}
	if err != nil {
		return err
	}
	c := &crowd{session: s, core: g, gate: make(chan struct{})}
	defer func() { err = errors.Join(err, c.end()) }()
	if err := child.Rest(ctx, time.Second); err != nil {
		return err
	}
	s.table(fmt.Sprintf("%d peers played by one process, %d instances, a group of three processes; each peer has a lease, a watch and a connection; %d have whole catalogs, "+
		"the others what comes after the first registrations", s.crowd, s.crowded, min(wholes, s.crowd)), "", "", "CPU of the leader", "of its followers", "of all played", "load")
	for _, step := range []func(context.Context) error{c.idle, c.register, c.follow, c.keep, c.change} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// profile writes a profile of this process until it is stopped.
func profile(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fault.As("profile", fault.Invalid, err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, fault.As("profile", fault.Invalid, errors.Join(err, f.Close()))
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }, nil // a failed close shows in the profile
}

// crowd is the set of played peers.
type crowd struct {
	*session
	core  *core
	gate  chan struct{}
	peers []*played

	watching atomic.Int64
	sights   sync.Map // key -> *sight
	all      durations
}

// durations collects durations from several goroutines.
type durations struct {
	mu  sync.Mutex
	all []time.Duration
}

func (d *durations) add(one time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

func (c *crowd) end() error {
	var all sync.WaitGroup
	errs := make([]error, len(c.peers))
	for i, p := range c.peers {
		all.Go(func() { errs[i] = p.end() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// cost measures the processor time of leader and followers during f, in seconds.
func (c *crowd) cost(f func() error) (bill, error) {
	l := c.core.members[c.core.leader]
	before, whole, own, began := spent(l), spent(c.core.members...), child.Used(), time.Now()
	err := f()
	after := spent(l) - before
	return bill{
		leader: after.Seconds(), followers: (spent(c.core.members...) - whole - after).Seconds(), played: (child.Used() - own).Seconds(), lasted: time.Since(began).Seconds(),
	}, err
}

// bill is a cost in seconds of processor time, and of the clock.
type bill struct{ leader, followers, played, lasted float64 }

func (b bill) seconds() string {
	return fmt.Sprintf("%.2f s | %.2f s | %.2f s | %s", b.leader, b.followers, b.played, child.Load())
}

func (b bill) shares() string {
	return fmt.Sprintf("%.1f %% of a core | %.1f %% | %.1f %% | %s", 100*b.leader/b.lasted, 100*b.followers/b.lasted, 100*b.played/b.lasted, child.Load())
}

func (c *crowd) idle(ctx context.Context) error {
	b, err := c.cost(func() error { return child.Rest(ctx, 3*time.Second) })
	c.row("nobody is there, %.0f s | | %s", b.lasted, b.shares())
	return err
}

// register starts all peers with their instances, and waits until the whole catalogs have all.
func (c *crowd) register(ctx context.Context) error {
	for n := range c.crowd {
		p, err := c.core.play(n, n < wholes, c.gate, func() { c.watching.Add(1) }, c.see)
		if err != nil {
			return err
		}
		close(p.known)
		c.peers = append(c.peers, p)
		var own []entry
		for i := n; i < c.crowded; i += c.crowd {
			own = append(own, entry{fmt.Sprintf("service%d", i%100), fmt.Sprintf("%s-%d", p.id, i), "1"})
		}
		p.publish(own...)
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	var first float64
	b, err := c.cost(func() error {
		began := time.Now()
		for _, p := range c.peers {
			p.Start()
		}
		for i, p := range c.peers[:min(wholes, len(c.peers))] {
			err := child.Until(ctx, serving, tight, "all are registered", func(context.Context) error {
				if got := p.Catalog.Stats(); got.Instances != c.crowded || got.Stale {
					return fault.New("register", fault.Unavailable, "%d of %d, stale: %v", got.Instances, c.crowded, got.Stale)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if i == 0 {
				first = figure.Ms(time.Since(began))
			}
		}
		return nil
	})
	c.row("all start at once and register: every whole catalog has all | %.0f ms (the first %.0f) | %s", 1e3*b.lasted, first, b.seconds())
	return err
}

// connect connects all peers to the leader, which costs as much as their later work.
func (c *crowd) connect(ctx context.Context) error {
	const atOnce = 16
	var next atomic.Int64
	errs := make([]error, atOnce)
	b, err := c.cost(func() error {
		var all sync.WaitGroup
		for w := range atOnce {
			all.Go(func() {
				for i := int(next.Add(1)) - 1; i < len(c.peers) && errs[w] == nil; i = int(next.Add(1)) - 1 {
					_, errs[w] = c.peers[i].client.Coordination().Group(ctx)
				}
			})
		}
		all.Wait()
		return errors.Join(errs...)
	})
	c.row("all connect | %.0f ms | %s", 1e3*b.lasted, b.seconds())
	return err
}

// follow starts the watches of the other peers.
func (c *crowd) follow(ctx context.Context) error {
	b, err := c.cost(func() error {
		close(c.gate)
		return child.Until(ctx, serving, asking, "all watch", func(context.Context) error {
			if n := c.watching.Load(); n < int64(len(c.peers)) {
				return fault.New("follow", fault.Unavailable, "%d of %d", n, len(c.peers))
			}
			return nil
		})
	})
	c.row("all watch | %.0f ms | %s", 1e3*b.lasted, b.seconds())
	return err
}

// keep measures the leader's cost of all keepalives.
func (c *crowd) keep(ctx context.Context) error {
	if err := child.Rest(ctx, time.Second); err != nil {
		return err
	}
	b, err := c.cost(func() error { return child.Rest(ctx, quiet) })
	c.row("keepalives and marks of watches alone, %.0f s | | %s", b.lasted, b.shares())
	return err
}

// see records that a peer has a change in its catalog.
func (c *crowd) see(key string, _ *played) {
	got, ok := c.sights.Load(key)
	if !ok {
		return
	}
	s, now := got.(*sight), time.Now()
	c.all.add(now.Sub(s.began))
	if s.left.Add(-1) == 0 {
		s.last <- now
	}
}

// change registers instances, each at the next peer, and measures the time until every peer has
// each.
func (c *crowd) change(ctx context.Context) error {
	var everywhere []time.Duration
	b, err := c.cost(func() error {
		tick := time.NewTicker(time.Second / changed)
		defer tick.Stop()
		var sights []*sight
		for began := time.Now(); time.Since(began) < steady; <-tick.C {
			n := len(sights)
			e := entry{"new", fmt.Sprint(n), "1"}
			s := &sight{began: time.Now(), last: make(chan time.Time, 1)}
			s.left.Store(int64(len(c.peers)))
			c.sights.Store(coord.DirectoryKey(e.key().Namespace, e.service, e.id), s)
			sights = append(sights, s)
			c.peers[n*7919%len(c.peers)].publish(e)
		}
		patience := time.NewTimer(late)
		defer patience.Stop()
		for _, s := range sights {
			select {
			case at := <-s.last:
				everywhere = append(everywhere, at.Sub(s.began))
			case <-patience.C:
				return fault.New("change", fault.Timeout, "%d peers miss a change after %v", s.left.Load(), late)
			case <-ctx.Done():
				return fault.Wrap("change", ctx.Err())
			}
		}
		return nil
	})
	n := len(everywhere)
	c.row("%d registrations, %d a second: in the catalogs of all peers | p50 %.0f ms, p99 %.0f ms, most %.0f ms | %s",
		n, changed, figure.Ms(figure.Quantile(everywhere, 0.5)), figure.Ms(figure.Quantile(everywhere, 0.99)), figure.Ms(figure.Quantile(everywhere, 1)), b.shares())
	c.row("the same, each catalog for itself | p50 %.0f ms, p99 %.0f ms | %.1f ms each | %.1f ms | %.1f ms |", figure.Ms(figure.Quantile(c.all.all, 0.5)), figure.Ms(figure.Quantile(c.all.all, 0.99)),
		1e3*b.leader/float64(max(1, n)), 1e3*b.followers/float64(max(1, n)), 1e3*b.played/float64(max(1, n)))
	return err
}
