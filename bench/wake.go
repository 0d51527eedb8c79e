package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
	quantiles "github.com/blackhole/blackhole/testnet/sample"
)

const (
	wakePeers = 10                    // of which the first three are the group
	settle    = 20 * time.Millisecond // pause until the watchers ask again
	late      = 10 * time.Second      // a watcher without an answer for this long has missed a change
)

// place is a peer for watches or registrations.
type place struct {
	what string
	at   *network.Peer
}

// arrival is an answer to a follower.
type arrival struct {
	follower int
	mark     string
	at       time.Time
}

// follower follows a service until the context ends.
type follower struct {
	label  string
	follow func(ctx context.Context, service string, told func(mark any)) error
}

// wake measures the time from a registration at one peer until watchers at other peers have it.
func (s *session) wake(ctx context.Context) error {
	n, err := s.network(ctx, wakePeers, "AGENT_REGISTRATIONS_PER_MINUTE=0")
	if err != nil {
		return err
	}
	defer n.Stop()
	at, err := leader(ctx, n)
	if err != nil {
		return err
	}
	watched := []place{{"the leader", n.Peers[at]}, {"a follower", n.Peers[(at+1)%members]}, {"no member", n.Peers[wakePeers-1]}}
	sellers := []place{{"the leader", n.Peers[at]}, {"another that is no member", n.Peers[wakePeers-2]}}
	fmt.Fprintf(s.out, "\n%d changes, one at a time; ms since the registration was sent to its peer\n\n"+
		"| registered at | watched at | by | p50 | p99 | max | load |\n|---|---|---|---|---|---|---|\n", s.changes)
	row := func(who, what string, took []time.Duration) {
		fmt.Fprintf(s.out, "| %s | %s | %.2f | %.2f | %.1f | %s |\n", who, what, ms(quantiles.Quantile(took, 0.5)), ms(quantiles.Quantile(took, 0.99)), ms(slices.Max(took)), load())
	}
	var followers []follower
	for _, w := range watched {
		followers = append(followers, follower{w.what + " | gRPC", byGRPC(w.at)}, follower{w.what + " | SSE", bySSE(w.at)})
	}
	for _, w := range sellers {
		took, answered, err := s.changed(ctx, w.at, followers)
		if err != nil {
			return err
		}
		for i, one := range followers {
			row(w.what, one.label, took[i])
		}
		row(w.what, " | the answer to who registered", answered)
	}
	return nil
}

// changed registers an instance repeatedly, each time with a new mark, after all followers have the previous one.
func (s *session) changed(ctx context.Context, at *network.Peer, followers []follower) (took [][]time.Duration, answered []time.Duration, err error) {
	service := "at-" + at.Name
	register := func(n int) (mark string, err error) {
		r := registration(0)
		r.Metadata["v"] = fmt.Sprint(n)
		_, err = at.API.Register(ctx, service, r, true)
		return r.Metadata["v"], err
	}
	mark, err := register(-1)
	if err != nil {
		return nil, nil, err
	}
	following, cancel := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil)
	told := make(chan arrival, 16*len(followers))
	for i, one := range followers {
		all.Go(func() {
			cancel(one.follow(following, service, func(mark any) {
				select {
				case told <- arrival{i, fmt.Sprint(mark), time.Now()}:
				case <-following.Done():
				}
			}))
		})
	}
	if _, err := gather(following, told, mark, len(followers)); err != nil {
		return nil, nil, err
	}
	took = make([][]time.Duration, len(followers))
	for n := range s.changes {
		if err := await.Pause(ctx, settle); err != nil {
			return nil, nil, err
		}
		began := time.Now()
		if mark, err = register(n); err != nil {
			return nil, nil, err
		}
		answered = append(answered, time.Since(began))
		at, err := gather(following, told, mark, len(followers))
		if err != nil {
			return nil, nil, err
		}
		for i, one := range at {
			took[i] = append(took[i], one.Sub(began))
		}
	}
	return took, answered, nil
}

// gather waits until all followers have a mark, and returns the times.
func gather(ctx context.Context, told <-chan arrival, mark string, followers int) ([]time.Time, error) {
	patience := time.NewTimer(late)
	defer patience.Stop()
	at, n := make([]time.Time, followers), 0
	for n < followers {
		select {
		case a := <-told:
			if a.mark == mark && at[a.follower].IsZero() {
				at[a.follower] = a.at
				n++
			}
		case <-patience.C:
			return nil, fault.New("gather", fault.Timeout, "%d of %d watchers received %s within %v", n, followers, mark, late)
		case <-ctx.Done():
			return nil, fault.As("gather", fault.Unavailable, context.Cause(ctx))
		}
	}
	return at, nil
}

func byGRPC(p *network.Peer) func(ctx context.Context, service string, told func(mark any)) error {
	return func(ctx context.Context, service string, told func(mark any)) error {
		for b, err := range p.Services().Watch(ctx, instance.Query{Name: instance.Name{Service: service}}, 0) {
			if err != nil {
				return err
			}
			for _, e := range b.Events {
				told(e.Instance.Spec.Metadata["v"])
			}
		}
		return nil
	}
}

func bySSE(p *network.Peer) func(ctx context.Context, service string, told func(mark any)) error {
	return func(ctx context.Context, service string, told func(mark any)) error {
		return p.API.Watch(ctx, service, func(c app.Change) error {
			for _, i := range c.Instances {
				told(i.Metadata["v"])
			}
			for _, e := range c.Events {
				told(e.Instance.Metadata["v"])
			}
			return nil
		})
	}
}
