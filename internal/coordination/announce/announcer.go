// Package announce tells all peers of a network how its coordination group stands, on a GossipSub topic
// of the network: who is not asked, and cannot ask everybody, says it once and is heard by all. Who
// did not listen then finds the same message in the DHT, on a DHTStore.
//
// The leader announces when something has changed, and from time to time. What it says carries the
// certificate of the group and its own signature; a peer that may not be a member is not believed,
// nor is anybody passed on who speaks too often. It is hearsay all the same: no worse, and no
// better, than what a peer answers who is asked.
package announce

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const topicPrefix = "/blackhole/group/1/"

// Topic is that of a network's announcements.
func Topic(n bootstrap.NetworkID) string { return topicPrefix + hex.EncodeToString(n[:]) }

// IsTopic reports whether a topic is one of those, of any network.
func IsTopic(topic string) bool {
	id, ok := strings.CutPrefix(topic, topicPrefix)
	b, err := hex.DecodeString(id)
	return ok && err == nil && len(b) == len(bootstrap.NetworkID{}) && hex.EncodeToString(b) == id
}

// Config is what a Announcer is made of.
type Config struct {
	// PubSub must let the topic pass: its subscription filter, and its default validator.
	PubSub  *pubsub.PubSub
	Network bootstrap.Network
	Key     crypto.PrivKey
	// Received takes what others announce, one at a time, and not after Close. What comes while it is busy
	// may be lost.
	Received func(from peer.ID, info *groupv1.GroupInfo)
	Now      func() time.Time // nil: time.Now
	Logger   *slog.Logger     // nil: silence
}

// Announcer announces and listens. It is safe for concurrent use.
type Announcer struct {
	Config
	id     bootstrap.NetworkID
	self   peer.ID
	topic  *pubsub.Topic
	sub    *pubsub.Subscription
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	last uint64 // sequence
}

// New joins the topic. Close leaves it; the PubSub stays.
//
// Errors: Invalid when the topic was joined before; Unavailable when the PubSub has ended.
func New(c Config) (*Announcer, error) {
	const op = "announce.New"
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	self, err := peer.IDFromPrivateKey(c.Key)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	h := &Announcer{Config: c, id: c.Network.ID(), self: self, done: make(chan struct{})}
	j := newValidator(c.Network, c.Now)
	name := Topic(h.id)
	err = c.PubSub.RegisterTopicValidator(name, func(_ context.Context, _ peer.ID, m *pubsub.Message) pubsub.ValidationResult {
		said, verdict := j.validate(m)
		m.ValidatorData = said
		return verdict
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

// listen hands on what is announced until the subscription ends.
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

// Announce tells the network. There may be nobody to hear it, which is no error.
//
// Errors: Unavailable; those of ctx.
func (h *Announcer) Announce(ctx context.Context, info *groupv1.GroupInfo) error {
	const op = "announce.Announce"
	h.mu.Lock()
	h.last = max(h.last+1, uint64(h.Now().UnixMilli()))
	sequence := h.last
	h.mu.Unlock()
	b, err := sign(h.Key, h.id, sequence, info)
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

// Close leaves the topic, and waits until nobody is told anything any more.
func (h *Announcer) Close() error {
	h.cancel()
	<-h.done
	h.leave()
	return nil
}

// leave undoes what New did. What fails has ended with the PubSub.
func (h *Announcer) leave() {
	if h.sub != nil {
		h.sub.Cancel()
	}
	if h.topic != nil {
		if err := h.topic.Close(); err != nil {
			h.Logger.Debug("the topic was not left", "error", err)
		}
	}
	if err := h.PubSub.UnregisterTopicValidator(Topic(h.id)); err != nil {
		h.Logger.Debug("the topic's validator stays", "error", err)
	}
}
