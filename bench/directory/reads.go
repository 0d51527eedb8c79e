package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/bench/figure"
)

const (
	listed      = 100 // instances of the queried service
	connections = 16
)

// reading is the result of a run of reads.
type reading struct {
	rate     float64
	p50, p99 time.Duration
	cpu      float64 // us of the peer, each
}

// reads queries the healthy instances of a service at a peer without a group, and at peers of a
// group.
func (s *session) reads(ctx context.Context) error {
	f, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	lone := &fleet{binary: s.Blackholed, log: s.Log, size: 1, alone: true}
	if lone.dir, err = s.room(); err != nil {
		return err
	}
	defer lone.stop()
	if err := lone.start(ctx); err != nil {
		return err
	}
	leader, err := f.leader(ctx, f.peers[0])
	if err != nil {
		return err
	}
	home := f.peers[members]
	web := func(_ *peer, n int) entry { return entry{"web", fmt.Sprint(n), "1"} }
	if err := errors.Join(fill(ctx, []*peer{home}, listed, web), fill(ctx, lone.peers, listed, web), f.seen(ctx, listed, f.peers...)); err != nil {
		return err
	}
	at := []place{
		{"coordination off", lone.peers[0]}, {"the leader", leader}, {"a follower", f.followers(leader)[0]},
		{"no member, of whose the instances are", home}, {"no member", f.peers[len(f.peers)-1]},
	}
	s.table(fmt.Sprintf("GET the %d healthy instances of a service; medians of %d runs in turn", listed, s.Runs),
		"at", "clients", "per second", "p50 ms", "p99 ms", "CPU us each, of the peer", "rate, to coordination off", "CPU, to coordination off", "load")
	for _, clients := range []int{1, connections} {
		if err := s.readers(ctx, at, clients); err != nil {
			return err
		}
	}
	return nil
}

// readers reads at places in turn and prints each beside the first.
func (s *session) readers(ctx context.Context, at []place, clients int) error {
	all := make([][]reading, len(at))
	for range s.Runs {
		for i, p := range at {
			got, err := s.read(ctx, p.at, clients)
			if err != nil {
				return err
			}
			all[i] = append(all[i], got)
		}
	}
	mid := func(i int, of func(reading) float64) float64 {
		var values []float64
		for _, r := range all[i] {
			values = append(values, of(r))
		}
		return figure.Median(values)
	}
	rate, cpu := func(r reading) float64 { return r.rate }, func(r reading) float64 { return r.cpu }
	for i, p := range at {
		s.row("%s | %d | %.0f | %.3f | %.3f | %.1f | %.2f | %.2f | %s", p.what, clients, mid(i, rate),
			mid(i, func(r reading) float64 { return figure.Ms(r.p50) }), mid(i, func(r reading) float64 { return figure.Ms(r.p99) }), mid(i, cpu),
			mid(i, rate)/mid(0, rate), mid(i, cpu)/mid(0, cpu), child.Load())
	}
	return nil
}

func (s *session) read(ctx context.Context, p *peer, clients int) (reading, error) {
	var all sync.WaitGroup
	took, errs := make([][]time.Duration, clients), make([]error, clients)
	before, began := spent(&p.process), time.Now()
	for i := range clients {
		all.Go(func() {
			for start := began; start.Sub(began) < s.Duration && errs[i] == nil; {
				_, errs[i] = p.ask(ctx, "GET", "/v1/services/web/instances", nil)
				now := time.Now()
				took[i] = append(took[i], now.Sub(start))
				start = now
			}
		})
	}
	all.Wait()
	lasted, cpu := time.Since(began), spent(&p.process)-before
	var every []time.Duration
	for _, t := range took {
		every = append(every, t...)
	}
	return reading{
		rate: float64(len(every)) / lasted.Seconds(), p50: figure.Quantile(every, 0.5), p99: figure.Quantile(every, 0.99), cpu: figure.PerOp(cpu, len(every)),
	}, errors.Join(errs...)
}
