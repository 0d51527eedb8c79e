package grpcapi_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// BenchmarkKeepAliveStream is what one stream costs on both ends, by how many leases a request
// renews. Requests are sent ahead of their answers, as the client does.
func BenchmarkKeepAliveStream(b *testing.B) {
	for _, each := range []int{1, 16, 256, 4096} {
		b.Run(fmt.Sprint(each), func(b *testing.B) {
			r := newRaw(b, "alice")
			req := &api.LeaseKeepAliveRequest{Id: r.lease(b)}
			for range each - 1 {
				req.Ids = append(req.Ids, r.lease(b))
			}
			stream, err := r.LeaseKeepAlive(b.Context())
			require.NoError(b, err)
			ahead := make(chan struct{}, 64)
			b.ReportAllocs()
			b.ResetTimer()
			go func() {
				for range b.N {
					ahead <- struct{}{}
					if stream.Send(req) != nil {
						return
					}
				}
			}()
			for range b.N {
				resp, err := stream.Recv()
				require.NoError(b, err)
				require.Len(b, resp.GetTtlsMs(), each-1)
				<-ahead
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N*each)/b.Elapsed().Seconds(), "leases/s")
			require.NoError(b, stream.CloseSend())
		})
	}
}

// BenchmarkLockCycle is what the front end costs a Lock and an Unlock, on both ends.
func BenchmarkLockCycle(b *testing.B) {
	r := newRaw(b, "alice")
	lease := r.lease(b)
	b.ReportAllocs()
	for b.Loop() {
		lock, err := r.Lock(b.Context(), &api.LockRequest{Name: "db", LeaseId: lease, TimeoutMs: -1})
		require.NoError(b, err)
		_, err = r.Unlock(b.Context(), &api.UnlockRequest{Name: "db", LeaseId: lease, FencingToken: lock.GetFencingToken()})
		require.NoError(b, err)
	}
}

// BenchmarkCalls is what the stream of calls costs a read, on both ends, by how many are in a message.
func BenchmarkCalls(b *testing.B) {
	for _, each := range []int{1, 4, 32} {
		b.Run(fmt.Sprintf("together=%d", each), func(b *testing.B) {
			r := newRaw(b, "alice")
			s, err := r.Calls(b.Context())
			require.NoError(b, err)
			message := &coordv1.CallsRequest{}
			for i := range each {
				message.Calls = append(message.Calls, question(uint64(i), &api.RangeRequest{Key: []byte("k")}))
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += each {
				require.NoError(b, s.Send(message))
				for left := each; left > 0; {
					got, err := s.Recv()
					require.NoError(b, err)
					left -= len(got.GetReplies())
				}
			}
			b.StopTimer()
			require.NoError(b, s.CloseSend())
		})
	}
}

// BenchmarkWatchStream is what one event costs a hundred watchers, each on a stream of its own.
func BenchmarkWatchStream(b *testing.B) {
	r := newRaw(b, "alice")
	const many = 100
	var all [many]watches
	for i := range all {
		all[i] = r.watches(b)
		all[i].open(&api.WatchKeysRequest{Prefix: true})
	}
	b.ReportAllocs()
	for b.Loop() {
		r.put(b, "k")
		for _, w := range all {
			require.Len(b, w.next().GetEvents(), 1)
		}
	}
	b.ReportMetric(float64(b.N*many)/b.Elapsed().Seconds(), "events/s")
}
