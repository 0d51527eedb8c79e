package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	connections = 16   // clients that work together
	services    = 100  // services of the passive instances
	newcomers   = 2000 // most registrations of a run
	beating     = 1000 // instances with heartbeats over HTTP
	churn       = 100  // changes a second of the queried service
)

// session is one run of the command.
type session struct {
	kit.Session
	consul    string // path
	instances int

	kinds   []kind
	started int
}

// kind is a sort of system, ready to start.
type kind struct {
	binary string
	start  starter
}

func parts() []kit.Part[*session] {
	return []kit.Part[*session]{
		{Name: "reads", Run: (*session).reads},
		{Name: "register", Run: (*session).register},
		{Name: "heartbeats", Run: (*session).heartbeats},
	}
}

// open starts systems, each with a new directory.
func (s *session) open(ctx context.Context, kinds []kind) (all []*system, end func(), err error) {
	end = func() {
		for _, one := range all {
			one.server.Stop()
		}
	}
	for _, k := range kinds {
		s.started++
		dir := filepath.Join(s.Scratch, fmt.Sprint("data", s.started))
		if err := os.Mkdir(dir, 0o700); err != nil {
			end()
			return nil, nil, fault.As("open", fault.Invalid, err)
		}
		one, err := k.start(ctx, k.binary, dir, s.Log)
		if err != nil {
			end()
			return nil, nil, err
		}
		all = append(all, one)
	}
	return all, end, nil
}

// table begins a table.
func (s *session) table(title string) {
	fmt.Fprint(s.Out, kit.Head(title))
}

// task is one measurement of one system.
type task struct {
	one     *system
	label   string
	clients int
	run     func(ctx context.Context, run int) (kit.Sample, error)
}

// compare runs tasks in turn, once for each run. It prints a row for each task and, after a task
// of Consul, the ratios to it.
func (s *session) compare(ctx context.Context, tasks []task) error {
	all := make([][]kit.Sample, len(tasks))
	for run := range s.Runs {
		for i, t := range tasks {
			got, err := t.run(ctx, run)
			if err != nil {
				return fault.Wrap(t.one.name, err)
			}
			all[i] = append(all[i], got)
		}
	}
	for i, t := range tasks {
		fmt.Fprintln(s.Out, kit.Row(t.one.name+" "+t.label, t.clients, all[i]))
	}
	last := len(tasks) - 1
	if tasks[last].one.name == peerName {
		for i, t := range tasks[:last] {
			fmt.Fprintln(s.Out, kit.Ratio(t.label, all[i], all[last]))
		}
	}
	return nil
}

// fill registers instances.
func fill(ctx context.Context, one *system, all []entry) error {
	_, err := one.each(ctx, all, one.put)
	return err
}

// crowd spreads n instances over services.
func crowd(n int) []entry {
	all := make([]entry, n)
	for i := range all {
		all[i] = entry{service: fmt.Sprintf("crowd%d", i%services), id: i, mark: "1"}
	}
	return all
}

// alike puts n instances into one service.
func alike(service string, n int) []entry {
	all := make([]entry, n)
	for i := range all {
		all[i] = entry{service: service, id: i, mark: "1"}
	}
	return all
}
