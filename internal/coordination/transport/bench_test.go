package transport

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// loopback returns two hosts on real sockets.
func loopback(b *testing.B, transport string) []host.Host {
	listen, opt := "/ip4/127.0.0.1/tcp/0", libp2p.Transport(tcp.NewTCPTransport)
	if transport == "quic" {
		listen, opt = "/ip4/127.0.0.1/udp/0/quic-v1", libp2p.Transport(libp2pquic.NewTransport)
	}
	all := make([]host.Host, 2)
	for i := range all {
		h, err := libp2p.New(libp2p.ListenAddrStrings(listen), opt, libp2p.DisableRelay(), libp2p.DisableMetrics())
		require.NoError(b, err)
		b.Cleanup(func() { _ = h.Close() })
		all[i] = h
	}
	introduce(all)
	return all
}

// sink counts received messages, and echoes them if it has a way back.
type sink struct {
	n    atomic.Int64
	more chan struct{}
	back func()
}

func (s *sink) Receive(*raftpb.Message) {
	s.n.Add(1)
	if s.back != nil {
		s.back()
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *sink) Unreachable(uint64, bool)  {}
func (s *sink) SnapshotSent(uint64, bool) { s.more <- struct{}{} }

func benchPair(b *testing.B, transport string) ([]*Transport, []*sink) {
	all := loopback(b, transport)
	g := &group{peers: map[uint64]peer.ID{1: all[0].ID(), 2: all[1].ID()}}
	var ts []*Transport
	sinks := []*sink{{more: make(chan struct{}, 1)}, {more: make(chan struct{}, 1)}}
	for i, h := range all {
		c := basic(h, uint64(i+1))
		c.Lookup = g.lookup
		t := New(c)
		t.Start(sinks[i])
		b.Cleanup(func() { _ = t.Close() })
		ts = append(ts, t)
	}
	return ts, sinks
}

// each runs a benchmark over both usual transports of libp2p.
func each(b *testing.B, f func(b *testing.B, transport string)) {
	for _, transport := range []string{"tcp", "quic"} {
		b.Run(transport, func(b *testing.B) { f(b, transport) })
	}
}

// BenchmarkAppends keeps 256 appends in flight, like Raft's pipelining.
func BenchmarkAppends(b *testing.B) {
	each(b, func(b *testing.B, transport string) {
		for _, size := range []int{128, 4 << 10, 256 << 10} {
			b.Run(fmt.Sprint(size), func(b *testing.B) {
				ts, sinks := benchPair(b, transport)
				window := int64(min(256, (16<<20)/size))
				batch := make([]*raftpb.Message, 1)
				b.SetBytes(int64(size))
				for i := int64(0); b.Loop(); i++ {
					for i-sinks[1].n.Load() >= window {
						<-sinks[1].more
					}
					batch[0] = appending(1, 2, uint64(i), size)
					ts[0].Send(batch)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
			})
		}
	})
}

// BenchmarkHeartbeat measures the round trip of a heartbeat.
func BenchmarkHeartbeat(b *testing.B) {
	each(b, func(b *testing.B, transport string) {
		ts, sinks := benchPair(b, transport)
		sinks[1].back = func() { ts[1].Send([]*raftpb.Message{message(raftpb.MsgHeartbeatResp, 2, 1)}) }
		for b.Loop() {
			ts[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
			<-sinks[0].more
		}
	})
}

// BenchmarkSnapshot sends 64 MiB from memory to memory.
func BenchmarkSnapshot(b *testing.B) {
	each(b, func(b *testing.B, transport string) {
		ts, sinks := benchPair(b, transport)
		state := noise(64 << 20)
		b.SetBytes(int64(len(state)))
		for b.Loop() {
			ts[0].Send([]*raftpb.Message{snapshotOf(1, 2, state)})
			<-sinks[0].more
		}
		require.Equal(b, int64(b.N), sinks[1].n.Load())
	})
}

// BenchmarkAsk measures one small question with its stream.
func BenchmarkAsk(b *testing.B) {
	each(b, func(b *testing.B, transport string) {
		var asks []*Exchange
		all := loopback(b, transport)
		for _, h := range all {
			x := NewExchange(ExchangeConfig{
				Host: h, Network: "test", Handlers: map[Topic]AskHandler{Information: echo}, Logger: slog.New(slog.DiscardHandler),
				Known: func(peer.ID) bool { return true },
			})
			b.Cleanup(func() { _ = x.Close() })
			asks = append(asks, x)
		}
		for b.Loop() {
			_, err := asks[0].Ask(b.Context(), all[1].ID(), Information, make([]byte, 100))
			require.NoError(b, err)
		}
	})
}

// BenchmarkCall measures one gRPC call on an open connection.
func BenchmarkCall(b *testing.B) {
	each(b, func(b *testing.B, transport string) {
		all := loopback(b, transport)
		serveCalls(b, plain, all[0])
		client := callerOf(b, all[1], Target(all[0].ID()))
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprint(callers), func(b *testing.B) {
				b.SetParallelism(callers)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						_, _ = client.Check(b.Context(), new(healthv1.HealthCheckRequest))
					}
				})
			})
		}
	})
}
