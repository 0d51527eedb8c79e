package routing

import (
	"sync"
	"testing"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/rpc"
)

// Requests to one peer do not wait for each other: this peer answers once all have arrived.
func TestRequestsGoAtOnce(t *testing.T) {
	const spoken, many = protocol.ID("/test/kad/1.0.0"), lookupCalls
	asking, asked := newHost(t, dht.ModeServer, nil).finder.host, newHost(t, dht.ModeServer, nil).finder.host
	var arrived sync.WaitGroup
	arrived.Add(many)
	asked.SetStreamHandler(spoken, func(s network.Stream) {
		m, codec := new(dhtpb.Message), rpc.NewCodec(s, &network.NullScope{}, rpc.Format{MaxSize: 1 << 10})
		err := codec.ReadMessage(m)
		if arrived.Done(); err == nil {
			arrived.Wait()
			err = codec.WriteMessage(m)
		}
		if err != nil {
			_ = s.Reset()
		}
	})
	require.NoError(t, asking.Connect(t.Context(), peer.AddrInfo{ID: asked.ID(), Addrs: asked.Addrs()}))
	r := newRequests(nil, asking, spoken)
	defer r.pool.Close()
	var answers sync.WaitGroup
	for i := range many {
		answers.Go(func() {
			sent := dhtpb.NewMessage(dhtpb.Message_FIND_NODE, []byte{byte(i)}, 0)
			got, err := r.SendRequest(t.Context(), asked.ID(), sent)
			if err != nil || string(got.GetKey()) != string(sent.GetKey()) {
				t.Errorf("request %d: %v %v", i, got, err)
			}
		})
	}
	answers.Wait()
	require.Positive(t, asking.Peerstore().LatencyEWMA(asked.ID()))
}

// A server of kad-dht understands the frames.
func TestRequestsReachTheDHT(t *testing.T) {
	asked := newHost(t, dht.ModeServer, nil)
	other, asking := newHost(t, dht.ModeServer, []*Routing{asked}), newHost(t, dht.ModeServer, []*Routing{asked})
	r := newRequests(asking.dht.MessageSender(), asking.finder.host, asked.finder.protocol)
	defer r.pool.Close()
	messages, err := dhtpb.NewProtocolMessenger(r)
	require.NoError(t, err)
	require.Equal(t, dht.ModeServer, asked.dht.Mode())
	require.Eventually(t, func() bool { return asked.Size() == 2 }, time.Minute, time.Millisecond)
	closer, err := messages.GetClosestPeers(t.Context(), asked.finder.host.ID(), other.finder.host.ID())
	require.NoError(t, err)
	require.NotEmpty(t, closer)
}
