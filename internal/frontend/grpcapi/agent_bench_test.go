package grpcapi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/blackhole/blackhole/internal/agent"
	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/instance"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// quick only answers heartbeats, so that a benchmark measures the front end.
type quick struct{ instances.Registrar }

func (quick) Heartbeat(_ context.Context, refs []instances.Ref) ([]instances.Beat, error) {
	beats := make([]instances.Beat, len(refs))
	for n, ref := range refs {
		beats[n] = instances.Beat{Lease: ref.Lease, Status: instance.StatusUp, TTL: 30 * time.Second}
	}
	return beats, nil
}

// BenchmarkHeartbeat renews leases on loopback, with so many in a call and some calls under way: with the front end alone, and with the agent of a peer that has 10,000
// instances behind it. An operation is one heartbeat, including the work of the client.
func BenchmarkHeartbeat(b *testing.B) {
	for _, n := range []int{1, 16, 256, 4096} {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			var leases []string
			for i := range n {
				leases = append(leases, fmt.Sprintf("lease-%032x", i))
			}
			heartbeats(b, quick{}, agenttest.New(), [][]string{leases})
		})
	}
	for _, n := range []int{1, 16, 256, 4096} {
		b.Run(fmt.Sprintf("agent/leases=%d", n), func(b *testing.B) {
			s, err := agent.New(agent.Config{
				Registry: registry.Config{Dir: "instances", FS: vfs.NewMem(), Self: "me"}, Now: time.Now,
				Checks: health.Config{Random: rand.Uint64},
			})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, s.Close()) })
			var leases []string
			for i := range 10_000 {
				r := agenttest.Web(fmt.Sprint("i", i))
				r.Spec.UnhealthyAfter, r.Spec.RemoveAfter = time.Hour, 2*time.Hour
				done, err := s.Register(b.Context(), r)
				require.NoError(b, err)
				leases = append(leases, done.Lease)
			}
			heartbeats(b, s, s, slices.Collect(slices.Chunk(leases[:len(leases)/n*n], n)))
		})
	}
}

// heartbeats sends the batches in turn.
func heartbeats(b *testing.B, registrar instances.Registrar, catalog instances.Catalog, batches [][]string) {
	n := len(batches[0])
	s := grpcapi.New(grpcapi.Config{Agent: &grpcapi.Agent{Registrar: registrar, Catalog: catalog}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	b.Cleanup(func() { s.Close(); require.NoError(b, <-done) })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	client := agentv1.NewDiscoveryServiceClient(conn)
	messages, window := (b.N+n-1)/n, make(chan struct{}, 64)
	before := cpu(b)
	b.ResetTimer()
	var calls sync.WaitGroup
	for m := range messages {
		window <- struct{}{}
		calls.Go(func() {
			resp, err := client.Heartbeat(b.Context(), &agentv1.HeartbeatRequest{LeaseIds: batches[m%len(batches)]})
			if err != nil || len(resp.GetBeats()) != n || resp.GetBeats()[n-1].GetTtlMs() == 0 {
				b.Error(err, resp)
			}
			<-window
		})
	}
	calls.Wait()
	b.StopTimer()
	b.ReportMetric(float64(messages*n)/b.Elapsed().Seconds(), "beats/s")
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(messages*n), "cpu-ns/op")
}

// cpu returns the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
