package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
)

// flow is a way to send heartbeats on a stream.
type flow struct {
	leases int // in a message
	window int // unanswered messages
}

// stream sends heartbeats over one stream. Consul has no equivalent.
func (s *session) stream(ctx context.Context) error {
	systems, end, err := s.open(ctx, s.kinds[:1])
	if err != nil {
		return err
	}
	defer end()
	one := systems[0]
	answers, err := one.each(ctx, crowd(s.instances, ""), one.enroll)
	if err != nil {
		return err
	}
	leases := make([]string, len(answers))
	for i, text := range answers {
		leases[i] = leaseOf(text)
	}
	conn, err := grpc.NewClient(one.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fault.As("stream", fault.Unavailable, err)
	}
	defer conn.Close()
	s.table(fmt.Sprintf("Heartbeats of %d instances over one gRPC stream; latencies are those of a message", s.instances))
	for _, f := range []flow{{1, 1}, {1, 256}, {10, 64}, {100, 16}, {500, 4}} {
		label := fmt.Sprintf("%d a message, %d messages under way", f.leases, f.window)
		pump := func(ctx context.Context, _ int) (sample, error) {
			before := one.server.Spent()
			out, err := pump(ctx, conn, f, leases, s.Duration)
			out.server, out.load = one.server.Spent()-before, child.Load()
			return out, err
		}
		if err := s.compare(ctx, []task{{one, label, 1, pump}}); err != nil {
			return err
		}
	}
	return nil
}

// pump renews leases in turn for a time. Answers come in request order.
func pump(ctx context.Context, conn *grpc.ClientConn, f flow, leases []string, d time.Duration) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream, and with it the sender
	stream, err := agentv1.NewDiscoveryServiceClient(conn).HeartbeatStream(ctx)
	if err != nil {
		return sample{}, fault.As("pump", fault.Unavailable, err)
	}
	sent, failed := make(chan time.Time, f.window-1), make(chan error, 1) // the answer being received is in flight too
	before, began := child.Used(), time.Now()
	go func() { // ends with the stream
		defer close(sent)
		for n := 0; time.Since(began) < d; n += f.leases {
			select {
			case sent <- time.Now():
			case <-ctx.Done():
				return
			}
			if err := stream.Send(beats(leases, n, f.leases)); err != nil {
				failed <- err
				return
			}
		}
	}()
	var took []time.Duration
	for start := range sent {
		got, err := stream.Recv()
		if err == nil {
			err = renewed(got, f.leases)
		}
		if err != nil {
			return sample{}, fault.As("pump", fault.Unavailable, err)
		}
		took = append(took, time.Since(start))
	}
	out := sample{count: len(took) * f.leases, seconds: time.Since(began).Seconds(), client: child.Used() - before}
	out.latencies(took)
	select {
	case err := <-failed:
		return out, fault.As("pump", fault.Unavailable, err)
	default:
		return out, nil
	}
}

// beats is a message with the next n leases.
func beats(leases []string, from, n int) *agentv1.HeartbeatRequest {
	from %= len(leases)
	if n == 1 {
		return &agentv1.HeartbeatRequest{LeaseId: leases[from]}
	}
	some := leases[from:min(from+n, len(leases))]
	if len(some) < n {
		some = slices.Concat(some, leases[:n-len(some)])
	}
	return &agentv1.HeartbeatRequest{LeaseIds: some}
}

// renewed checks that each lease was renewed.
func renewed(got *agentv1.HeartbeatResponse, n int) error {
	if n == 1 && got.GetTtl() > 0 {
		return nil
	}
	lives := 0
	for _, b := range got.GetBeats() {
		if b.GetTtlMs() > 0 {
			lives++
		}
	}
	if lives != n {
		return fault.New("renewed", fault.NotFound, "%d of %d leases were renewed", lives, n)
	}
	return nil
}
