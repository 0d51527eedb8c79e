package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	quantiles "github.com/blackhole/blackhole/testnet/sample"

	"github.com/blackhole/blackhole/testnet/process"
)

// sample is the result of one run. The driver of etcd prints it as JSON.
type sample struct {
	Count      int           `json:"count"`
	Seconds    float64       `json:"seconds"`
	P50        time.Duration `json:"p50"`
	P99        time.Duration `json:"p99"`
	Max        time.Duration `json:"max"`
	Errors     int           `json:"errors"`
	FirstError string        `json:"first_error"`
	Client     time.Duration `json:"client"` // processor time of the driver

	server time.Duration // processor time of the servers
	load   string

	Extra map[string]float64 `json:"extra"` // of one sort of task only
}

func (s sample) rate() float64 { return float64(s.Count) / s.Seconds }

func (s *sample) latencies(all []time.Duration) {
	s.P50, s.P99, s.Max = quantiles.Quantile(all, 0.5), quantiles.Quantile(all, 0.99), quantiles.Quantile(all, 1)
}

// worker does one operation and returns its weight.
type worker func(ctx context.Context) (int, error)

// errEnough is the error of a worker that is done before the time.
var errEnough = errors.New("enough")

// closed lets each worker repeat its operation for a time. A failed worker continues.
func closed(ctx context.Context, d time.Duration, workers []worker) sample {
	took, counts := make([][]time.Duration, len(workers)), make([]int, len(workers))
	var mu sync.Mutex
	var out sample
	var all sync.WaitGroup
	before, began := process.Own(), time.Now()
	for i, work := range workers {
		all.Go(func() {
			for time.Since(began) < d && ctx.Err() == nil {
				start := time.Now()
				n, err := work(ctx)
				if errors.Is(err, errEnough) {
					return
				}
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
	out.Seconds, out.Client = time.Since(began).Seconds(), process.Own()-before
	for _, n := range counts {
		out.Count += n
	}
	out.latencies(slices.Concat(took...))
	return out
}

// spent is the processor time of processes together, like that of process.Own.
func spent(all []*process.Process) (sum time.Duration) {
	for _, p := range all {
		u, _ := p.Used()
		sum += u.CPU
	}
	return sum
}

// load is the load average of the last minute; "?" on systems other than Linux.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

// task is one measurement of one system.
type task struct {
	label   string
	clients int
	servers []*process.Process
	run     func(ctx context.Context, run int) (sample, error)
}

// table begins a table of rows.
func (s *session) table(title string) {
	fmt.Fprintf(s.out, "\n%s\n\n| | clients | per second | range | p50 ms | p99 ms | max ms | errors | CPU us/op, servers + clients | load |\n"+
		"|---|---|---|---|---|---|---|---|---|---|\n", title)
}

// compare runs tasks in turn, once for each run, and prints a row for each and, after two, the ratios.
func (s *session) compare(ctx context.Context, tasks ...task) error {
	all := make([][]sample, len(tasks))
	for run := range s.runs {
		for i, t := range tasks {
			before := spent(t.servers)
			got, err := t.run(ctx, run)
			if err != nil {
				return fault.Wrap(t.label, err)
			}
			got.server, got.load = spent(t.servers)-before, load()
			if got.Errors > 0 {
				fmt.Fprintf(os.Stderr, "%s: %d errors, the first: %s\n", t.label, got.Errors, got.FirstError)
			}
			all[i] = append(all[i], got)
		}
	}
	for i, t := range tasks {
		fmt.Fprintln(s.out, row(t.label, t.clients, all[i]))
	}
	if len(all) == 2 {
		fmt.Fprintln(s.out, ratio(all[0], all[1]))
	}
	return nil
}

// median is the upper median; it needs at least one value.
func median[S any, T cmp.Ordered](all []S, of func(S) T) T {
	var values []T
	for _, s := range all {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// row prints the medians of samples.
func row(name string, clients int, all []sample) string {
	lo, hi, errs, last := all[0].rate(), all[0].rate(), 0, all[len(all)-1]
	for _, s := range all {
		lo, hi, errs = min(lo, s.rate()), max(hi, s.rate()), errs+s.Errors
	}
	for _, extra := range slices.Sorted(maps.Keys(last.Extra)) {
		name += fmt.Sprintf("; %s %.2f", extra, median(all, func(s sample) float64 { return s.Extra[extra] }))
	}
	return fmt.Sprintf("| %s | %d | %.0f | %.0f-%.0f | %.3f | %.3f | %.1f | %d | %.1f + %.1f | %s |", name, clients, median(all, sample.rate), lo, hi,
		ms(median(all, func(s sample) time.Duration { return s.P50 })),
		ms(median(all, func(s sample) time.Duration { return s.P99 })),
		ms(median(all, func(s sample) time.Duration { return s.Max })), errs,
		median(all, func(s sample) float64 { return perOp(s.server, s.Count) }),
		median(all, func(s sample) float64 { return perOp(s.Client, s.Count) }), last.load)
}

// ratio prints two systems that were measured in turn: rates, latencies and processor time of the servers.
func ratio(a, b []sample) string {
	times := func(of func(sample) float64) float64 { return median(a, of) / max(median(b, of), 1e-9) }
	var each []float64
	for i := range a {
		each = append(each, a[i].rate()/b[i].rate())
	}
	return fmt.Sprintf("| ratio | | %.2f | %.2f-%.2f | %.2f | %.2f | | | %.2f | |", times(sample.rate), slices.Min(each), slices.Max(each),
		times(func(s sample) float64 { return float64(s.P50) }), times(func(s sample) float64 { return float64(s.P99) }),
		times(func(s sample) float64 { return perOp(s.server, s.Count) }))
}

// ms is milliseconds.
func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// perOp is microseconds for each of n operations.
func perOp(d time.Duration, n int) float64 { return float64(d) / 1e3 / float64(max(1, n)) }
