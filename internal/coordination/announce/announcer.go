// Package announce publishes the coordination group to all peers of its network. The leader broadcasts on a
// GossipSub topic; peers that missed the broadcast read the same signed message from the DHT, through a
// DHTStore.
//
// The leader announces changes at once, and repeats itself from time to time. An announcement carries the
// group's certificate and the leader's signature. Peers drop announcements of ineligible signers, and of
// signers above the rate. An announcement is as good as the signer's answer to a question, no better.
package announce

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

func topics(n network.Name) string { return n.Topics("group", "1") }

// Topic returns the topic of announcements: /blackhole/NETWORK/group/1/ID.
func Topic(n bootstrap.Network) string { return topics(n.Name) + n.ID().String() }

// IsTopic reports whether a topic belongs to announcements of any group of a network.
func IsTopic(n network.Name, topic string) bool {
	id, ok := strings.CutPrefix(topic, topics(n))
	b, err := hex.DecodeString(id)
	return ok && err == nil && len(b) == len(bootstrap.NetworkID{}) && hex.EncodeToString(b) == id
}

// Config configures an Announcer. All fields are required.
type Config struct {
	// PubSub must accept the topic in its subscription filter and default validator.
	PubSub  *pubsub.PubSub
	Network bootstrap.Network
	Key     crypto.PrivKey
	// Received receives the announcements of others, one at a time, and none after Close. Announcements that
	// arrive during a call may be lost.
	Received func(from peer.ID, info *groupv1.GroupInfo)
	Now      func() time.Time
	Logger   *slog.Logger
}

// Announcer announces and listens. It is safe for concurrent use.
type Announcer struct {
	Config
	self     peer.ID
	topic    *pubsub.Topic
	sub      *pubsub.Subscription
	cancel   context.CancelFunc
	done     chan struct{}
	sequence sequence
}

// New joins the topic. Close leaves it; the PubSub stays open.
//
// Errors: Invalid for a topic joined before; Unavailable for a closed PubSub.
func New(c Config) (*Announcer, error) {
	const op = "announce.New"
	self, err := peer.IDFromPrivateKey(c.Key)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	h := &Announcer{Config: c, self: self, done: make(chan struct{})}
	j := newValidator(c.Network, c.Now)
	name := Topic(c.Network)
	err = c.PubSub.RegisterTopicValidator(name, func(_ context.Context, _ peer.ID, m *pubsub.Message) pubsub.ValidationResult {
		said, result := j.validate(m)
		m.ValidatorData = said
		return result
	})
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	if h.topic, err = c.PubSub.Join(name); err == nil {
		h.sub, err = h.topic.Subscribe()
	}
	if err != nil {
		h.leave()
		return nil, fault.As(op, fault.Unavailable, err)
	}
	var ctx context.Context
	ctx, h.cancel = context.WithCancel(context.Background())
	go h.listen(ctx)
	return h, nil
}

// listen delivers announcements until the end of the subscription.
func (h *Announcer) listen(ctx context.Context) {
	defer close(h.done)
	for {
		m, err := h.sub.Next(ctx)
		if err != nil {
			return
		}
		if said, ok := m.ValidatorData.(verified); ok && said.from != h.self {
			h.Received(said.from, said.info)
		}
	}
}

// Announce broadcasts a description of the group, even without listeners.
//
// Errors: Unavailable; as ctx.
func (h *Announcer) Announce(ctx context.Context, info *groupv1.GroupInfo) error {
	const op = "announce.Announce"
	b, err := sign(h.Key, h.Network, h.sequence.next(h.Now()), info)
	if err != nil {
		return fault.Wrap(op, err)
	}
	if err := h.topic.Publish(ctx, b); err != nil {
		if ctx.Err() != nil {
			return fault.Wrap(op, ctx.Err())
		}
		return fault.As(op, fault.Unavailable, err)
	}
	return nil
}

// Close leaves the topic and waits for the last call of Received.
func (h *Announcer) Close() error {
	h.cancel()
	<-h.done
	h.leave()
	return nil
}

// leave undoes New. Failed steps have ended with the PubSub.
func (h *Announcer) leave() {
	if h.sub != nil {
		h.sub.Cancel()
	}
	if h.topic != nil {
		if err := h.topic.Close(); err != nil {
			h.Logger.Debug("leaving the topic failed", "error", err)
		}
	}
	if err := h.PubSub.UnregisterTopicValidator(Topic(h.Network)); err != nil {
		h.Logger.Debug("the topic's validator stays", "error", err)
	}
}
