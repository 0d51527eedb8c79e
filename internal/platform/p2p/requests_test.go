package p2p

import (
	"sync"
	"testing"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/rpc"
)

// Requests to one peer do not wait for each other: this peer answers once all have arrived.
func TestRequestsGoAtOnce(t *testing.T) {
	const spoken, many = protocol.ID("/test/kad/1.0.0"), lookupCalls
	asking, asked := start(t, testConfig(t)), start(t, testConfig(t))
	var arrived sync.WaitGroup
	arrived.Add(many)
	asked.host.SetStreamHandler(spoken, func(s network.Stream) {
		m, codec := new(dhtpb.Message), rpc.NewCodec(s, rpc.Unlimited{}, rpc.Format{MaxSize: 1 << 10})
		err := codec.ReadMessage(m)
		if arrived.Done(); err == nil {
			arrived.Wait()
			err = codec.WriteMessage(m)
		}
		if err != nil {
			_ = s.Reset()
		}
	})
	require.NoError(t, asking.host.Connect(t.Context(), info(asked)))
	r := newRequests(nil, asking.host, spoken)
	defer r.close()
	var answers sync.WaitGroup
	for i := range many {
		answers.Go(func() {
			sent := dhtpb.NewMessage(dhtpb.Message_FIND_NODE, []byte{byte(i)}, 0)
			got, err := r.SendRequest(t.Context(), asked.host.ID(), sent)
			if err != nil || string(got.GetKey()) != string(sent.GetKey()) {
				t.Errorf("request %d: %v %v", i, got, err)
			}
		})
	}
	answers.Wait()
	require.Positive(t, asking.host.Peerstore().LatencyEWMA(asked.host.ID()))
}

// A server of kad-dht understands the frames.
func TestRequestsReachTheDHT(t *testing.T) {
	nodes := meet(t, 3)
	r := newRequests(nodes[1].dht.MessageSender(), nodes[1].host, nodes[1].Routing().finder.protocol)
	defer r.close()
	messages, err := dhtpb.NewProtocolMessenger(r)
	require.NoError(t, err)
	require.Equal(t, dht.ModeServer, nodes[0].dht.Mode())
	closer, err := messages.GetClosestPeers(t.Context(), nodes[0].host.ID(), nodes[2].host.ID())
	require.NoError(t, err)
	require.NotEmpty(t, closer)
}
