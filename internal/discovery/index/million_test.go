//go:build unix

package index_test

import (
	"math"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/records"
)

// BenchmarkMillion loads a million verified records of four types and runs single-threaded
// queries: on an idle index, and with 20,000 updates per second. Signing the records takes a
// minute or more, so all parts share one benchmark.
func BenchmarkMillion(b *testing.B) {
	if testing.Short() {
		b.Skip("signs a million records for minutes: leave out -short")
	}
	const million = 1_000_000
	w := newFixture(b, million)
	fresh := w.renewed(b, million/10)
	verified := heap()
	worked := working()
	x, longest, took := w.load(b)
	worked = working() - worked
	weight := float64(heap()-verified) / million
	b.Run("load", func(b *testing.B) { // once, whatever b.N
		b.ReportMetric(million/took.Seconds(), "puts/s")
		b.ReportMetric(float64(worked.Nanoseconds())/million, "cpu-ns/put") // garbage collection included
		b.ReportMetric(float64(longest.Microseconds()), "longest-put-us")
		b.ReportMetric(weight, "index-B/record")
	})
	for _, q := range questions() {
		b.Run(q.name, func(b *testing.B) { timeSearches(b, x, plansAt(b, w.crowded, q.ask), q.options()) })
	}
	b.Run("anywhere", func(b *testing.B) {
		for _, q := range questions()[:4] {
			b.Run(q.name, func(b *testing.B) { timeSearches(b, x, plansAt(b, w.places, q.ask), q.options()) })
		}
	})
	b.Run("updating", func(b *testing.B) {
		for i, q := range questions()[:4] {
			share := fresh[i*len(fresh)/4 : (i+1)*len(fresh)/4] // the stream ends with its share
			b.Run(q.name, func(b *testing.B) {
				plans := plansAt(b, w.crowded, q.ask)
				u := updating(x, share)
				timeSearches(b, x, plans, q.options())
				share = share[u.stop(b):]
			})
		}
	})
	runtime.KeepAlive(w)
}

// working returns the user CPU time of the process.
func working() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano())
}

// load puts all records and returns the longest and the total time.
func (w fixture) load(b *testing.B) (x *index.Index, longest, took time.Duration) {
	x = index.New(index.Config{MaxBytes: math.MaxInt64})
	begin := time.Now()
	last := begin
	for _, r := range w.records {
		if _, err := x.Put(r, epoch()); err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
	}
	return x, longest, last.Sub(begin)
}

// updates is a stream of 20,000 updates per second.
type updates struct {
	done    chan struct{}
	writer  sync.WaitGroup
	made    int
	failed  error
	longest time.Duration
	began   time.Time
}

// updating starts to put fresh records, in bursts of 20 per millisecond.
func updating(x *index.Index, fresh []*records.Record) *updates {
	u := &updates{done: make(chan struct{}), began: time.Now()}
	u.writer.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-u.done:
				return
			case <-tick.C:
			}
			for due := int(time.Since(u.began).Milliseconds()) * 20; u.made < min(due, len(fresh)); u.made++ {
				begin := time.Now()
				if _, err := x.Put(fresh[u.made], epoch()); err != nil {
					u.failed = err
				}
				u.longest = max(u.longest, time.Since(begin))
			}
		}
	})
	return u
}

// stop ends the stream, reports it, and returns the number of updates.
func (u *updates) stop(b *testing.B) int {
	close(u.done)
	u.writer.Wait()
	require.NoError(b, u.failed)
	b.ReportMetric(float64(u.made)/time.Since(u.began).Seconds(), "updates/s")
	b.ReportMetric(float64(u.longest.Microseconds()), "longest-put-us")
	return u.made
}
