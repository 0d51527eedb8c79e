package gossip

import (
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// Protocol returns the stream protocol of a network: GossipSub v1.2 under an own name, to separate networks from
// each other, and from those with larger and authored messages.
func Protocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("meshsub", "1.2.0")) }

const (
	maxMessage    = 64 << 10 // bytes of one RPC; a record has at most records.MaxSize
	validateQueue = 1024     // messages that wait for the validator; the default of 32 drops bursts
	outboundQueue = 256      // RPCs that wait for one slow peer
	messageIDSize = 20
	seenTTL       = 2 * time.Minute // lifetime of message ids
)

// Options returns the options for pubsub.NewGossipSub: signing policy, message ids, bounds,
// scores, subscription filter and validator. Without a Network and a Verifier NewGossipSub returns Invalid.
func Options(c Config) []pubsub.Option {
	c.setDefaults()
	err := fault.In("network", c.Network.Validate())
	if c.Verifier == nil {
		err = fault.New("gossip.Options", fault.Invalid, "a verifier is required")
	}
	if err != nil {
		return []pubsub.Option{func(*pubsub.PubSub) error { return err }}
	}
	protocols := []protocol.ID{Protocol(c.Network)}
	subscriptions := newFilter(c.Network)
	return []pubsub.Option{
		pubsub.WithLogger(slog.New(quiet{c.Logger.Handler()})), // first: later options copy the logger
		pubsub.WithGossipSubProtocols(protocols, feature),
		pubsub.WithProtocolMatchFn(compatible),

		// The data is signed by its provider and verified by the validator. StrictNoSign
		// alone would still emit and accept an unverified author; without an
		// author the default message id is the same for all messages.
		pubsub.WithMessageSignaturePolicy(pubsub.StrictNoSign),
		pubsub.WithNoAuthor(),
		pubsub.WithMessageIdFn(messageID),
		pubsub.WithSeenMessagesTTL(seenTTL),

		pubsub.WithMaxMessageSize(maxMessage),
		pubsub.WithMaxControlMessageSize(maxMessage),
		pubsub.WithValidateQueueSize(validateQueue),
		pubsub.WithPeerOutboundQueueSize(outboundQueue),
		pubsub.WithFloodPublish(true), // own records go to every known subscriber, not only to the mesh

		pubsub.WithPeerScore(scoreParams(c.Loopback), scoreThresholds()),
		pubsub.WithSubscriptionFilter(subscriptions),
		pubsub.WithRawTracer(&tracer{Config: c, subscriptions: subscriptions}),
		pubsub.WithDefaultValidator(newValidator(c).validate, pubsub.WithValidatorInline(true)),
	}
}

// compatible accepts the streams of peers with another minor version.
func compatible(own protocol.ID) func(protocol.ID) bool {
	return func(other protocol.ID) bool { return network.Compatible(string(own), string(other)) }
}

// feature returns the features of the only protocol: GossipSub v1.2 without the extensions of v1.3.
func feature(f pubsub.GossipSubFeature, _ protocol.ID) bool {
	return f != pubsub.GossipSubFeatureExtensions
}

// messageID returns the first 20 bytes of the SHA-256 over topic and data, each after its length.
// The validator accepts only one encoding of a record, so a record has one id per topic.
func messageID(m *pb.Message) string {
	topic, data := m.GetTopic(), m.GetData()
	b := make([]byte, 0, 2*8+len(topic)+len(data))
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(topic))), topic...)
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(data))), data...)
	sum := sha256.Sum256(b)
	return string(sum[:messageIDSize])
}

// The scores below are starting points that were chosen by reasoning, not by measurement
// (the parameters are explained in the GossipSub v1.1 specification, "Peer Scoring").
//
// A peer earns little: at most 3 for a topic by staying in its mesh and 50 by delivering
// first. It loses quickly: one forged message costs 50, two cost 200 and end its hearing.

func scoreParams(loopback bool) *pubsub.PeerScoreParams {
	p := &pubsub.PeerScoreParams{
		Topics:                      make(map[string]*pubsub.TopicScoreParams), // nil panics at the first SetScoreParams
		TopicScoreCap:               50,
		AppSpecificScore:            func(peer.ID) float64 { return 0 }, // nil is refused
		IPColocationFactorWeight:    -5,
		IPColocationFactorThreshold: 8,
		BehaviourPenaltyWeight:      -10,
		BehaviourPenaltyThreshold:   6,
		BehaviourPenaltyDecay:       0.9,
		DecayInterval:               time.Second,
		DecayToZero:                 0.01,
		RetainScore:                 time.Hour,
	}
	if loopback {
		p.IPColocationFactorWeight = 0
	}
	return p
}

func scoreThresholds() *pubsub.PeerScoreThresholds {
	return &pubsub.PeerScoreThresholds{
		GossipThreshold:             -20,
		PublishThreshold:            -50,
		GraylistThreshold:           -100,
		AcceptPXThreshold:           20, // positive: other peers cannot make this peer dial
		OpportunisticGraftThreshold: 1,
	}
}

// topicScoreParams disables P3 and P3b (too few deliveries in the mesh): a quiet topic would cost
// all peers their score.
func topicScoreParams() *pubsub.TopicScoreParams {
	return &pubsub.TopicScoreParams{
		TopicWeight:                    1,
		TimeInMeshWeight:               0.01,
		TimeInMeshQuantum:              time.Second,
		TimeInMeshCap:                  300,
		FirstMessageDeliveriesWeight:   1,
		FirstMessageDeliveriesDecay:    0.99,
		FirstMessageDeliveriesCap:      50,
		InvalidMessageDeliveriesWeight: -50,
		InvalidMessageDeliveriesDecay:  0.95,
	}
}
