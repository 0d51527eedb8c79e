package gossip

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/pkg/network"
)

const (
	// maxPeerTopics bounds the followed topics of one peer. It is twice MaxFollowed: with a full
	// queue pubsub sends an unsubscription late, so an honest peer may exceed the limit for a
	// moment, and a refused subscription is never sent again.
	maxPeerTopics = 2 * MaxFollowed

	// maxPeers bounds the tracked peers, well above the connections of a host. Only peers that
	// never accepted a stream outlive their connection here. The least recently active peer is
	// dropped first.
	maxPeers = 1024
)

// filter admits subscriptions to well-formed topics, in a bounded number per peer. Pubsub itself
// stores every subscription; its own limiting filter counts within one RPC, which a peer can
// repeat. The filter admits topics that this peer does not follow: publishing needs to know their
// subscribers.
type filter struct {
	network network.Name

	mu    sync.Mutex                             // guards peers; held for map operations only
	peers *lru.LRU[peer.ID, map[string]struct{}] // followed topics by peer
}

var _ pubsub.SubscriptionFilter = (*filter)(nil)

func newFilter(n network.Name) *filter {
	peers, err := lru.NewLRU[peer.ID, map[string]struct{}](maxPeers, nil)
	if err != nil {
		panic("gossip: " + err.Error()) // impossible: the size is a positive constant
	}
	return &filter{network: n, peers: peers}
}

// CanSubscribe reports whether a topic is well-formed.
func (f *filter) CanSubscribe(topic string) bool {
	_, err := parseTopic(f.network, topic)
	return err == nil
}

// FilterIncomingSubscriptions returns the admitted subscriptions of a peer's RPC, in order.
func (f *filter) FilterIncomingSubscriptions(from peer.ID, subs []*pb.RPC_SubOpts) ([]*pb.RPC_SubOpts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	topics, ok := f.peers.Get(from)
	if !ok {
		topics = make(map[string]struct{})
	}
	var admitted []*pb.RPC_SubOpts
	for _, sub := range subs {
		if f.admit(topics, sub) {
			admitted = append(admitted, sub)
		}
	}
	if len(topics) == 0 {
		f.peers.Remove(from)
	} else if !ok {
		f.peers.Add(from, topics)
	}
	return admitted, nil
}

// admit updates the topics of a peer and reports whether the change is admitted.
func (f *filter) admit(topics map[string]struct{}, sub *pb.RPC_SubOpts) bool {
	topic := sub.GetTopicid()
	_, known := topics[topic]
	switch {
	case !sub.GetSubscribe():
		delete(topics, topic)
		return known
	case known:
		return true // pubsub forgets it when it replaces a stream
	case len(topics) >= maxPeerTopics, !f.CanSubscribe(topic):
		return false
	}
	topics[topic] = struct{}{}
	return true
}

// forget removes a disconnected peer, like pubsub.
func (f *filter) forget(id peer.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers.Remove(id)
}

// tracer receives events of pubsub that its other interfaces do not report: a disconnected peer,
// and messages lost before or after the validator. Pubsub waits for its methods.
type tracer struct {
	Config
	subscriptions *filter
}

var _ pubsub.RawTracer = (*tracer)(nil)

// OnClosedOutboundStream handles the end of a peer's connection.
func (t *tracer) OnClosedOutboundStream(id peer.ID) { t.subscriptions.forget(id) }

// RejectMessage counts messages rejected before the validator.
func (t *tracer) RejectMessage(m *pubsub.Message, reason string) {
	switch reason {
	case pubsub.RejectValidationQueueFull:
		t.lose(m, queueFull)
	case pubsub.RejectUnexpectedSignature, pubsub.RejectUnexpectedAuthInfo:
		t.Received(string(altered))
	}
}

// UndeliverableMessage counts messages lost by a slow Sink.
func (t *tracer) UndeliverableMessage(m *pubsub.Message) { t.lose(m, dropped) }

func (t *tracer) lose(m *pubsub.Message, o outcome) {
	t.Received(string(o))
	if topic, err := parseTopic(t.Network, m.GetTopic()); err == nil {
		t.Lost(topic)
	}
}

// The remaining methods have no effect.

func (*tracer) OnNewOutboundStream(peer.ID, protocol.ID) {}
func (*tracer) Join(string)                              {}
func (*tracer) Leave(string)                             {}
func (*tracer) Graft(peer.ID, string)                    {}
func (*tracer) Prune(peer.ID, string)                    {}
func (*tracer) ValidateMessage(*pubsub.Message)          {}
func (*tracer) DeliverMessage(*pubsub.Message)           {}
func (*tracer) DuplicateMessage(*pubsub.Message)         {}
func (*tracer) ThrottlePeer(peer.ID)                     {}
func (*tracer) RecvRPC(*pubsub.RPC)                      {}
func (*tracer) SendRPC(*pubsub.RPC, peer.ID)             {}
func (*tracer) DropRPC(*pubsub.RPC, peer.ID)             {}
