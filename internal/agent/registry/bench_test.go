package registry

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// disk opens a registry with n realistic instances on the real file system,
// with real fsyncs.
func disk(b testing.TB, n int) *Registry {
	c := config(nil)
	c.Dir, c.MaxInstances = b.TempDir(), 100_000
	r := open(b, c, epoch())
	fill(b, r, n)
	return r
}

// fill registers with few commits.
func fill(b testing.TB, r *Registry, n int) {
	for k := 0; k < n; {
		var group []*request
		for ; k < n && len(group) < 500; k++ {
			group = append(group, &request{stage: staging(own(b, realistic(k)), epoch())})
		}
		r.writing.Lock()
		r.commit(group)
		r.writing.Unlock()
		for _, q := range group {
			require.NoError(b, q.err)
		}
	}
}

// own copies the texts of a registration, as if received from a network.
func own(b testing.TB, reg instance.Registration) instance.Registration {
	require.NoError(b, reg.Normalize())
	i, err := instance.Unmarshal((&instance.Instance{Key: reg.Key, Spec: reg.Spec}).Marshal())
	require.NoError(b, err)
	return instance.Registration{Key: i.Key, Spec: i.Spec}
}

// cpu reports the processor time of a benchmark, which is steadier than the
// wall time.
func cpu(b *testing.B, ops int) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begin := used()
	return func() { b.ReportMetric(float64((used()-begin).Nanoseconds())/float64(b.N*ops), "cpu-ns/op") }
}

// BenchmarkRegister lets 16 clients register one instance at a time beside
// 10,000.
func BenchmarkRegister(b *testing.B) {
	for _, clients := range []int{1, 16} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			r := disk(b, 10_000)
			var next atomic.Int64
			defer cpu(b, 1)()
			b.ResetTimer()
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						if _, err := r.Register(realistic(10_000+int(n)), epoch()); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "registrations/s")
		})
	}
}

// BenchmarkRegisterAgain repeats an unchanged registration, without the disk.
func BenchmarkRegisterAgain(b *testing.B) {
	r := disk(b, 10_000)
	reg := realistic(7)
	b.ReportAllocs()
	defer cpu(b, 1)()
	for b.Loop() {
		if _, err := r.Register(reg, epoch()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHeartbeat renews leases of 10,000 instances in calls of several
// sizes.
func BenchmarkHeartbeat(b *testing.B) {
	r := disk(b, 10_000)
	all, _ := r.All()
	for _, size := range []int{1, 100} {
		for _, by := range []string{"lease", "key"} {
			b.Run(fmt.Sprintf("%s/%d", by, size), func(b *testing.B) {
				refs := make([]instances.Ref, len(all))
				for n, i := range all {
					at := n * 7919 % len(all) // not in the order of registration
					refs[at] = instances.Ref{Lease: i.Lease}
					if by == "key" {
						refs[at] = instances.Ref{Key: i.Key}
					}
				}
				b.ReportAllocs()
				defer cpu(b, size)()
				now, from := epoch(), 0
				for b.Loop() {
					now = now.Add(time.Microsecond)
					r.Heartbeat(refs[from:from+size], now)
					from = (from + size) % (len(refs) - size)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/beat")
			})
		}
	}
}

// BenchmarkExpire runs Expire each second for 10,000 instances with a heartbeat
// every ten seconds.
func BenchmarkExpire(b *testing.B) {
	r := disk(b, 10_000)
	all, _ := r.All()
	refs := make([]instances.Ref, len(all))
	for n, i := range all {
		refs[n].Lease = i.Lease
	}
	defer cpu(b, 1)()
	now, second := epoch(), 0
	for b.Loop() {
		b.StopTimer()
		now, second = now.Add(time.Second), (second+1)%10
		r.Heartbeat(refs[second*1000:(second+1)*1000], now)
		b.StartTimer()
		r.Expire(now)
	}
	require.Equal(b, len(all), len(r.entries))
}

// BenchmarkMemory reports the memory of an instance with its indexes.
func BenchmarkMemory(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		r := disk(b, 0)
		before := live()
		fill(b, r, n)
		b.ReportMetric(float64(live()-before)/n, "B/instance")
		runtime.KeepAlive(r)
	}
}

// live returns the heap in use after a collection.
func live() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
