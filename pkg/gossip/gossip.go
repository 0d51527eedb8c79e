// Package gossip is the fast road of live changes: signed records on GossipSub topics, by
// type and place. It promises nothing. Keepers are the guarantee, and who starts to listen
// follows first, asks the keepers then, and merges by sequence.
//
// A record is published to the topic of its geohash cell of two characters and to the
// global topic of its type (TopicsOf). A plan follows the few cells of its disc, or the
// global topic (TopicsFor).
//
// Messages carry a record's envelope and nothing else: no author and no second signature.
// The validator opens each before it is passed on. Forged ones count against the peer that
// sent them, old ones do not.
//
// What to know of GossipSub, which does not route topics:
//
//   - A message starts only towards connected peers that are known to follow its topic.
//     With none it is lost without an error. In a small network everybody is connected; in
//     a large one a consumer hears at once what its own mesh reaches, and the rest from
//     keepers.
//   - The same bytes published again within two minutes are dropped: a repeated
//     announcement needs a new sequence.
//   - After leaving a topic a peer is not taken back into its mesh for 10 s. Until then it
//     hears first-hand publishers and, some seconds late, the gossip of others.
package gossip

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	pubsub "github.com/libp2p/go-libp2p-pubsub"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	// MaxFollowed bounds the topics followed at one time. Each costs a heartbeat's work
	// every second, and all are sent to each new peer in one message.
	MaxFollowed = 64

	maxIdle    = 64   // handles of topics that were published to, kept for the next time
	readBuffer = 1024 // messages of one topic that wait for the Sink
)

// Gossip publishes and follows. Its methods are safe for concurrent use.
type Gossip struct {
	ps     *pubsub.PubSub
	sink   func(*records.Record)
	logger *slog.Logger

	mu       sync.Mutex // guards the fields below; held while pubsub's loop is asked, never while Sink runs
	closed   bool
	topics   map[Topic]*handle // at most MaxFollowed + maxIdle and those being published to
	idle     *list.List        // of *handle with users == 0, the last used in front
	followed int               // handles with followers > 0

	readers sync.WaitGroup // Close waits for them
}

// handle is a joined topic. Pubsub allows one for each topic.
type handle struct {
	topic     Topic
	joined    *pubsub.Topic
	users     int           // followers and publications under way
	followers int           // reads while above 0
	reader    *reader       // nil without followers
	idle      *list.Element // nil with users
}

// reader is the goroutine that carries one subscription to the Sink.
type reader struct {
	sub    *pubsub.Subscription
	cancel context.CancelFunc
	done   chan struct{}
}

// New starts on a PubSub that was made with Options of the same Config and is not used
// otherwise. Close ends it; the PubSub stays. It returns Invalid without a Sink or a PubSub.
func New(c Config, ps *pubsub.PubSub) (*Gossip, error) {
	if c.Sink == nil || ps == nil {
		return nil, fault.New("gossip.New", fault.Invalid, "a required part is missing")
	}
	c.setDefaults()
	return &Gossip{
		ps: ps, sink: c.Sink, logger: c.Logger,
		topics: make(map[Topic]*handle), idle: list.New(),
	}, nil
}

// Publish sends a record to those who follow its topics and whom this peer knows; there
// may be none, which is no error. Own records do not come back to the own Sink. Errors:
// Unavailable after Close or after the PubSub ended, Timeout and Canceled by ctx.
func (g *Gossip) Publish(ctx context.Context, r *records.Record) error {
	const op = "gossip.Publish"
	if r == nil {
		return fault.New(op, fault.Invalid, "there is no record")
	}
	var errs []error
	for _, t := range TopicsOf(r) {
		if err := g.publish(ctx, t, r); err != nil {
			errs = append(errs, err)
		}
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

// Follow hands to the Sink what is published on the plan's topics (TopicsFor), from now
// until release is called. See FollowTopics for the errors.
func (g *Gossip) Follow(p *query.Plan) (release func(), err error) {
	if p == nil {
		return nil, fault.New("gossip.Follow", fault.Invalid, "there is no plan")
	}
	return g.FollowTopics(TopicsFor(p))
}

// FollowTopics hands to the Sink what is published on the topics, from now until release
// is called; release then waits for the Sink, unless others follow the same topics, and
// may be called again. Errors, after which nothing is followed: Invalid naming "topic",
// LimitReached when more than MaxFollowed topics would be followed, Unavailable after
// Close or after the PubSub ended.
func (g *Gossip) FollowTopics(topics []Topic) (release func(), err error) {
	const op = "gossip.Follow"
	var distinct []Topic
	for _, t := range topics {
		if _, err := ParseTopic(t.String()); err != nil {
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
		return nil, fault.New("", fault.LimitReached, "%d topics are followed, %d more would be above the limit of %d", g.followed, more, MaxFollowed)
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
		for _, h := range handles { // their readers end soon; nobody was promised anything yet
			g.removeFollower(h)
		}
		return nil, err
	}
	return handles, nil
}

// addFollower adds a follower to a handle that its caller acquired. g.mu is held.
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

// startReader subscribes a handle and starts its reader. g.mu is held.
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

// notOwn tells messages of others from own ones.
func notOwn(m *pubsub.Message) bool {
	_, ok := m.ValidatorData.(*records.Record)
	return ok
}

// deliver hands the records of a subscription to the Sink until ctx ends.
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

// removeFollower takes a follower from a handle and gives the reader that ends with it, if any.
// g.mu is held.
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
	if g.closed { // Close has stopped the readers and waits for them
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

// acquire gives the handle of a topic with one user more. g.mu is held.
func (g *Gossip) acquire(t Topic) (*handle, error) {
	if g.closed {
		return nil, fault.New("", fault.Unavailable, "gossip is closed")
	}
	h := g.topics[t]
	if h == nil {
		joined, err := g.ps.Join(t.String())
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

// release takes a user from a handle. One without users is kept for a while, so that a
// provider need not join its topics for each announcement. g.mu is held.
func (g *Gossip) release(h *handle) {
	if h.users--; h.users > 0 || g.closed {
		return
	}
	h.idle = g.idle.PushFront(h)
	if g.idle.Len() > maxIdle {
		g.closeTopic(g.idle.Remove(g.idle.Back()).(*handle))
	}
}

// closeTopic gives a handle back to pubsub. g.mu is held.
func (g *Gossip) closeTopic(h *handle) {
	delete(g.topics, h.topic)
	if err := h.joined.Close(); err != nil {
		g.logger.Debug("topic not closed", "topic", h.topic.String(), "error", err)
	}
}

// Close leaves all topics and waits until the Sink is not called any more. It may be
// called again.
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

// unavailable makes a fault of an error of pubsub, which fails only when it has ended or
// when this topic was closed meanwhile.
func unavailable(err error) error { return fault.As("", fault.Unavailable, err) }
