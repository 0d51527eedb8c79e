package machine_test

import (
	"fmt"
	"testing"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// BenchmarkRegisterBatch registers 1,000 instances in one command or one by one, all new or all unchanged.
func BenchmarkRegisterBatch(b *testing.B) {
	for _, size := range []int{1, directory.MaxBatch} {
		for _, changed := range []bool{true, false} {
			b.Run(fmt.Sprintf("size=%d/changed=%v", size, changed), func(b *testing.B) {
				l := newLog()
				id := l.lease(b, alice)
				var ops [2]*coordv1.Command
				for version := range ops {
					o := &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1}
					for i := range size {
						o.Puts = append(o.Puts, entry("default", "payment", fmt.Sprint("instance-", i), 8080+version))
					}
					ops[version] = coordtest.Command(alice, o)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					op := ops[0]
					if changed {
						op = ops[i%2]
					}
					if r, _ := l.send(op); r.Err != nil {
						b.Fatal(r.Err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/instance")
			})
		}
	}
}

// BenchmarkPublication measures the question of a keepalive.
func BenchmarkPublication(b *testing.B) {
	l := newLog()
	id := l.lease(b, alice)
	l.must(b, batch(id, 1, entry("n", "s", "a", 1)))
	for b.Loop() {
		if l.Publication(id) == nil {
			b.Fatal()
		}
	}
}
