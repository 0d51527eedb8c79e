// Package startup starts the peers of a network in any order, kills and restarts some, and cuts
// the network in two, while applications register with any answering peer, move between peers and
// leave through any peer. In every order, every peer must learn every instance within a limit:
// once, in the form registered last, and without departed instances.
//
// A seed decides the order, but real processes run freely.
package startup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/lan"
)

// Peers of a network.
const Peers = 8

// Config describes a run.
type Config struct {
	Binary   string
	Dir      string // existing directory for data and logs of violations
	Seed     uint64
	Peers    int
	Founders int           // founders of the group; three vote
	Bound    time.Duration // longest time from the last event until every peer knows every instance
	LAN      *lan.LAN      // one host for each peer; nil: all on loopback, without a cut
}

// Outcome is the result of one seed, written as JSON. Times are seconds.
type Outcome struct {
	Seed         uint64   `json:"seed"`
	Order        string   `json:"order"` // start order by number; ! marks killed and restarted peers
	Killed       int      `json:"killed"`
	Committed    int      `json:"committed"` // registrations of which the whole cluster knew at once
	Kept         int      `json:"kept"`      // registrations that were kept for later
	Refused      int      `json:"refused"`   // attempts without an answer, or with a refusal
	Deregistered int      `json:"deregistered"`
	Instances    int      `json:"instances"` // in the end
	Converged    float64  `json:"converged"` // from the last event of the start to all known everywhere
	Cut          float64  `json:"cut"`       // 0: none
	Side         int      `json:"side"`      // peers on one side
	Healed       float64  `json:"healed"`    // from the cut's end to all known everywhere
	Seconds      float64  `json:"seconds"`   // of it all
	Overtaken    []string `json:"overtaken"` // instances that are as registered before they were registered elsewhere and committed, because the earlier registration was never answered as committed: it was kept, or had no answer, and came later
	Violations   []string `json:"violations"`
	Data         string   `json:"data,omitempty"` // where data and logs are
}

// run is one network.
type run struct {
	Config
	plan  plan
	dir   string
	peers []*peer
	began time.Time

	mu      sync.Mutex // guards what follows
	book    map[string]entry
	outcome Outcome
}

// Run plays one seed. The error concerns the run itself; the outcome has the violations.
func Run(ctx context.Context, c Config) (Outcome, error) {
	const op = "startup.Run"
	r := &run{Config: c, plan: draw(c.Seed, c.Peers), dir: filepath.Join(c.Dir, fmt.Sprintf("seed-%d", c.Seed)), book: make(map[string]entry)}
	r.outcome = Outcome{Seed: c.Seed, Order: r.plan.order(), Killed: r.plan.killed(), Violations: []string{}, Overtaken: []string{}}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return r.outcome, fault.As(op, fault.Invalid, err)
	}
	r.began = time.Now()
	err := errors.Join(r.play(ctx), r.end())
	r.outcome.Seconds = time.Since(r.began).Seconds()
	return r.outcome, fault.Wrap(op, err)
}

// play executes the plan.
func (r *run) play(ctx context.Context) error {
	if err := r.house(ctx); err != nil {
		return err
	}
	if err := r.rise(ctx); err != nil {
		return err
	}
	took, err := r.converge(ctx, "the start")
	if r.outcome.Converged = took; err != nil || len(r.outcome.Violations) > 0 || r.LAN == nil {
		return err
	}
	r.settle()
	if err := r.move(ctx); err != nil {
		return err
	}
	if err := r.part(ctx); err != nil {
		return err
	}
	r.outcome.Healed, err = r.converge(ctx, "the cut")
	return err
}

// rise starts the peers, and kills and restarts some, while applications come and go.
func (r *run) rise(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, at := range r.plan.starts {
		group.Go(func() error { return r.live(ctx, i, at) })
	}
	r.visit(ctx, group, r.plan.visits)
	return group.Wait()
}

// live starts a peer, and kills and restarts it if planned.
func (r *run) live(ctx context.Context, i int, at time.Duration) error {
	if err := errors.Join(await.Pause(ctx, at), r.start(i)); err != nil {
		return err
	}
	o := r.plan.outages[i]
	if o.kill == 0 {
		return nil
	}
	if err := await.Pause(ctx, o.kill); err != nil {
		return err
	}
	r.peers[i].kill()
	return errors.Join(await.Pause(ctx, o.back-o.kill), r.start(i))
}

// move registers applications elsewhere. Their old peers learn about it after a delay, or after a
// cut.
func (r *run) move(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for n, v := range r.plan.moving {
		rng := r.rng(200 + n)
		group.Go(func() error {
			_, err := r.register(ctx, rng, v.id, 2)
			return err
		})
	}
	return group.Wait()
}

// part cuts the network in two for a while. Applications register and leave on both sides.
func (r *run) part(ctx context.Context) error {
	var cuts [][2]int
	for _, a := range r.plan.side {
		for b := range r.peers {
			if !slices.Contains(r.plan.side, b) {
				cuts = append(cuts, [2]int{a, b}, [2]int{b, a})
			}
		}
	}
	defer func() {
		for _, c := range cuts {
			r.LAN.Mend(c[0], c[1])
		}
	}()
	began := time.Now()
	for _, c := range cuts {
		r.LAN.Cut(c[0], c[1])
	}
	group, groupCtx := errgroup.WithContext(ctx)
	r.visit(groupCtx, group, r.plan.during)
	for n, v := range r.plan.parting {
		rng := r.rng(300 + n)
		group.Go(func() error { return errors.Join(await.Pause(groupCtx, v.at), r.leave(groupCtx, rng, v.id)) })
	}
	if err := errors.Join(group.Wait(), await.Pause(ctx, r.plan.cut-time.Since(began))); err != nil {
		return err
	}
	r.outcome.Cut, r.outcome.Side = time.Since(began).Seconds(), len(r.plan.side)
	return nil
}

// end kills every peer, records peers that ended by themselves, and removes files without
// evidence.
func (r *run) end() (err error) {
	var work sync.WaitGroup
	for _, p := range r.peers {
		if p == nil {
			continue
		}
		if lost := p.failure(); lost != nil {
			r.violated("a peer ended by itself: %v", lost)
		}
		work.Go(p.kill)
	}
	work.Wait()
	for _, p := range r.peers {
		if p == nil {
			continue
		}
		if p.api != nil {
			p.api.Close()
		}
		if p.log != nil {
			err = errors.Join(err, p.log.Close())
		}
	}
	if len(r.outcome.Violations) > 0 {
		r.outcome.Data = r.dir
		return err
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

func (r *run) violated(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome.Violations = append(r.outcome.Violations, fmt.Sprintf(format, args...))
}
