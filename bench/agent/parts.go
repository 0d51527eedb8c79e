package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

// reads queries the healthy instances of services of three sizes.
func (s *session) reads(ctx context.Context) error {
	systems, end, err := s.open(ctx, s.kinds)
	if err != nil {
		return err
	}
	defer end()
	s.table("GET the healthy instances of a service")
	for _, n := range []int{10, 100, 1000} {
		service := fmt.Sprintf("web%d", n)
		for _, one := range systems {
			if err := fill(ctx, one, alike(service, n)); err != nil {
				return err
			}
			size, err := listed(ctx, one, service, n)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "| %d instances: %d bytes | | %s | | | | | | | |\n", n, size, one.name)
		}
		for _, clients := range []int{1, connections} {
			if err := s.compare(ctx, s.readers(systems, service, fmt.Sprintf("%d instances", n), clients)); err != nil {
				return err
			}
		}
		tasks := s.readers(systems, service, fmt.Sprintf("%d instances, %d changes a second", n, churn), connections)
		for i, t := range tasks {
			tasks[i] = meanwhile(t, alike(service, n))
		}
		if err := s.compare(ctx, tasks); err != nil {
			return err
		}
	}
	return nil
}

// readers are tasks that query one service.
func (s *session) readers(systems []*system, service, label string, clients int) (tasks []task) {
	for _, one := range systems {
		request := one.list(service)
		tasks = append(tasks, task{one, label, clients, func(ctx context.Context, _ int) (kit.Sample, error) {
			return one.run(ctx, s.Duration, clients, func(_ int, a *asker) kit.Worker {
				return func(context.Context) (int, error) { return 1, a.ask(request) }
			})
		}})
	}
	return tasks
}

// meanwhile runs a task under changes of instances, so that every answer ages fast.
func meanwhile(t task, all []entry) task {
	calm := t.run
	t.run = func(ctx context.Context, run int) (kit.Sample, error) {
		until, cancel := context.WithCancel(ctx)
		var failed error
		var changing sync.WaitGroup
		changing.Go(func() { failed = change(until, t.one, all) })
		out, err := calm(ctx, run)
		cancel()
		changing.Wait()
		return out, errors.Join(err, failed)
	}
	return t
}

// change registers instances again, one after the other with a new mark, until the context ends.
func change(ctx context.Context, one *system, all []entry) error {
	a, err := dial(ctx, one.address, one.index)
	if err != nil {
		return err
	}
	defer a.close()
	tick := time.NewTicker(time.Second / churn)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		e := all[n%len(all)]
		e.mark = strconv.FormatInt(time.Now().UnixNano(), 10)
		if err := a.ask(one.put(e)); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// listed checks that an answer has all instances, and returns its size.
func listed(ctx context.Context, one *system, service string, n int) (size int, err error) {
	err = one.once(ctx, one.list(service), func(got answer) error {
		size = len(got.body)
		if there := one.count(got.body); there != n {
			return fault.New("listed", fault.Internal, "%s lists %d of %d instances of %s", one.name, there, n, service)
		}
		return nil
	})
	return size, err
}

// register registers new instances one after the other, beside existing ones.
func (s *session) register(ctx context.Context) error {
	systems, end, err := s.open(ctx, s.kinds)
	if err != nil {
		return err
	}
	defer end()
	for _, one := range systems {
		if err := fill(ctx, one, crowd(s.instances-newcomers)); err != nil {
			return err
		}
	}
	s.table(fmt.Sprintf("Registrations of applications, one by one, with %d to %d instances present", s.instances-newcomers, s.instances))
	for _, clients := range []int{1, connections} {
		var tasks []task
		for _, one := range systems {
			enroll := func(ctx context.Context, _ int) (kit.Sample, error) { return s.enroll(ctx, one, clients) }
			tasks = append(tasks, task{one, "register", clients, enroll})
		}
		if err := s.compare(ctx, tasks); err != nil {
			return err
		}
	}
	return nil
}

// enroll lets clients register, each in its own service, up to the limit of one peer or the end
// of the time, and deregisters all.
func (s *session) enroll(ctx context.Context, one *system, clients int) (kit.Sample, error) {
	enrolled, room := make([][]entry, clients), newcomers/clients
	out, err := one.run(ctx, s.Duration, clients, func(i int, a *asker) kit.Worker {
		service := fmt.Sprintf("load%d", i)
		return func(context.Context) (int, error) {
			e := entry{service: service, id: len(enrolled[i]), mark: "1"}
			if len(enrolled[i]) == room {
				return 0, kit.ErrEnough
			}
			enrolled[i] = append(enrolled[i], e)
			return 1, a.ask(one.enroll(e))
		}
	})
	if err != nil {
		return out, err
	}
	for _, all := range enrolled {
		if _, err := one.each(ctx, all, one.leave); err != nil {
			return out, err
		}
	}
	return out, nil
}

// heartbeats sends heartbeats over HTTP, each for the next instance.
func (s *session) heartbeats(ctx context.Context) error {
	systems, end, err := s.open(ctx, s.kinds)
	if err != nil {
		return err
	}
	defer end()
	kinds, err := enrolled(ctx, systems)
	if err != nil {
		return err
	}
	s.table(fmt.Sprintf("Heartbeats over HTTP, of %d instances", beating))
	for _, clients := range []int{1, connections} {
		var tasks []task
		for _, k := range kinds {
			tasks = append(tasks, task{k.one, k.label, clients, s.beat(k, clients)})
		}
		if err := s.compare(ctx, tasks); err != nil {
			return err
		}
	}
	return nil
}

// pulse is one way to send heartbeats for many instances.
type pulse struct {
	one      *system
	label    string
	requests [][]byte
}

// enrolled registers the heartbeating instances with each system.
func enrolled(ctx context.Context, systems []*system) (kinds []pulse, err error) {
	all := alike("beating", beating)
	for _, one := range systems {
		answers, err := one.each(ctx, all, one.enroll)
		if err != nil {
			return nil, err
		}
		for n, b := range one.beats(all[0], answers[0]) {
			k := pulse{one: one, label: b.label}
			for i, e := range all {
				k.requests = append(k.requests, one.beats(e, answers[i])[n].request)
			}
			kinds = append(kinds, k)
		}
	}
	return kinds, nil
}

func (s *session) beat(k pulse, clients int) func(context.Context, int) (kit.Sample, error) {
	return func(ctx context.Context, _ int) (kit.Sample, error) {
		return k.one.run(ctx, s.Duration, clients, func(i int, a *asker) kit.Worker {
			next := i
			return func(context.Context) (int, error) {
				request := k.requests[next%len(k.requests)]
				next += clients
				return 1, a.ask(request)
			}
		})
	}
}
