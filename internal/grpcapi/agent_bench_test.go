package grpcapi_test

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"context"
	"github.com/blackhole/blackhole/internal/grpcapi"
	"github.com/blackhole/blackhole/pkg/client/agenttest"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// quick answers heartbeats and does nothing else, so that the front end is what is measured.
type quick struct {
	instance.Registrar
	beats []instance.Beat
}

func (q *quick) Heartbeat(_ context.Context, refs []instance.Ref) ([]instance.Beat, error) {
	q.beats = q.beats[:0]
	for _, ref := range refs {
		q.beats = append(q.beats, instance.Beat{Lease: ref.Lease, Status: instance.StatusUp, TTL: 30 * time.Second})
	}
	return q.beats, nil
}

// BenchmarkHeartbeatStream renews leases over one stream on loopback, with so many in a message and
// some messages under way. An op is one heartbeat; the client's share is in it.
func BenchmarkHeartbeatStream(b *testing.B) {
	for _, n := range []int{1, 16, 256, 4096} {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			s := grpcapi.New(grpcapi.Config{Agent: &grpcapi.Agent{Registrar: &quick{}, Catalog: agenttest.New()}})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			done := make(chan error, 1)
			go func() { done <- s.Serve(l) }()
			b.Cleanup(func() { s.Close(); require.NoError(b, <-done) })
			conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(b, err)
			b.Cleanup(func() { _ = conn.Close() })
			stream, err := agentv1.NewDiscoveryServiceClient(conn).HeartbeatStream(b.Context())
			require.NoError(b, err)
			req := &agentv1.HeartbeatRequest{}
			for i := range n {
				req.LeaseIds = append(req.LeaseIds, fmt.Sprintf("lease-%032x", i))
			}
			messages := (b.N + n - 1) / n
			window := make(chan struct{}, 64)
			before := cpu(b)
			b.ResetTimer()
			go func() {
				for range messages {
					window <- struct{}{}
					if stream.Send(req) != nil {
						return
					}
				}
			}()
			for range messages {
				resp, err := stream.Recv()
				require.NoError(b, err)
				require.Len(b, resp.GetBeats(), n)
				<-window
			}
			b.StopTimer()
			b.ReportMetric(float64(messages*n)/b.Elapsed().Seconds(), "beats/s")
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(messages*n), "cpu-ns/op")
		})
	}
}

// cpu is the time that this process has had of processors.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
