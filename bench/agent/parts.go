package main

import (
	"context"
	"fmt"

	"github.com/blackhole/blackhole/pkg/fault"
)

// reads asks for the healthy instances of services of three sizes.
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
			fmt.Fprintf(s.out, "| %d instances: %d bytes | | %s | | | | | | | |\n", n, size, one.name)
		}
		for _, clients := range []int{1, connections} {
			var tasks []task
			for _, one := range systems {
				tasks = append(tasks, task{one, fmt.Sprintf("%d instances", n), clients, s.read(one, service, clients)})
			}
			if err := s.compare(ctx, tasks); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) read(one *system, service string, clients int) func(context.Context, int) (sample, error) {
	request := one.list(service)
	return func(ctx context.Context, _ int) (sample, error) {
		return one.run(ctx, s.duration, clients, func(_ int, a *asker) worker {
			return func() (int, error) { return 1, a.ask(request) }
		})
	}
}

// listed makes sure that an answer has all instances, and tells its size.
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

// register registers one instance after the other, each new, where others are present.
func (s *session) register(ctx context.Context) error {
	systems, end, err := s.open(ctx, s.kinds)
	if err != nil {
		return err
	}
	defer end()
	for _, one := range systems {
		if err := fill(ctx, one, crowd(s.instances, "")); err != nil {
			return err
		}
	}
	s.table(fmt.Sprintf("Registrations of applications, one by one, with %d instances present", s.instances))
	for _, clients := range []int{1, connections} {
		var tasks []task
		for _, one := range systems {
			enroll := func(ctx context.Context, _ int) (sample, error) { return s.enroll(ctx, one, clients) }
			tasks = append(tasks, task{one, "register", clients, enroll})
		}
		if err := s.compare(ctx, tasks); err != nil {
			return err
		}
	}
	return nil
}

// enroll has clients register, each in a service of its own, and takes it all back.
func (s *session) enroll(ctx context.Context, one *system, clients int) (sample, error) {
	enrolled := make([][]entry, clients)
	out, err := one.run(ctx, s.duration, clients, func(i int, a *asker) worker {
		service := fmt.Sprintf("load%d", i)
		return func() (int, error) {
			e := entry{service: service, id: len(enrolled[i]), mark: "1"}
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

// heartbeats sends them over HTTP, each for another instance than the one before.
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

// pulse is one way for many instances to say that they live.
type pulse struct {
	one      *system
	label    string
	requests [][]byte
}

// enrolled registers those that will send heartbeats with each system.
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

func (s *session) beat(k pulse, clients int) func(context.Context, int) (sample, error) {
	return func(ctx context.Context, _ int) (sample, error) {
		return k.one.run(ctx, s.duration, clients, func(i int, a *asker) worker {
			next := i
			return func() (int, error) {
				request := k.requests[next%len(k.requests)]
				next += clients
				return 1, a.ask(request)
			}
		})
	}
}
