package member_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/member"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// onDisk returns a group of three in this process with real logs under TMPDIR.
func onDisk(b *testing.B) *network {
	root := b.TempDir()
	return newGroup(b, options{
		voters: 3,
		folder: func(i int) (vfs.FS, string) { return vfs.Default, fmt.Sprintf("%s/%d", root, i) },
		adjust: func(c *member.Config) { c.Replica.SnapshotEntries, c.Replica.Trail = 0, 0 },
	})
}

// closed runs b.N calls with one open call per caller, and reports rate and latencies.
func closed(b *testing.B, callers int, call func(caller int)) {
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, callers)
	b.ResetTimer()
	began := time.Now()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				call(i)
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	all.Wait()
	b.StopTimer()
	sorted := slices.Concat(took...)
	slices.Sort(sorted)
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "op/s")
	b.ReportMetric(float64(sorted[len(sorted)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(sorted[len(sorted)*99/100].Microseconds()), "p99-us")
}

// BenchmarkPropose proposes commands of 128 bytes to the leader.
func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			n := onDisk(b)
			defer n.close(b)
			l := n.leader(b, nil)
			closed(b, callers, func(i int) { l.do(b, put(fmt.Sprint("key", i), string(make([]byte, 100)))) })
		})
	}
}

// BenchmarkBesideWatches puts a key beside watches of other prefixes, a distinct one each.
func BenchmarkBesideWatches(b *testing.B) {
	for _, watches := range []int{0, 1000, 10_000} {
		b.Run(fmt.Sprint(watches), func(b *testing.B) {
			n := onDisk(b)
			defer n.close(b)
			l := n.leader(b, nil)
			ctx, cancel := context.WithCancel(context.Background())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			for i := range watches {
				all.Go(func() {
					span := coord.Under(fmt.Sprintf("watched/%d/", i))
					for from, err := coord.FirstRevision+1, error(nil); err == nil; {
						from, err = l.Await(ctx, span, max(from, l.Revision()+1))
					}
				})
			}
			closed(b, 16, func(i int) { l.do(b, put(fmt.Sprint("key", i), "")) })
		})
	}
}

// A cycle of lock and unlock, one lock for each caller.
func BenchmarkLockCycle(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			n := onDisk(b)
			defer n.close(b)
			l := n.leader(b, nil)
			lease := l.do(b, &apiv1.LeaseGrantRequest{TtlMs: 3600_000}).Lease
			closed(b, callers, func(i int) {
				name := fmt.Sprint("lock", i)
				r := l.do(b, &apiv1.TryLockRequest{Name: name, LeaseId: int64(lease)})
				l.do(b, &apiv1.UnlockRequest{Name: name, LeaseId: int64(lease), FencingToken: int64(r.Lock.Token)})
			})
		})
	}
}

// Linearizable reads at the leader and at a follower.
func BenchmarkBarrier(b *testing.B) {
	for _, where := range []string{"leader", "follower"} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", where, callers), func(b *testing.B) {
				n := onDisk(b)
				defer n.close(b)
				e := n.leader(b, nil)
				if where == "follower" {
					e = n.followers(e)[0]
				}
				closed(b, callers, func(int) {
					_, err := e.Barrier(context.Background())
					require.NoError(b, err)
				})
			})
		}
	}
}

// Keepalives of one lease each, confirmed by a majority.
func BenchmarkKeepAlive(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			n := onDisk(b)
			defer n.close(b)
			l := n.leader(b, nil)
			var ids []coord.LeaseID
			for range callers {
				ids = append(ids, l.do(b, &apiv1.LeaseGrantRequest{TtlMs: 3600_000}).Lease)
			}
			closed(b, callers, func(i int) {
				renewals, _, err := l.KeepAlive(context.Background(), "owner", ids[i:i+1])
				require.NoError(b, err)
				require.NotZero(b, renewals[0].TTL)
			})
		})
	}
}
