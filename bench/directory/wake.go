package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	settle = 20 * time.Millisecond // pause until the watchers ask again
	late   = 10 * time.Second      // a watcher without an answer for this long has missed a change
)

// place is a peer for watches or registrations.
type place struct {
	what string
	at   *peer
}

// arrival is an answer to a watcher.
type arrival struct {
	watcher int
	mark    string
	at      time.Time
}

// watcher follows a service until the context ends.
type watcher struct {
	label  string
	follow func(ctx context.Context, service string, told func(mark string)) error
}

// wake measures the time from a registration at one peer until watchers at other peers have it.
func (s *session) wake(ctx context.Context) error {
	f, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	leader, err := f.leader(ctx, f.peers[0])
	if err != nil {
		return err
	}
	last := len(f.peers) - 1
	watched := []place{{"the leader", leader}, {"a follower", f.followers(leader)[0]}, {"no member", f.peers[last]}}
	writers := []place{{"the leader", leader}, {"another that is no member", f.peers[last-1]}}
	s.table(fmt.Sprintf("%d changes, one at a time; ms since the registration was sent to its peer, and since the first watcher of all was told", s.changes),
		"registered at", "watched at", "by", "p50", "p99", "max", "since the first p50", "p99", "CPU us a change, all peers", "load")
	var watchers []watcher
	for _, w := range watched {
		watchers = append(watchers, watcher{w.what + " | gRPC Watch", w.at.stream}, watcher{w.what + " | long poll", w.at.poll})
	}
	for _, w := range writers {
		before := f.spent()
		took, after, answered, err := s.changed(ctx, w, watchers)
		if err != nil {
			return err
		}
		cpu := kit.PerOp(f.spent()-before, s.changes)
		for i, one := range watchers {
			s.row("%s | %s | %.2f | %.2f | %.1f | %.2f | %.2f | %.0f | %s", w.what, one.label, kit.Ms(kit.Quantile(took[i], 0.5)), kit.Ms(kit.Quantile(took[i], 0.99)),
				kit.Ms(kit.Quantile(took[i], 1)), kit.Ms(kit.Quantile(after[i], 0.5)), kit.Ms(kit.Quantile(after[i], 0.99)), cpu, kit.Load())
		}
		s.row("%s | | the answer to who registered | %.2f | %.2f | %.1f | | | |", w.what, kit.Ms(kit.Quantile(answered, 0.5)), kit.Ms(kit.Quantile(answered, 0.99)), kit.Ms(kit.Quantile(answered, 1)))
	}
	return nil
}

// changed registers an instance repeatedly, each time with a new mark, after all watchers have
// the previous one.
func (s *session) changed(ctx context.Context, w place, watchers []watcher) (took, after [][]time.Duration, answered []time.Duration, err error) {
	service := "watched" + w.at.name
	e := entry{service, "one", "r0."}
	if _, err := w.at.register(ctx, e, true); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil)
	told := make(chan arrival, 16*len(watchers))
	for i, one := range watchers {
		all.Go(func() {
			cancel(one.follow(ctx, service, func(mark string) {
				select {
				case told <- arrival{i, mark, time.Now()}:
				case <-ctx.Done():
				}
			}))
		})
	}
	if _, err := gather(ctx, told, e.mark, len(watchers)); err != nil {
		return nil, nil, nil, err
	}
	took, after = make([][]time.Duration, len(watchers)), make([][]time.Duration, len(watchers))
	for n := range s.changes {
		if err := kit.Rest(ctx, settle); err != nil {
			return nil, nil, nil, err
		}
		e.mark = fmt.Sprintf("r%d.", n+1)
		began := time.Now()
		if _, err := w.at.register(ctx, e, true); err != nil {
			return nil, nil, nil, err
		}
		answered = append(answered, time.Since(began))
		at, err := gather(ctx, told, e.mark, len(watchers))
		if err != nil {
			return nil, nil, nil, err
		}
		first := slices.MinFunc(at, time.Time.Compare)
		for i, one := range at {
			took[i], after[i] = append(took[i], one.Sub(began)), append(after[i], one.Sub(first))
		}
	}
	return took, after, answered, nil
}

// gather waits until all watchers have a mark, and returns the times.
func gather(ctx context.Context, told <-chan arrival, mark string, watchers int) ([]time.Time, error) {
	patience := time.NewTimer(late)
	defer patience.Stop()
	at, n := make([]time.Time, watchers), 0
	for n < watchers {
		select {
		case a := <-told:
			if a.mark == mark && at[a.watcher].IsZero() {
				at[a.watcher] = a.at
				n++
			}
		case <-patience.C:
			return nil, fault.New("gather", fault.Timeout, "%d of %d watchers received %s within %v", n, watchers, mark, late)
		case <-ctx.Done():
			return nil, fault.As("gather", fault.Unavailable, context.Cause(ctx))
		}
	}
	return at, nil
}

// stream follows a service by a watch over gRPC.
func (p *peer) stream(ctx context.Context, service string, told func(mark string)) error {
	q := instance.Query{Name: instance.Name{Namespace: instance.DefaultNamespace, Service: service}}
	err := p.rpc.Agent().Watch(ctx, q, 0, func(b instance.Batch) error {
		for _, e := range b.Events {
			told(e.Instance.Spec.Metadata["v"])
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// poll follows a service by repeated requests for an answer newer than the last.
func (p *peer) poll(ctx context.Context, service string, told func(mark string)) error {
	path := "/v1/services/" + service + "/instances"
	for {
		got, err := p.ask(ctx, "GET", path, nil)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		_, rest, _ := bytes.Cut(got.body, []byte(`"v":"`))
		mark, _, _ := bytes.Cut(rest, []byte(`"`))
		told(string(mark))
		path = "/v1/services/" + service + "/watch?wait=60s&index=" + got.index
	}
}
