package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

// system is a measured system: three servers and their driver.
type system interface {
	name() string
	// start starts the servers and waits until they answer.
	start(ctx context.Context) error
	// do runs a task once.
	do(ctx context.Context, t task) (kit.Sample, error)
	// servers returns the processes, by index.
	servers() []*kit.Process
	// mend starts killed servers and waits until all answer.
	mend(ctx context.Context) error
	stop()
}

// session is one run of the command.
type session struct {
	kit.Session
	etcd    string // path
	at      string // where clients connect
	kills   int
	systems []system
}

func parts() []kit.Part[*session] {
	return []kit.Part[*session]{
		{Name: "locks", Run: (*session).locks},
		{Name: "contended", Run: (*session).contended},
		{Name: "keepalive", Run: (*session).keepalive},
		{Name: "reads", Run: (*session).reads},
		{Name: "watch", Run: (*session).watch},
		{Name: "failover", Run: (*session).failover},
	}
}

// start builds etcd's driver and starts the systems.
func (s *session) start(ctx context.Context) error {
	s.systems = []system{&fleet{binary: s.Blackholed, dir: filepath.Join(s.Scratch, "ours"), at: s.at, log: s.Log}}
	if s.etcd != "" {
		driver := filepath.Join(s.Scratch, "drive")
		if err := kit.Build(ctx, filepath.Join("bench", "coordination", "etcd"), driver, "."); err != nil {
			return err
		}
		s.systems = append(s.systems, &etcd{binary: s.etcd, driver: driver, dir: filepath.Join(s.Scratch, "etcd"), log: s.Log})
	}
	for _, one := range s.systems {
		began := time.Now()
		if err := one.start(ctx); err != nil {
			return fault.Wrap(one.name(), err)
		}
		fmt.Fprintf(s.Out, "%s: three fresh servers serve after %d ms\n", one.name(), time.Since(began).Milliseconds())
	}
	return nil
}

func (s *session) stop() {
	for _, one := range s.systems {
		one.stop()
	}
}

// head begins a table.
func (s *session) head(title string) {
	fmt.Fprint(s.Out, kit.Head(title))
}

// compare runs a task with each system in turn, once for each run, and prints a row for each and,
// with two systems, the ratio of their rates.
func (s *session) compare(ctx context.Context, t task) error {
	all := make([][]kit.Sample, len(s.systems))
	for run := range s.Runs {
		for i, one := range s.systems {
			t.Run = run
			got, err := s.measured(ctx, one, t)
			if err != nil {
				return fault.Wrap(one.name(), err)
			}
			all[i] = append(all[i], got)
		}
	}
	for i, one := range s.systems {
		fmt.Fprintln(s.Out, kit.Row(one.name()+" "+t.label(), t.Clients, all[i]))
	}
	if len(all) == 2 {
		fmt.Fprintln(s.Out, kit.Ratio("", all[0], all[1]))
	}
	return nil
}

// measured runs a task once, and adds the processor time.
func (s *session) measured(ctx context.Context, one system, t task) (kit.Sample, error) {
	before := spent(one.servers())
	got, err := one.do(ctx, t)
	got.Server = spent(one.servers()) - before
	got.Load = kit.Load()
	if got.Errors > 0 {
		fmt.Fprintf(os.Stderr, "%s %s: %d errors, the first: %s\n", one.name(), t.label(), got.Errors, got.FirstError)
	}
	return got, err
}

func (s *session) locks(ctx context.Context) error {
	s.head("Lock and unlock, each client a name of its own; a cycle is one")
	for _, clients := range []int{1, 64, 256} {
		if err := s.compare(ctx, task{Op: opLock, Clients: clients, Duration: s.Duration}); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) contended(ctx context.Context) error {
	s.head("One lock that all clients want; hand-overs, and a client's wait for its turn")
	t := task{Op: opContended, Clients: 64, Duration: s.Duration}
	return s.compare(ctx, t)
}

func (s *session) keepalive(ctx context.Context) error {
	s.head("Keepalives: leases renewed; latencies are those of a message")
	for _, clients := range []int{1, 64} {
		if err := s.compare(ctx, task{Op: opKeepAlive, Clients: clients, Duration: s.Duration, Batch: 1}); err != nil {
			return err
		}
	}
	ours := *s
	ours.systems = s.systems[:1] // a message of etcd renews one lease
	return ours.compare(ctx, task{Op: opKeepAlive, Clients: 16, Duration: s.Duration, Batch: 500})
}

func (s *session) reads(ctx context.Context) error {
	s.head("Linearizable reads of one key of 128 bytes")
	for _, clients := range []int{1, 64} {
		if err := s.compare(ctx, task{Op: opRead, Clients: clients, Duration: s.Duration}); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) watch(ctx context.Context) error {
	s.head("1,000 writes a second to 100 watchers, a third at each server; events received, and their age since the write was sent")
	return s.compare(ctx, task{Op: opWatch, Clients: 100, Duration: s.Duration, Batch: 1000})
}
