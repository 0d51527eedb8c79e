package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	settle = 20 * time.Millisecond // pause until the watchers ask again
	late   = 10 * time.Second      // a watcher without an answer for this long has missed a change
)

// wake measures the time from a registration until watchers have the whole new answer.
func (s *session) wake(ctx context.Context) error {
	systems, end, err := s.open(ctx, s.kinds)
	if err != nil {
		return err
	}
	defer end()
	s.table(fmt.Sprintf("Register to the answer of each long poll, %d changes a run, one at a time; per second are answers", s.changes))
	for _, watchers := range []int{1, atOnce} {
		var tasks []task
		for _, one := range systems {
			tasks = append(tasks, task{one, "wake-up", watchers, func(ctx context.Context, run int) (sample, error) {
				before := one.server.Spent()
				out, err := s.changed(ctx, one, watchers, run)
				out.server, out.load = one.server.Spent()-before, child.Load()
				return out, err
			}})
		}
		if err := s.compare(ctx, tasks); err != nil {
			return err
		}
	}
	return nil
}

// changed registers an instance repeatedly, each time with a new mark, and waits for the
// watchers.
func (s *session) changed(ctx context.Context, one *system, watchers, run int) (sample, error) {
	e := entry{service: "watched", mark: fmt.Sprintf("r%d.", run)}
	if err := one.once(ctx, one.put(e), nil); err != nil {
		return sample{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	askers, end, err := one.askers(ctx, 1+watchers)
	if err != nil {
		cancel(nil)
		return sample{}, err
	}
	woken := make(chan arrival, watchers)
	var all sync.WaitGroup
	defer end()
	defer all.Wait()
	defer cancel(nil) // ends the connections
	for _, a := range askers[1:] {
		all.Go(func() { cancel(follow(ctx, a, one, e.service, woken)) })
	}
	if _, err := gather(ctx, woken, e.mark, watchers); err != nil { // the initial answers
		return sample{}, err
	}
	var took []time.Duration
	before, began := child.Used(), time.Now()
	for n := range s.changes {
		e.mark = fmt.Sprintf("r%d.%d.", run, n)
		some, err := announce(ctx, askers[0], one.put(e), func() ([]time.Time, error) { return gather(ctx, woken, e.mark, watchers) })
		if err != nil {
			return sample{}, err
		}
		took = append(took, some...)
	}
	out := sample{count: len(took), seconds: time.Since(began).Seconds(), client: child.Used() - before}
	out.latencies(took)
	return out, nil
}

// announce waits until the watchers ask, sends a registration, and returns the delays of their
// answers.
func announce(ctx context.Context, a *asker, registration []byte, answers func() ([]time.Time, error)) (took []time.Duration, err error) {
	if err := child.Rest(ctx, settle); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := a.ask(registration); err != nil {
		return nil, err
	}
	all, err := answers()
	for _, at := range all {
		took = append(took, at.Sub(began))
	}
	return took, err
}

// arrival is an answer to a watcher.
type arrival struct {
	body []byte
	at   time.Time
}

// follow repeatedly asks for an answer newer than the last.
func follow(ctx context.Context, a *asker, one *system, service string, woken chan<- arrival) error {
	request := one.list(service)
	for {
		got, err := a.fetch(request)
		if err != nil {
			return err
		}
		select {
		case woken <- arrival{slices.Clone(got.body), time.Now()}:
		case <-ctx.Done():
			return nil
		}
		request = one.await(service, got.index)
	}
}

// gather waits for one answer with the mark from each watcher. Other answers are ignored: a
// registry may wake its watchers without a change.
func gather(ctx context.Context, woken <-chan arrival, mark string, watchers int) ([]time.Time, error) {
	patience := time.NewTimer(late)
	defer patience.Stop()
	var all []time.Time
	for len(all) < watchers {
		select {
		case w := <-woken:
			if bytes.Contains(w.body, []byte(mark)) {
				all = append(all, w.at)
			}
		case <-patience.C:
			return nil, fault.New("gather", fault.Timeout, "%d of %d watchers received %s within %v", len(all), watchers, mark, late)
		case <-ctx.Done():
			return nil, fault.As("gather", fault.Unavailable, context.Cause(ctx))
		}
	}
	return all, nil
}
