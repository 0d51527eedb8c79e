package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/bench/figure"
)

// Operations of tasks. The driver of etcd uses the same names.
const (
	opLock      = "lock"
	opContended = "contended"
	opKeepAlive = "keepalive"
	opRead      = "read"
	opWatch     = "watch"
	opKill      = "kill"
	opStorm     = "storm"
)

// task is one unit of work for a system.
type task struct {
	Op       string        `json:"op"`
	Clients  int           `json:"clients"`
	Duration time.Duration `json:"duration"`
	Batch    int           `json:"batch"` // leases in a message; writes in a second; leases in a storm
	Run      int           `json:"run"`   // makes names differ
}

func (t task) label() string {
	if t.Op == opKeepAlive && t.Batch > 1 {
		return fmt.Sprintf("%s, %d leases a message", t.Op, t.Batch)
	}
	return t.Op
}

// sample is the result of a task. The driver of etcd prints it as JSON.
type sample struct {
	Count      int           `json:"count"`
	Seconds    float64       `json:"seconds"`
	P50        time.Duration `json:"p50"`
	P99        time.Duration `json:"p99"`
	Max        time.Duration `json:"max"`
	Errors     int           `json:"errors"`
	FirstError string        `json:"first_error"`
	Client     time.Duration `json:"client"` // processor time of the driver

	Server time.Duration `json:"-"` // processor time of the servers
	Load   string        `json:"-"`

	Extra map[string]float64 `json:"extra"` // of one sort of task only
}

func (s sample) rate() float64 { return float64(s.Count) / s.Seconds }

// worker does one operation and returns its weight.
type worker func(ctx context.Context) (int, error)

// closed lets each worker repeat its operation for a time. A failed worker continues.
func closed(ctx context.Context, d time.Duration, workers []worker) sample {
	took, counts := make([][]time.Duration, len(workers)), make([]int, len(workers))
	var mu sync.Mutex
	var out sample
	var all sync.WaitGroup
	before, began := child.Used(), time.Now()
	for i, work := range workers {
		all.Go(func() {
			for time.Since(began) < d && ctx.Err() == nil {
				start := time.Now()
				n, err := work(ctx)
				if err != nil {
					mu.Lock()
					if out.Errors++; out.Errors == 1 {
						out.FirstError = err.Error()
					}
					mu.Unlock()
					continue
				}
				took[i] = append(took[i], time.Since(start))
				counts[i] += n
			}
		})
	}
	all.Wait()
	out.Seconds, out.Client = time.Since(began).Seconds(), child.Used()-before
	for _, n := range counts {
		out.Count += n
	}
	out.latencies(slices.Concat(took...))
	return out
}

func (s *sample) latencies(all []time.Duration) {
	slices.Sort(all)
	s.P50, s.P99, s.Max = figure.Quantile(all, 0.5), figure.Quantile(all, 0.99), figure.Quantile(all, 1)
}

func medianOf[T cmp.Ordered](all []sample, of func(sample) T) T {
	var values []T
	for _, s := range all {
		values = append(values, of(s))
	}
	return figure.Median(values)
}

func medianRate(all []sample) float64 { return medianOf(all, sample.rate) }

// row prints the medians of samples.
func row(name string, clients int, all []sample) string {
	lo, hi := medianRate(all), medianRate(all)
	errs, last := 0, all[len(all)-1]
	for _, s := range all {
		lo, hi, errs = min(lo, s.rate()), max(hi, s.rate()), errs+s.Errors
	}
	for _, extra := range slices.Sorted(maps.Keys(last.Extra)) {
		name += fmt.Sprintf("; %s %.2f", extra, medianOf(all, func(s sample) float64 { return s.Extra[extra] }))
	}
	return fmt.Sprintf("| %s | %d | %.0f | %.0f-%.0f | %.2f | %.2f | %.1f | %d | %.0f + %.0f | %s |", name, clients, medianRate(all), lo, hi,
		figure.Ms(medianOf(all, func(s sample) time.Duration { return s.P50 })),
		figure.Ms(medianOf(all, func(s sample) time.Duration { return s.P99 })),
		figure.Ms(medianOf(all, func(s sample) time.Duration { return s.Max })), errs,
		medianOf(all, func(s sample) float64 { return perOp(s.Server, s) }),
		medianOf(all, func(s sample) float64 { return perOp(s.Client, s) }), last.Load)
}

// perOp returns microseconds of processor time for each operation.
func perOp(d time.Duration, s sample) float64 { return figure.PerOp(d, s.Count) }

// ratios returns the smallest and the largest ratio of rates of consecutive runs.
func ratios(a, b []sample) string {
	var all []float64
	for i := range a {
		all = append(all, a[i].rate()/b[i].rate())
	}
	return fmt.Sprintf("%.2f-%.2f", slices.Min(all), slices.Max(all))
}
