package gossip

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

const (
	// maxPeerTopics bounds the topics that we know a peer to follow at one time. It is
	// twice MaxFollowed: when a queue was full pubsub sends an unsubscription late, so an
	// honest peer may seem to follow more for a moment, and a subscription that is refused
	// is never sent again.
	maxPeerTopics = 2 * MaxFollowed

	// maxPeers bounds the peers that are kept account of, well above the connections that
	// a host allows. Only peers that never accepted a stream from us outlive their
	// connection here; they are forgotten when room is needed, longest silent first.
	maxPeers = 1024
)

// filter admits subscriptions to well-formed topics, boundedly many of one peer. Pubsub
// itself keeps whatever it is told; its own limiting filter counts within one RPC, which a
// peer can repeat. Topics we do not follow are admitted too, because whom we publish to is
// found out in no other way.
type filter struct {
	others func(topic string) bool

	mu    sync.Mutex                             // guards peers; held for map operations only
	peers *lru.LRU[peer.ID, map[string]struct{}] // topics, by the peer that follows them
}

var _ pubsub.SubscriptionFilter = (*filter)(nil)

func newFilter(others func(topic string) bool) *filter {
	peers, err := lru.NewLRU[peer.ID, map[string]struct{}](maxPeers, nil)
	if err != nil {
		panic("gossip: " + err.Error()) // impossible: the size is a positive constant
	}
	return &filter{others: others, peers: peers}
}

// CanSubscribe reports whether a topic is well-formed, or another's.
func (f *filter) CanSubscribe(topic string) bool {
	_, err := ParseTopic(topic)
	return err == nil || f.others(topic)
}

// FilterIncomingSubscriptions gives what of a peer's RPC is admitted, in its order.
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

// admit keeps one peer's topics up to date.
func (f *filter) admit(topics map[string]struct{}, sub *pb.RPC_SubOpts) bool {
	topic := sub.GetTopicid()
	_, known := topics[topic]
	switch {
	case !sub.GetSubscribe():
		delete(topics, topic)
		return known
	case known:
		return true // pubsub may have forgotten it: it does when a stream is replaced
	case len(topics) >= maxPeerTopics, !f.CanSubscribe(topic):
		return false
	}
	topics[topic] = struct{}{}
	return true
}

// forget frees the account of a peer that is gone, as pubsub does.
func (f *filter) forget(id peer.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers.Remove(id)
}

// tracer is told by pubsub what its other interfaces do not say: that a peer is gone, and
// that messages were lost before or behind the validator. Pubsub calls it from its loop
// and its workers and waits for it.
type tracer struct {
	recorder      Recorder
	subscriptions *filter
}

var _ pubsub.RawTracer = (*tracer)(nil)

// OnClosedOutboundStream is called for a peer whose connection ended.
func (t *tracer) OnClosedOutboundStream(id peer.ID) { t.subscriptions.forget(id) }

// RejectMessage counts what never reached the validator.
func (t *tracer) RejectMessage(_ *pubsub.Message, reason string) {
	switch reason {
	case pubsub.RejectValidationQueueFull:
		t.recorder.Received(string(throttled))
	case pubsub.RejectUnexpectedSignature, pubsub.RejectUnexpectedAuthInfo:
		t.recorder.Received(string(forged))
	}
}

// UndeliverableMessage counts what the Sink was too slow for.
func (t *tracer) UndeliverableMessage(*pubsub.Message) { t.recorder.Received(string(dropped)) }

// The rest of the interface is of no interest here.

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
