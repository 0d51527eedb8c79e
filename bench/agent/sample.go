package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/bench/figure"
)

// sample is the result of one run.
type sample struct {
	count   int
	seconds float64
	p50     time.Duration
	p99     time.Duration
	max     time.Duration
	client  time.Duration // processor time of this process
	server  time.Duration // processor time of the server
	load    string
}

func (s sample) rate() float64 { return float64(s.count) / s.seconds }

// worker does one operation and returns its weight.
type worker func() (int, error)

// errEnough is the error of a finished worker.
var errEnough = errors.New("enough")

// closed lets each worker repeat its operation for a time. The first failure ends the run.
func closed(ctx context.Context, d time.Duration, workers []worker) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took, counts := make([][]time.Duration, len(workers)), make([]int, len(workers))
	var all sync.WaitGroup
	before, began := child.Used(), time.Now()
	for i, work := range workers {
		all.Go(func() {
			for start := began; start.Sub(began) < d && ctx.Err() == nil; {
				n, err := work()
				if errors.Is(err, errEnough) {
					return
				}
				if err != nil {
					cancel(err)
					return
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(start))
				counts[i] += n
				start = now
			}
		})
	}
	all.Wait()
	out := sample{seconds: time.Since(began).Seconds(), client: child.Used() - before}
	for _, n := range counts {
		out.count += n
	}
	out.latencies(slices.Concat(took...))
	return out, context.Cause(ctx)
}

func (s *sample) latencies(all []time.Duration) {
	slices.Sort(all)
	s.p50, s.p99, s.max = figure.Quantile(all, 0.5), figure.Quantile(all, 0.99), figure.Quantile(all, 1)
}

func medianOf[T cmp.Ordered](all []sample, of func(sample) T) T {
	var values []T
	for _, s := range all {
		values = append(values, of(s))
	}
	return figure.Median(values)
}

// head begins a table of rows.
const head = "| | clients | | per second | range | p50 ms | p99 ms | max ms | CPU us/op, server + clients | load |\n" +
	"|---|---|---|---|---|---|---|---|---|---|\n"

// row prints the medians of samples.
func row(label string, clients int, name string, all []sample) string {
	rates := make([]float64, len(all))
	for i, s := range all {
		rates[i] = s.rate()
	}
	return fmt.Sprintf("| %s | %d | %s | %.0f | %.0f-%.0f | %.3f | %.3f | %.1f | %.1f + %.1f | %s |", label, clients, name,
		medianOf(all, sample.rate), slices.Min(rates), slices.Max(rates),
		figure.Ms(medianOf(all, func(s sample) time.Duration { return s.p50 })),
		figure.Ms(medianOf(all, func(s sample) time.Duration { return s.p99 })),
		figure.Ms(medianOf(all, func(s sample) time.Duration { return s.max })),
		medianOf(all, func(s sample) float64 { return perOp(s.server, s) }),
		medianOf(all, func(s sample) float64 { return perOp(s.client, s) }), all[len(all)-1].load)
}

// ratio compares two systems measured in turn: rates, latencies and processor time of the server.
func ratio(label string, a, b []sample) string {
	times := func(of func(sample) float64) float64 { return medianOf(a, of) / medianOf(b, of) }
	var each []float64
	for i := range a {
		each = append(each, a[i].rate()/b[i].rate())
	}
	return fmt.Sprintf("| %s | | ratio | %.2f | %.2f-%.2f | %.2f | %.2f | | %.2f | |", label, times(sample.rate), slices.Min(each), slices.Max(each),
		times(func(s sample) float64 { return float64(s.p50) }), times(func(s sample) float64 { return float64(s.p99) }),
		times(func(s sample) float64 { return perOp(s.server, s) }))
}

// perOp returns microseconds of processor time for each operation.
func perOp(d time.Duration, s sample) float64 {
	return figure.PerOp(d, s.count)
}
