package coordination_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
)

// TestAnnounced: a client without a route to any member learns the leader from forwarded announcements, and
// its successor after a stop.
func TestAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 5)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		far, near := w.peers[4], w.peers[3]
		for _, p := range w.peers {
			if p != near && p != far {
				far.host.Peerstore().ClearAddrs(p.host.ID())
				p.host.Peerstore().ClearAddrs(far.host.ID())
			}
		}
		for _, p := range w.peers {
			var err error
			p.gossip, err = pubsub.NewGossipSub(ctx, p.host, pubsub.WithMessageSignaturePolicy(pubsub.StrictNoSign),
				pubsub.WithNoAuthor(), pubsub.WithMessageIdFn(func(m *pb.Message) string { return string(m.GetData()) }))
			require.NoError(t, err)
			if p != near {
				_, err = p.host.Network().DialPeer(ctx, near.host.ID())
				require.NoError(t, err)
			}
		}
		for i := range w.peers {
			w.start(i, w.listed(3))
		}
		knows := func() string {
			s, err := far.Group(t.Context())
			require.NoError(t, err)
			return s.Leader
		}
		lead := ""
		w.await("it is told who leads", func() bool { lead = knows(); return lead != "" })
		first := w.named(lead)
		first.stop(t)
		w.await("it is told who leads now", func() bool { lead = knows(); return lead != "" && lead != first.id() })
		// It checks the leader now and then, fails to reach it, and waits for the next announcement.
		w.await("it is served", func() bool {
			_, _, err := ops.Of(far).Do(t.Context(), ops.Command{Owner: far.id(), Op: &ops.LeaseGrant{TTL: 10_000}})
			return err == nil
		})
		for _, p := range w.peers {
			p.stop(t)
		}
		cancel()
		time.Sleep(time.Minute)
	})
}
