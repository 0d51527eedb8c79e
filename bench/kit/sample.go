package kit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Sample is the result of one run. The driver of etcd prints it as JSON.
type Sample struct {
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

func (s Sample) Rate() float64 { return float64(s.Count) / s.Seconds }

// Worker does one operation and returns its weight.
type Worker func(ctx context.Context) (int, error)

// ErrEnough is the error of a worker that is done before the time.
var ErrEnough = errors.New("enough")

// Closed lets each Worker repeat its operation for a time. A failed Worker continues.
func Closed(ctx context.Context, d time.Duration, workers []Worker) Sample {
	took, counts := make([][]time.Duration, len(workers)), make([]int, len(workers))
	var mu sync.Mutex
	var out Sample
	var all sync.WaitGroup
	before, began := Used(), time.Now()
	for i, work := range workers {
		all.Go(func() {
			for time.Since(began) < d && ctx.Err() == nil {
				start := time.Now()
				n, err := work(ctx)
				if errors.Is(err, ErrEnough) {
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
	out.Seconds, out.Client = time.Since(began).Seconds(), Used()-before
	for _, n := range counts {
		out.Count += n
	}
	out.Latencies(slices.Concat(took...))
	return out
}

func (s *Sample) Latencies(all []time.Duration) {
	slices.Sort(all)
	s.P50, s.P99, s.Max = Quantile(all, 0.5), Quantile(all, 0.99), Quantile(all, 1)
}

func MedianOf[T cmp.Ordered](all []Sample, of func(Sample) T) T {
	var values []T
	for _, s := range all {
		values = append(values, of(s))
	}
	return Median(values)
}

// Head begins a table of rows.
func Head(title string) string {
	return fmt.Sprintf("\n%s\n\n| | clients | per second | range | p50 ms | p99 ms | max ms | errors | CPU us/op, servers + clients | load |\n"+
		"|---|---|---|---|---|---|---|---|---|---|\n", title)
}

// Row prints the medians of samples.
func Row(name string, clients int, all []Sample) string {
	lo, hi := MedianOf(all, Sample.Rate), MedianOf(all, Sample.Rate)
	errs, last := 0, all[len(all)-1]
	for _, s := range all {
		lo, hi, errs = min(lo, s.Rate()), max(hi, s.Rate()), errs+s.Errors
	}
	for _, extra := range slices.Sorted(maps.Keys(last.Extra)) {
		name += fmt.Sprintf("; %s %.2f", extra, MedianOf(all, func(s Sample) float64 { return s.Extra[extra] }))
	}
	return fmt.Sprintf("| %s | %d | %.0f | %.0f-%.0f | %.3f | %.3f | %.1f | %d | %.1f + %.1f | %s |", name, clients, MedianOf(all, Sample.Rate), lo, hi,
		Ms(MedianOf(all, func(s Sample) time.Duration { return s.P50 })),
		Ms(MedianOf(all, func(s Sample) time.Duration { return s.P99 })),
		Ms(MedianOf(all, func(s Sample) time.Duration { return s.Max })), errs,
		MedianOf(all, func(s Sample) float64 { return perOp(s.Server, s) }),
		MedianOf(all, func(s Sample) float64 { return perOp(s.Client, s) }), last.Load)
}

// perOp returns microseconds of processor time for each operation.
func perOp(d time.Duration, s Sample) float64 { return PerOp(d, s.Count) }

// Ratio prints two systems that were measured in turn: rates, latencies and processor time of the servers.
func Ratio(label string, a, b []Sample) string {
	times := func(of func(Sample) float64) float64 { return MedianOf(a, of) / max(MedianOf(b, of), 1e-9) }
	var each []float64
	for i := range a {
		each = append(each, a[i].Rate()/b[i].Rate())
	}
	return fmt.Sprintf("| ratio %s | | %.2f | %.2f-%.2f | %.2f | %.2f | | | %.2f | |", label, times(Sample.Rate), slices.Min(each), slices.Max(each),
		times(func(s Sample) float64 { return float64(s.P50) }), times(func(s Sample) float64 { return float64(s.P99) }),
		times(func(s Sample) float64 { return perOp(s.Server, s) }))
}
