// Package gossip distributes changes of records in real time: signed records on GossipSub topics, by
// type and place. Delivery is not guaranteed. Keepers are the reliable source: a consumer first
// follows the topics, then queries the keepers, and merges the records by sequence.
//
// A publisher sends a record to the topic of its geohash cell of two characters and to the global
// topic of its type (topicsOf). A search follows the few cells of its disc, or the global
// topic (TopicsFor).
//
// A message is the envelope of a record: no author and no second signature. The validator verifies
// each message before it is forwarded. Forged messages count against the sender, stale ones do not.
//
// GossipSub does not route topics. Its properties:
//
//   - A new message goes only to connected peers known to follow its topic. Without such a peer
//     it is lost without an error. In a small network all peers are connected; in a large one
//     a consumer receives the messages that reach its own mesh at once, and the rest from keepers.
//   - Equal bytes within two minutes are dropped: a repeated announcement needs a new sequence.
//   - A peer that leaves a topic returns to the mesh only after 10 s. Until then it receives
//     messages directly from publishers and, some seconds late, from the gossip of others.
package gossip

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	// MaxFollowed bounds the followed topics. Each costs the work of a heartbeat every second, and
	// each new peer gets all of them in one message.
	MaxFollowed = 64

	maxIdle    = 64   // handles of recently published topics, kept for the next message
	readBuffer = 1024 // messages of one topic that wait for the Sink
)

// Gossip publishes and follows. Its methods are safe for concurrent use.
type Gossip struct {
	ps     *pubsub.PubSub
	net    network.Name
	sink   func(*records.Record)
	logger *slog.Logger
	now    func() time.Time
	rate   *rate.Limiter // of this peer's changes at every follower

	mu       sync.Mutex // guards the fields below; held during calls to pubsub's loop, never during Sink
	closed   bool
	topics   map[Topic]*handle // at most MaxFollowed + maxIdle, plus topics in use by Publish
	idle     *list.List        // of *handle without users, most recently used first
	followed int               // handles with followers

	readers sync.WaitGroup // for Close
}

// handle is a joined topic. Pubsub allows one per topic.
type handle struct {
	topic     Topic
	joined    *pubsub.Topic
	users     int           // followers, and Publish calls under way
	followers int           // a reader runs while positive
	reader    *reader       // nil without followers
	idle      *list.Element // nil with users
}

// reader delivers the messages of one subscription to the Sink, in its own goroutine.
type reader struct {
	sub    *pubsub.Subscription
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a Gossip on a PubSub that was created with Options of the same Config. Close ends
// the Gossip, not the PubSub. It returns Invalid without a Network, a Sink or a PubSub.
func New(c Config, ps *pubsub.PubSub) (*Gossip, error) {
	if c.Sink == nil || ps == nil {
		return nil, fault.New("gossip.New", fault.Invalid, "the sink and the PubSub are required")
	}
	if err := c.Network.Validate(); err != nil {
		return nil, fault.In("network", fault.Wrap("gossip.New", err))
	}
	c.setDefaults()
	return &Gossip{
		ps: ps, net: c.Network, sink: c.Sink, logger: c.Logger, now: c.Now,
		rate:   rate.NewLimiter(providerRate, providerBurst),
		topics: make(map[Topic]*handle), idle: list.New(),
	}, nil
}

// Publish sends a record to the known followers of its topics. Without followers it succeeds. The
// Sink of this peer does not receive its own records. Errors: Unavailable after Close or after the
// end of the PubSub, Timeout and Canceled by ctx, LimitReached for a record that was sent, but so
// soon after others that followers may ignore it.
func (g *Gossip) Publish(ctx context.Context, r *records.Record) error {
	const op = "gossip.Publish"
	if r == nil {
		return fault.New(op, fault.Invalid, "a record is required")
	}
	var errs []error
	for _, t := range topicsOf(r) {
		if err := g.publish(ctx, t, r); err != nil {
			errs = append(errs, err)
		}
	}
	if !g.rate.AllowN(g.now(), 1) && len(errs) == 0 {
		return fault.New(op, fault.LimitReached, "other peers may ignore the live update of this change: of one provider they take %d changes at once, and then %d a second; they find it with their next query", providerBurst, providerRate)
	}
	if len(errs) == 0 {
		return nil
	}
	return fault.As(op, fault.KindOf(errs[0]), errors.Join(errs...))
}

func (g *Gossip) publish(ctx context.Context, t Topic, r *records.Record) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap("", err)
	}
	g.mu.Lock()
	h, err := g.acquire(t)
	g.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.release(h)
	}()
	err = h.joined.Publish(ctx, r.Envelope(), pubsub.WithValidatorData(own{}))
	if err != nil && ctx.Err() != nil {
		return fault.Wrap("", ctx.Err())
	}
	return unavailable(err)
}

// Follow delivers messages on the topics to the Sink until the caller calls release. Release
// waits for the Sink, unless other followers use the same topics; repeated calls have no effect.
// Errors, with no topic followed: Invalid naming "topic", LimitReached above MaxFollowed topics,
// Unavailable after Close or after the end of the PubSub.
func (g *Gossip) Follow(topics []Topic) (release func(), err error) {
	const op = "gossip.Follow"
	var distinct []Topic
	for _, t := range topics {
		if _, err := parseTopic(g.net, t.In(g.net)); err != nil {
			return nil, fault.Wrap(op, err)
		}
		if !slices.Contains(distinct, t) {
			distinct = append(distinct, t)
		}
	}
	handles, err := g.follow(distinct)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	var once sync.Once
	return func() { once.Do(func() { g.unfollow(handles) }) }, nil
}

func (g *Gossip) follow(topics []Topic) ([]*handle, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	more := 0
	for _, t := range topics {
		if h := g.topics[t]; h == nil || h.followers == 0 {
			more++
		}
	}
	if g.followed+more > MaxFollowed {
		return nil, fault.New("", fault.LimitReached, "%d followed topics and %d more exceed the limit of %d", g.followed, more, MaxFollowed)
	}
	handles := make([]*handle, 0, len(topics))
	for _, t := range topics {
		h, err := g.acquire(t)
		if err == nil {
			if err = g.addFollower(h); err == nil {
				handles = append(handles, h)
				continue
			}
			g.release(h)
		}
		for _, h := range handles {
			g.removeFollower(h)
		}
		return nil, err
	}
	return handles, nil
}

// addFollower adds a follower to an acquired handle. The caller holds g.mu.
func (g *Gossip) addFollower(h *handle) error {
	if h.followers == 0 {
		if err := g.startReader(h); err != nil {
			return err
		}
		g.followed++
	}
	h.followers++
	return nil
}

// startReader subscribes a handle and starts its reader. The caller holds g.mu.
func (g *Gossip) startReader(h *handle) error {
	if err := h.joined.SetScoreParams(topicScoreParams()); err != nil {
		return unavailable(err)
	}
	sub, err := h.joined.Subscribe(pubsub.WithBufferSize(readBuffer), pubsub.WithMessageFilter(notOwn))
	if err != nil {
		return unavailable(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{sub: sub, cancel: cancel, done: make(chan struct{})}
	h.reader = r
	g.readers.Go(func() {
		defer close(r.done)
		g.deliver(ctx, sub)
	})
	return nil
}

// notOwn reports whether a message comes from another peer.
func notOwn(m *pubsub.Message) bool {
	_, ok := m.ValidatorData.(*records.Record)
	return ok
}

// deliver delivers the records of a subscription to the Sink until ctx ends.
func (g *Gossip) deliver(ctx context.Context, sub *pubsub.Subscription) {
	for ctx.Err() == nil { // Next may prefer a waiting message to the end of ctx
		m, err := sub.Next(ctx)
		if err != nil {
			return
		}
		if r, ok := m.ValidatorData.(*records.Record); ok {
			g.sink(r)
		}
	}
}

// removeFollower removes a follower from a handle and returns the reader that ends with it, if
// any. The caller holds g.mu.
func (g *Gossip) removeFollower(h *handle) *reader {
	var last *reader
	if h.followers--; h.followers == 0 {
		last, h.reader = h.reader, nil
		g.followed--
		last.stop()
	}
	g.release(h)
	return last
}

// stop ends a reader without waiting for it.
func (r *reader) stop() {
	r.cancel()
	r.sub.Cancel()
}

func (g *Gossip) unfollow(handles []*handle) {
	g.mu.Lock()
	if g.closed { // Close stopped the readers and waits for them
		g.mu.Unlock()
		return
	}
	var last []*reader
	for _, h := range handles {
		if r := g.removeFollower(h); r != nil {
			last = append(last, r)
		}
	}
	g.mu.Unlock()
	for _, r := range last {
		<-r.done
	}
}

// acquire returns the handle of a topic and counts a user. The caller holds g.mu.
func (g *Gossip) acquire(t Topic) (*handle, error) {
	if g.closed {
		return nil, fault.New("", fault.Unavailable, "gossip is closed")
	}
	h := g.topics[t]
	if h == nil {
		joined, err := g.ps.Join(t.In(g.net))
		if err != nil {
			return nil, unavailable(err)
		}
		h = &handle{topic: t, joined: joined}
		g.topics[t] = h
	}
	if h.idle != nil {
		g.idle.Remove(h.idle)
		h.idle = nil
	}
	h.users++
	return h, nil
}

// release removes a user of a handle and keeps an unused handle for a while. The caller holds
// g.mu.
func (g *Gossip) release(h *handle) {
	if h.users--; h.users > 0 || g.closed {
		return
	}
	h.idle = g.idle.PushFront(h)
	if g.idle.Len() > maxIdle {
		g.closeTopic(g.idle.Remove(g.idle.Back()).(*handle))
	}
}

// closeTopic closes the topic of a handle. The caller holds g.mu.
func (g *Gossip) closeTopic(h *handle) {
	delete(g.topics, h.topic)
	if err := h.joined.Close(); err != nil {
		g.logger.Debug("close of a topic failed", "topic", h.topic.String(), "error", err)
	}
}

// Close leaves all topics and waits for the last call of the Sink. Repeated calls have no effect.
func (g *Gossip) Close() {
	g.mu.Lock()
	g.closed = true
	for _, h := range g.topics {
		if h.reader != nil {
			h.reader.stop()
		}
		g.closeTopic(h)
	}
	g.idle.Init()
	g.mu.Unlock()
	g.readers.Wait()
}

// unavailable converts an error of pubsub. Pubsub fails only after its end, or for a closed topic.
func unavailable(err error) error { return fault.As("", fault.Unavailable, err) }
