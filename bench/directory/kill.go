package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/bench/figure"
)

const (
	watching = 10 * time.Millisecond // between two reads at a peer
	absence  = 3 * time.Second       // from the kill to the return of the leader: shorter than its lease
	trying   = 500 * time.Millisecond
)

// observer is the result of reads at a peer.
type observer struct {
	reads, failed, short, unsure, stale int
	first                               error
}

// kill ends the leader like a crash, while applications read at all other peers and register at
// one.
func (s *session) kill(ctx context.Context) error {
	f, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	const each = 100
	err = fill(ctx, f.peers, each, func(p *peer, n int) entry { return entry{"kept", fmt.Sprintf("%s-%d", p.name, n), "1"} })
	if err != nil {
		return err
	}
	total := each * len(f.peers)
	if err := f.seen(ctx, total, f.peers...); err != nil {
		return err
	}
	s.table(fmt.Sprintf("SIGKILL of the leader, which is back after %v; %d instances, %d of them at the leader's peer; reads every %v at each other peer", absence, total, each, watching),
		"", "ms to the next registration that the group has", "reads", "failed", "without an instance", "with one not UP", "marked stale", "ms from its return until all peers had all", "CPU s of the others", "load")
	for run := range s.kills {
		if err := s.killed(ctx, f, run, total); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) killed(ctx context.Context, f *fleet, run, total int) error {
	leader, err := f.leader(ctx, f.peers[0])
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(f.peers), func(p *peer) bool { return p == leader })
	seeing, stop := context.WithCancel(ctx)
	defer stop()
	seen := make([]observer, len(others))
	var all sync.WaitGroup
	for i, p := range others {
		all.Go(func() { seen[i].observe(seeing, p, total) })
	}
	if err := child.Rest(ctx, time.Second); err != nil {
		return err
	}
	writer, began := others[len(others)-1], time.Now()
	leader.Kill()
	before := spent(f.processes()...)
	wrote, err := resumed(ctx, writer, run)
	if err != nil {
		return err
	}
	if err := child.Rest(ctx, time.Until(began.Add(absence))); err != nil {
		return err
	}
	cpu := spent(f.processes()...) - before
	if err := leader.Start(); err != nil {
		return err
	}
	returned := time.Now()
	if err := f.seen(ctx, total+1+run, f.peers...); err != nil { // plus one registration after each kill
		return err
	}
	took := time.Since(returned)
	if err := child.Rest(ctx, time.Second); err != nil {
		return err
	}
	stop()
	all.Wait()
	var sum observer
	for _, o := range seen {
		sum.reads, sum.failed, sum.short = sum.reads+o.reads, sum.failed+o.failed, sum.short+o.short
		sum.unsure, sum.stale = sum.unsure+o.unsure, sum.stale+o.stale
		if sum.first == nil {
			sum.first = o.first
		}
	}
	s.row("kill %d | %.0f | %d | %d | %d | %d | %d | %.0f | %.2f | %s", run+1, figure.Ms(wrote.Sub(began)), sum.reads, sum.failed, sum.short, sum.unsure, sum.stale, figure.Ms(took), cpu.Seconds(), child.Load())
	if sum.first != nil {
		fmt.Fprintf(s.Out, "\nthe first: %v\n", sum.first)
	}
	return nil
}

// observe reads a service repeatedly until the context ends.
func (o *observer) observe(ctx context.Context, p *peer, total int) {
	for child.Rest(ctx, watching) == nil {
		got, n, err := p.list(ctx, "kept")
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if o.failed++; o.first == nil {
				o.first = err
			}
		case n != total:
			o.short++
		case got.stale:
			o.stale++
		case bytes.Count(got.body, []byte(`"health":"UP"`)) != total:
			o.unsure++
		}
		o.reads++
	}
}

// resumed repeats a registration and returns the time of its commit.
func resumed(ctx context.Context, at *peer, run int) (time.Time, error) {
	e := entry{"after", fmt.Sprint(run), "1"}
	err := child.Until(ctx, serving, tight, "writes resume", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, trying)
		defer cancel()
		_, err := at.register(ctx, e, true)
		return err
	})
	return time.Now(), err
}
