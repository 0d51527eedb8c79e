package gossip

import (
	"fmt"
	"runtime"
	"testing"

	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// nth returns well-formed topics.
func nth(i int) string { return fmt.Sprintf("/blackhole/test/live/1/t%d/global", i) }

func sub(topic string) *pb.RPC_SubOpts {
	return &pb.RPC_SubOpts{Topicid: proto.String(topic), Subscribe: proto.Bool(true)}
}

func unsub(topic string) *pb.RPC_SubOpts {
	return &pb.RPC_SubOpts{Topicid: proto.String(topic), Subscribe: proto.Bool(false)}
}

func (f *filter) filter(tb testing.TB, from peer.ID, subs ...*pb.RPC_SubOpts) []*pb.RPC_SubOpts {
	tb.Helper()
	got, err := f.FilterIncomingSubscriptions(from, subs)
	require.NoError(tb, err)
	return got
}

func TestFilterChecksGrammar(t *testing.T) {
	f := newFilter("test")
	require.True(t, f.CanSubscribe(cellTopic))
	require.False(t, f.CanSubscribe("weather"))
	good := sub(cellTopic)
	require.Equal(t, []*pb.RPC_SubOpts{good}, f.filter(t, sender, sub("weather"), good, sub(""), &pb.RPC_SubOpts{}))
}

// The bound applies over the lifetime of a peer, for any distribution over RPCs.
func TestFilterCountsAcrossRPCs(t *testing.T) {
	f := newFilter("test")
	for i := range 10 * maxPeerTopics {
		require.Equal(t, i < maxPeerTopics, len(f.filter(t, sender, sub(nth(i)))) == 1, i)
	}
	require.Len(t, f.filter(t, sender, sub(nth(0))), 1, "a repeated subscription")
	require.Len(t, f.filter(t, sender, unsub(nth(0)), sub(nth(500))), 2, "one leaves, one joins")
	require.Empty(t, f.filter(t, sender, sub(nth(0))))
	require.Empty(t, f.filter(t, sender, unsub(nth(0))), "a refused topic cannot be left")
	require.Len(t, f.filter(t, "another", sub(nth(0))), 1)

	(&tracer{subscriptions: f}).OnClosedOutboundStream(sender)
	require.Equal(t, 1, f.peers.Len())
	require.Len(t, f.filter(t, sender, sub(nth(0))), 1, "a new connection has no history")
}

func TestFilterForgetsPeersWithoutTopics(t *testing.T) {
	f := newFilter("test")
	f.filter(t, sender, sub("weather"), unsub(nth(1)))
	require.Zero(t, f.peers.Len())
	f.filter(t, sender, sub(nth(1)))
	f.filter(t, sender, unsub(nth(1)))
	require.Zero(t, f.peers.Len())
}

func TestFilterBoundsPeers(t *testing.T) {
	f := newFilter("test")
	for i := range 2 * maxPeers {
		require.Len(t, f.filter(t, peer.ID(fmt.Sprint(i)), sub(nth(1))), 1)
	}
	require.Equal(t, maxPeers, f.peers.Len())
}

// BenchmarkFilterFull measures the remaining memory after a million subscriptions of hostile
// peers.
func BenchmarkFilterFull(b *testing.B) {
	for b.Loop() {
		before, after := new(runtime.MemStats), new(runtime.MemStats)
		runtime.GC()
		runtime.ReadMemStats(before)
		f := newFilter("test")
		for p := range 2 * maxPeers {
			for i := range 500 {
				f.filter(b, peer.ID(fmt.Sprint(p)), sub(nth(p*500+i)))
			}
		}
		runtime.GC()
		runtime.ReadMemStats(after)
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "MiB")
		runtime.KeepAlive(f)
	}
}

// For the admitted subscriptions, pubsub's state equals the count of the filter.
func TestFilterAgreesWithPubsub(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f, kept := newFilter("test"), make(map[string]struct{})
		for range rapid.IntRange(1, 20).Draw(rt, "rpcs") {
			var subs []*pb.RPC_SubOpts
			for range rapid.IntRange(0, 40).Draw(rt, "subs") {
				subs = append(subs, &pb.RPC_SubOpts{
					Topicid:   proto.String(nth(rapid.IntRange(0, 2*maxPeerTopics).Draw(rt, "topic"))),
					Subscribe: proto.Bool(rapid.IntRange(0, 3).Draw(rt, "subscribe") > 0),
				})
			}
			for _, s := range f.filter(t, sender, subs...) {
				if s.GetSubscribe() {
					kept[s.GetTopicid()] = struct{}{}
				} else {
					delete(kept, s.GetTopicid())
				}
			}
			topics, _ := f.peers.Get(sender)
			if len(kept) > maxPeerTopics || len(kept) != len(topics) {
				rt.Fatalf("pubsub keeps %d, the filter counts %d", len(kept), len(topics))
			}
		}
	})
}
