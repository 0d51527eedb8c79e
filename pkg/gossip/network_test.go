package gossip

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mocknet "github.com/libp2p/go-libp2p/p2p/net/mock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/records"
)

func TestMain(m *testing.M) {
	code := m.Run()
	var left error
	for range 60 { // pubsub ends after its context, later on a busy machine: each round takes half a second
		left = goleak.Find(
			// A stream of the mock network may outlive it, if opened during the close.
			goleak.IgnoreTopFunction("github.com/libp2p/go-libp2p/p2p/net/mock.(*stream).transport"),
			// A stream opened during the close of its host ends later.
			goleak.IgnoreAnyFunction("github.com/libp2p/go-libp2p-pubsub.(*PubSub).handleNewStream"))
		if code != 0 || left == nil {
			os.Exit(code)
		}
	}
	fmt.Fprintln(os.Stderr, "left over:", left)
	os.Exit(1)
}

// cluster is a mock network that ends with its test.
type cluster struct{ mocknet.Mocknet }

func newCluster(t *testing.T) cluster {
	t.Helper()
	w := cluster{mocknet.New()}
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// connect connects two hosts.
func (w cluster) connect(t *testing.T, a, b host.Host) {
	t.Helper()
	_, err := w.LinkPeers(a.ID(), b.ID())
	require.NoError(t, err)
	_, err = w.ConnectPeers(a.ID(), b.ID())
	require.NoError(t, err)
	introduce(t, a, b)
	introduce(t, b, a)
}

// introduce lets a host identify another one again, if that one speaks the protocol. In the mock
// network a host may answer an identify request before it has registered a protocol, and does not
// correct the answer.
func introduce(t *testing.T, to, other host.Host) {
	t.Helper()
	spoken := slices.DeleteFunc(other.Mux().Protocols(), func(id protocol.ID) bool { return !compatible(Protocol("test"))(id) })
	if len(spoken) == 0 {
		return
	}
	e, err := to.EventBus().Emitter(new(event.EvtPeerProtocolsUpdated))
	require.NoError(t, err)
	require.NoError(t, e.Emit(event.EvtPeerProtocolsUpdated{Peer: other.ID(), Added: spoken}))
	require.NoError(t, e.Close())
}

// star connects nodes to a hub and waits until all of them can publish: pubsub drops messages for
// a peer without a stream, even with a known subscription.
func (w cluster) star(t *testing.T, hub *node, rays ...*node) {
	t.Helper()
	for _, n := range rays {
		w.connect(t, hub.Host, n.Host)
		hub.await(t, happening{"up", n.ID(), ""})
		n.await(t, happening{"up", hub.ID(), ""})
	}
}

func (w cluster) host(t *testing.T) host.Host {
	t.Helper()
	h, err := w.GenPeer()
	require.NoError(t, err)
	return h
}

// happening is an event for a test.
type happening struct {
	what  string // subscribe, unsubscribe, graft, up, down
	peer  peer.ID
	topic string
}

// node is a peer of a test.
type node struct {
	host.Host
	ps       *pubsub.PubSub
	g        *Gossip
	got      chan *records.Record
	outcomes chan string
	lost     chan Topic
	events   chan happening

	mu    sync.Mutex // guards known
	known map[records.Name]*records.Record

	tracer // the other methods have no effect
}

func (n *node) Received(outcome string) { n.outcomes <- outcome }

func (n *node) RecvRPC(rpc *pubsub.RPC) {
	for _, s := range rpc.GetSubscriptions() {
		what := "unsubscribe"
		if s.GetSubscribe() {
			what = "subscribe"
		}
		n.events <- happening{what, rpc.From(), s.GetTopicid()}
	}
}

func (n *node) Graft(id peer.ID, topic string) { n.events <- happening{"graft", id, topic} }

func (n *node) OnNewOutboundStream(id peer.ID, _ protocol.ID) { n.events <- happening{"up", id, ""} }

func (n *node) OnClosedOutboundStream(id peer.ID) { n.events <- happening{"down", id, ""} }

func (n *node) RejectMessage(*pubsub.Message, string) {}

func (n *node) UndeliverableMessage(*pubsub.Message) {}

func (n *node) latest(name records.Name) (*records.Record, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, ok := n.known[name]
	return r, ok
}

func (n *node) learn(r *records.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[r.Name()] = r
}

func (w cluster) node(t *testing.T, more ...pubsub.Option) *node {
	t.Helper()
	n := &node{
		Host: w.host(t), known: make(map[records.Name]*records.Record),
		// Larger than the number of events in any test: pubsub must not wait for the test.
		got: make(chan *records.Record, 1<<12), outcomes: make(chan string, 1<<12), lost: make(chan Topic, 1<<12), events: make(chan happening, 1<<14),
	}
	verifier, err := records.NewVerifier("test", 1024)
	require.NoError(t, err)
	c := Config{
		Network:  "test",
		Verifier: verifier, Known: n.latest, Now: t0, Received: n.Received, Loopback: true,
		Sink: func(r *records.Record) { n.got <- r },
		Lost: func(t Topic) { n.lost <- t },
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.ps, err = pubsub.NewGossipSub(ctx, n.Host, append(append(Options(c), pubsub.WithRawTracer(n)), more...)...)
	require.NoError(t, err)
	n.g, err = New(c, n.ps)
	require.NoError(t, err)
	t.Cleanup(func() { n.g.Close(); cancel() })
	return n
}

// receive waits for a value, with a timeout.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		require.FailNow(t, "no value arrived")
		panic("not reached")
	}
}

// await skips events until all wanted ones have arrived, in any order. On return pubsub's loop has
// processed them, so later calls follow them.
func (n *node) await(t *testing.T, wanted ...happening) {
	t.Helper()
	missing := make(map[happening]bool)
	for _, h := range wanted {
		missing[h] = true
	}
	for len(missing) > 0 {
		delete(missing, receive(t, n.events))
	}
}

func (n *node) follow(t *testing.T, topics ...Topic) (release func()) {
	t.Helper()
	release, err := n.g.Follow(topics)
	require.NoError(t, err)
	return release
}

// announce publishes a record and adds it to the known records of its publisher.
func (n *node) announce(t *testing.T, r *records.Record) {
	t.Helper()
	n.learn(r)
	require.NoError(t, n.g.Publish(t.Context(), r))
}

// stranger is a peer that speaks the protocol by hand. It reads nothing.
type stranger struct {
	host.Host
	stream network.Stream
}

// intrude opens a stream to a node. To a listening stranger pubsub opens a stream, and scores it.
func (w cluster) intrude(t *testing.T, victim *node, listens bool) *stranger {
	t.Helper()
	s := &stranger{Host: w.host(t)}
	if listens {
		s.SetStreamHandler(Protocol("test"), func(in network.Stream) { _, _ = io.Copy(io.Discard, in) })
	}
	w.connect(t, victim.Host, s.Host)
	if listens {
		victim.await(t, happening{"up", s.ID(), ""})
	}
	s.open(t, victim)
	return s
}

func (s *stranger) open(t *testing.T, victim *node) {
	t.Helper()
	var err error
	s.stream, err = s.NewStream(t.Context(), victim.ID(), Protocol("test"))
	require.NoError(t, err)
}

func (s *stranger) send(t *testing.T, rpc *pb.RPC) {
	t.Helper()
	b, err := proto.Marshal(rpc)
	require.NoError(t, err)
	_, err = s.stream.Write(append(binary.AppendUvarint(nil, uint64(len(b))), b...))
	require.NoError(t, err)
}

func (s *stranger) publish(t *testing.T, topic string, data []byte) {
	t.Helper()
	s.send(t, &pb.RPC{Publish: []*pb.Message{message(topic, data).Message}})
}
