package catalog

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// filled returns a catalog with realistic instances of several services.
func filled(b *testing.B, instances, services int) *Catalog {
	c := New(Config{})
	require.NoError(b, c.Reset(2, list(instances, services)))
	return c
}

func list(instances, services int) []*instance.Instance {
	all := make([]*instance.Instance, instances)
	for n := range all {
		all[n] = real(n, services, 2, instance.StatusUp)
	}
	return all
}

func real(n, services int, rev uint64, s instance.Status) *instance.Instance {
	return &instance.Instance{
		Key: key(fmt.Sprintf("service-%d", n%services), fmt.Sprintf("instance-%d", n)),
		Spec: instance.Spec{
			Host: "10.1.2.3", Port: 8080, Version: "1.2.3", Zone: fmt.Sprintf("zone-%d", n%3), Weight: 1,
			Tags: []string{"blue", "v1"}, Metadata: map[string]string{"team": "search"},
		},
		Status: s, Revision: rev,
	}
}

func BenchmarkDiscover(b *testing.B) {
	c := filled(b, 10000, 1000)
	for name, sel := range map[string]instance.Selector{
		"healthy": {}, "tag": {Tags: []string{"blue"}}, "zone": {Zone: "zone-1", PreferZone: "zone-1"},
		"id": {ID: "instance-7"},
	} {
		b.Run(name, func(b *testing.B) {
			q := instance.Query{Name: instance.Name{Namespace: "default", Service: "service-7"}, Selector: sel}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Discover(ctx, q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReadAfterChange reads a service of 1,000 and a namespace of 10,000
// after a change.
func BenchmarkReadAfterChange(b *testing.B) {
	for _, name := range []string{"service", "namespace", "services"} {
		b.Run(name, func(b *testing.B) {
			c := filled(b, 10000, 10)
			ctx := context.Background()
			rev := uint64(2)
			b.ReportAllocs()
			for b.Loop() {
				rev++
				i := real(int(rev%1000)*10, 10, rev, instance.Status(1+rev/1000%2))
				apply(b, c, rev, instances.Change{Key: i.Key, Instance: i})
				var err error
				switch name {
				case "service":
					_, err = c.Discover(ctx, instance.Query{Name: i.Name()})
				case "namespace":
					_, err = c.List(ctx, instances.ListQuery{Namespace: "default"})
				default:
					_, err = c.Services(ctx, "default")
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkApply changes one of 10,000 instances at a time.
func BenchmarkApply(b *testing.B) {
	for _, services := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			c := filled(b, 10000, services)
			down, up := make([]instances.Change, 10000), make([]instances.Change, 10000)
			for n := range down {
				d, u := real(n, services, 3, instance.StatusDown), real(n, services, 3, instance.StatusUp)
				down[n], up[n] = instances.Change{Key: d.Key, Instance: d}, instances.Change{Key: u.Key, Instance: u}
			}
			rev, n := uint64(2), 0
			b.ReportAllocs()
			for b.Loop() {
				rev++
				from := down
				if n/10000%2 == 1 {
					from = up
				}
				if err := c.Apply(rev, from[n%10000:n%10000+1]); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
	}
}

func BenchmarkReset(b *testing.B) {
	for _, name := range []string{"new", "same"} {
		b.Run(name, func(b *testing.B) {
			all := list(10000, 1000)
			c := filled(b, 10000, 1000)
			rev := uint64(2)
			for b.Loop() {
				if name == "new" {
					c = New(Config{})
				}
				rev++
				if err := c.Reset(rev, all); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWake measures the time from a change until the last of 100 watchers
// has its event.
func BenchmarkWake(b *testing.B) {
	const watchers = 100
	c := filled(b, 10000, 100)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var left atomic.Int64
	told := make(chan struct{}, 1)
	left.Store(watchers)
	for range watchers {
		wg.Go(func() {
			_ = c.Watch(ctx, healthy("service-7"), 0, func(batch instance.Batch) error {
				if (batch.Reset || len(batch.Events) > 0) && left.Add(-1) == 0 {
					told <- struct{}{}
				}
				return nil
			})
		})
	}
	<-told
	rev := uint64(2)
	b.ReportAllocs()
	for b.Loop() {
		rev++
		left.Store(watchers)
		i := real(7, 100, rev, instance.Status(1+rev%2))
		apply(b, c, rev, instances.Change{Key: i.Key, Instance: i})
		<-told
	}
	b.StopTimer()
	cancel()
	wg.Wait()
}

// BenchmarkMemory reports the overhead of an instance.
func BenchmarkMemory(b *testing.B) {
	for _, services := range []int{1, 1000, 10000} {
		for _, read := range []bool{false, true} {
			b.Run(fmt.Sprintf("services=%d/read=%v", services, read), func(b *testing.B) {
				all := list(10000, services)
				var before, after runtime.MemStats
				for b.Loop() {
					runtime.GC()
					runtime.ReadMemStats(&before)
					c := New(Config{})
					require.NoError(b, c.Reset(2, all))
					for n := 0; read && n < services; n++ {
						discover(b, c, all[n].Service)
					}
					runtime.GC()
					runtime.ReadMemStats(&after)
					runtime.KeepAlive(c)
				}
				runtime.KeepAlive(all)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/10000, "B/instance")
			})
		}
	}
}
