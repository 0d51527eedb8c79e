package gossip

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

func local() Topic  { return Topic{"relay", "u3"} } // the topic of berlin
func global() Topic { return Topic{"relay", geo.Global} }

// Without authors each message still has its own id: all five arrive, on the cell's topic and on
// the global one, and none returns to its publisher.
func TestDelivery(t *testing.T) {
	w := newCluster(t)
	a, b, c := w.node(t), w.node(t), w.node(t)
	w.star(t, a, b, c)
	nearby, err := b.g.Follow(TopicsFor("relay", around(berlin(), 5)))
	require.NoError(t, err)
	defer nearby()
	everywhere, err := c.g.Follow(TopicsFor("relay", nil))
	require.NoError(t, err)
	defer everywhere()
	a.follow(t, local(), global())
	a.await(t, happening{"subscribe", b.ID(), local().In("test")}, happening{"subscribe", c.ID(), global().In("test")})

	want := make(map[string]bool)
	for i := range 5 {
		r := sign(t, 1, service(fmt.Sprint(i), berlin()), 0)
		want[r.Name().ID] = true
		a.announce(t, r)
	}
	for _, n := range []*node{b, c} {
		got := make(map[string]bool)
		for range want {
			r := receive(t, n.got)
			require.Equal(t, idOf(t, 1), r.Name().Provider)
			got[r.Name().ID] = true
			require.Equal(t, string(accepted), receive(t, n.outcomes))
		}
		require.Equal(t, want, got)
	}
	require.Empty(t, a.got)

	homeless := sign(t, 1, service("homeless", nil), 0)
	a.announce(t, homeless)
	require.Equal(t, homeless.Name(), receive(t, c.got).Name())
	require.Empty(t, b.got, "a record without a place is on the global topic only")
}

func idOf(tb testing.TB, n byte) peer.ID {
	tb.Helper()
	id, err := peer.IDFromPrivateKey(key(tb, n))
	require.NoError(tb, err)
	return id
}

// A follower forwards fresh records to its mesh, known versions included, but not older ones.
func TestRelay(t *testing.T) {
	w := newCluster(t)
	a, b, c := w.node(t), w.node(t), w.node(t)
	w.star(t, b, a, c) // a and c have no connection
	b.follow(t, local())
	c.await(t, happening{"subscribe", b.ID(), local().In("test")})
	c.follow(t, local())
	b.await(t, happening{"graft", c.ID(), local().In("test")})
	a.await(t, happening{"subscribe", b.ID(), local().In("test")})

	r := sign(t, 1, service("a", berlin()), 0)
	b.learn(r) // as from a keeper
	a.announce(t, r)
	require.Equal(t, r.Sequence(), receive(t, c.got).Sequence())
	require.Equal(t, string(accepted), receive(t, b.outcomes))

	b.learn(sign(t, 1, service("a", berlin()), time.Minute))
	a.announce(t, sign(t, 1, service("a", berlin()), time.Second))
	require.Equal(t, string(stale), receive(t, b.outcomes))
	fresh := sign(t, 1, service("b", berlin()), 0)
	a.announce(t, fresh)
	require.Equal(t, fresh.Name(), receive(t, c.got).Name(), "the old version was not forwarded")
}

// A peer forwards records of later versions byte for byte, those with features that it lacks too. What it does not read
// ends there. Neither costs the sender anything.
func TestRelayOfLaterVersions(t *testing.T) {
	scores := make(chan map[peer.ID]float64, 1<<10)
	w := newCluster(t)
	a, c := w.node(t), w.node(t)
	b := w.node(t, pubsub.WithPeerScoreInspect(func(s map[peer.ID]float64) { scores <- s }, time.Second))
	w.star(t, b, a, c) // a and c have no connection
	b.follow(t, local())
	c.await(t, happening{"subscribe", b.ID(), local().In("test")})
	c.follow(t, local())
	b.await(t, happening{"graft", c.ID(), local().In("test")})
	a.await(t, happening{"subscribe", b.ID(), local().In("test")})

	later := recordstest.Later(t, key(t, 1), sign(t, 1, service("a", berlin()), 0))
	critical := recordstest.Later(t, key(t, 1), sign(t, 1, service("b", berlin()), 0), recordstest.Needs("auction.v2"))
	for _, r := range []*records.Record{later, critical} {
		a.announce(t, r)
		require.Equal(t, r.Envelope(), receive(t, c.got).Envelope())
		require.Equal(t, string(accepted), receive(t, b.outcomes))
	}
	s := w.intrude(t, b, true)
	for i := range 2 * faultBurst {
		major := recordstest.Record("test", 2, fmt.Append(nil, i))
		s.publish(t, cellTopic, recordstest.Seal(t, key(t, 1), major))
		require.Equal(t, string(newer), receive(t, b.outcomes))
	}
	for len(scores) > 0 {
		<-scores
	}
	receive(t, scores) // may be older than the last message
	known := receive(t, scores)
	require.GreaterOrEqual(t, known[s.ID()], 0.0)
	require.GreaterOrEqual(t, known[a.ID()], 0.0)
}

// After two forgeries pubsub ignores a peer.
func TestForgerIsGraylisted(t *testing.T) {
	scores := make(chan map[peer.ID]float64, 64)
	w := newCluster(t)
	victim := w.node(t, pubsub.WithPeerScoreInspect(func(s map[peer.ID]float64) { scores <- s }, time.Second))
	victim.follow(t, local())
	s := w.intrude(t, victim, true)
	s.publish(t, cellTopic, []byte("forged"))
	s.publish(t, cellTopic, make([]byte, records.MaxSize+1))
	require.ElementsMatch(t, []string{string(forged), string(oversize)}, []string{receive(t, victim.outcomes), receive(t, victim.outcomes)})
	for receive(t, scores)[s.ID()] > scoreThresholds().GraylistThreshold {
	}
	require.Empty(t, victim.got)
}

// A peer without a stream from this peer has no score; the validator limits it instead.
func TestForgerWithoutScore(t *testing.T) {
	w := newCluster(t)
	victim := w.node(t)
	victim.follow(t, local())
	s := w.intrude(t, victim, false)
	for i := range faultBurst {
		s.publish(t, cellTopic, fmt.Append(nil, "forged ", i))
		require.Equal(t, string(forged), receive(t, victim.outcomes))
	}
	s.publish(t, cellTopic, sign(t, 1, service("a", berlin()), 0).Envelope())
	require.Equal(t, string(throttled), receive(t, victim.outcomes))
	require.Empty(t, victim.got)
}

// A publisher hears which of its changes followers may ignore; none of the others is ignored, not even at a follower of both topics.
func TestPublisherHearsOfTheRate(t *testing.T) {
	w := newCluster(t)
	a, b := w.node(t), w.node(t)
	w.star(t, a, b)
	b.follow(t, local(), global())
	a.await(t, happening{"subscribe", b.ID(), local().In("test")}, happening{"subscribe", b.ID(), global().In("test")})
	for i := range providerBurst {
		a.announce(t, sign(t, 1, service(fmt.Sprint(i), berlin()), 0))
		for range copies {
			require.Equal(t, string(accepted), receive(t, b.outcomes))
		}
	}
	err := a.g.Publish(t.Context(), sign(t, 1, service("next", berlin()), 0))
	require.ErrorIs(t, err, fault.LimitReached)
	require.Equal(t, string(throttled), receive(t, b.outcomes))
}

// A peer that is too slow for the messages of a topic says which one it is.
func TestLossIsTold(t *testing.T) {
	w := newCluster(t)
	victim := w.node(t)
	victim.got = make(chan *records.Record) // blocks the Sink
	victim.follow(t, local())
	s := w.intrude(t, victim, true)
	counts := make(map[string]int)
	for i := range readBuffer + 2 { // one is in the Sink
		s.publish(t, cellTopic, sign(t, byte(i/providerBurst), service(fmt.Sprint(i), berlin()), 0).Envelope())
		for counts[string(accepted)] <= i {
			counts[receive(t, victim.outcomes)]++
		}
	}
	require.Equal(t, local(), receive(t, victim.lost))
	closed := make(chan struct{})
	go func() { victim.g.Close(); close(closed) }()
	for {
		select {
		case <-victim.got:
		case <-closed:
			return
		}
	}
}

// A message that no validator had time for is lost, and a forged one is not.
func TestFullQueueIsALoss(t *testing.T) {
	var outcomes tally
	var lost []Topic
	c := Config{Network: "test", Received: outcomes.Received, Lost: func(t Topic) { lost = append(lost, t) }}
	tr := &tracer{Config: c}
	tr.RejectMessage(message(cellTopic, nil), pubsub.RejectValidationQueueFull)
	tr.RejectMessage(message("weather", nil), pubsub.RejectValidationQueueFull)
	tr.RejectMessage(message(cellTopic, nil), pubsub.RejectUnexpectedSignature)
	require.Equal(t, tally{string(queueFull), string(queueFull), string(altered)}, outcomes)
	require.Equal(t, []Topic{local()}, lost)
}

// A message with an author, even an honest one, is refused before its verification.
func TestAuthoredMessagesAreRefused(t *testing.T) {
	w := newCluster(t)
	victim := w.node(t)
	victim.follow(t, local())
	s := w.intrude(t, victim, true)
	m := message(cellTopic, sign(t, 1, service("a", berlin()), 0).Envelope()).Message
	m.From, m.Seqno = []byte(s.ID()), make([]byte, 8)
	s.send(t, &pb.RPC{Publish: []*pb.Message{m}})
	require.Equal(t, string(altered), receive(t, victim.outcomes))
	require.Empty(t, victim.got)
}

// Subscriptions are bounded over any number of RPCs, and the state is freed after the
// disconnection.
func TestSubscriptionFlood(t *testing.T) {
	w := newCluster(t)
	victim := w.node(t)
	s := w.intrude(t, victim, true)
	flood := func(from int) (admitted int) {
		const topics = 3 * maxPeerTopics
		for i := range topics {
			s.send(t, &pb.RPC{Subscriptions: []*pb.RPC_SubOpts{sub(nth(from + i)), sub(fmt.Sprint("weather", i))}})
		}
		victim.await(t, happening{"subscribe", s.ID(), fmt.Sprint("weather", topics-1)})
		for i := range topics {
			admitted += len(victim.ps.ListPeers(nth(from + i)))
		}
		return admitted
	}
	require.Equal(t, maxPeerTopics, flood(0))

	ends := s.Network().ConnsToPeer(victim.ID())
	require.NoError(t, w.DisconnectPeers(victim.ID(), s.ID()))
	victim.await(t, happening{"down", s.ID(), ""})
	for _, c := range ends { // otherwise pubsub might choose a closing connection for its next stream
		require.NoError(t, c.Close())
	}
	require.Empty(t, victim.ps.ListPeers(nth(0)))
	_, err := w.ConnectPeers(victim.ID(), s.ID())
	require.NoError(t, err)
	victim.await(t, happening{"up", s.ID(), ""})
	s.open(t, victim)
	again := 0
	for range 100 { // pubsub may notice the end of the first stream late, and drops the earlier subscriptions with it
		if again = flood(1000); again >= maxPeerTopics {
			break
		}
	}
	require.Equal(t, maxPeerTopics, again)
}

func TestFollowIsCounted(t *testing.T) {
	w := newCluster(t)
	a, b := w.node(t), w.node(t)
	w.star(t, a, b)
	first, second := b.follow(t, local(), local()), b.follow(t, local())
	a.await(t, happening{"subscribe", b.ID(), cellTopic})
	require.Equal(t, 1, b.g.followed)
	first()
	first() // repeated
	require.Equal(t, []string{cellTopic}, b.ps.GetTopics())
	a.announce(t, sign(t, 1, service("a", berlin()), 0))
	require.Equal(t, "a", receive(t, b.got).Name().ID)
	second()
	a.await(t, happening{"unsubscribe", b.ID(), cellTopic})
	require.Empty(t, b.ps.GetTopics())
	require.Zero(t, b.g.followed)

	again := b.follow(t, local())
	defer again()
	a.await(t, happening{"subscribe", b.ID(), cellTopic})
	a.announce(t, sign(t, 1, service("b", berlin()), 0))
	require.Equal(t, "b", receive(t, b.got).Name().ID)
}

// release waits for a running Sink.
func TestReleaseWaitsForTheSink(t *testing.T) {
	w := newCluster(t)
	a, b := w.node(t), w.node(t)
	w.star(t, a, b)
	entered, blocked := make(chan struct{}), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(blocked) })
	defer unblock() // otherwise Close would not return
	finished := false
	b.g.sink = func(*records.Record) {
		close(entered)
		<-blocked
		finished = true
	}
	release := b.follow(t, local())
	a.await(t, happening{"subscribe", b.ID(), cellTopic})
	a.announce(t, sign(t, 1, service("a", berlin()), 0))
	receive(t, entered)
	released := make(chan struct{})
	go func() { release(); close(released) }()
	a.await(t, happening{"unsubscribe", b.ID(), cellTopic})
	select {
	case <-released:
		require.Fail(t, "release returned while the Sink runs")
	default:
	}
	unblock()
	receive(t, released)
	require.True(t, finished)
}

func TestFollowIsCapped(t *testing.T) {
	n := newCluster(t).node(t)
	var topics []Topic
	for i := range MaxFollowed {
		topics = append(topics, Topic{fmt.Sprintf("t%d", i), geo.Global})
	}
	release := n.follow(t, topics...)
	for _, more := range [][]Topic{{local()}, {topics[0], local(), global()}} {
		_, err := n.g.Follow(more)
		require.ErrorIs(t, err, fault.LimitReached)
	}
	n.follow(t, topics[3])() // followed already
	require.Len(t, n.ps.GetTopics(), MaxFollowed)
	release()
	require.Empty(t, n.ps.GetTopics())
	require.Equal(t, maxIdle, n.g.idle.Len())
	n.follow(t, local())()
}

// Topics without followers are closed for lack of room.
func TestPublishedTopicsAreBounded(t *testing.T) {
	n := newCluster(t).node(t)
	defer n.follow(t, local())()
	for round := range 2 {
		for i := range maxIdle + maxIdle/2 {
			o := service("a", nil)
			o.Metadata.Type = fmt.Sprintf("t%d", i)
			n.announce(t, sign(t, 1, o, time.Duration(round)*time.Second))
		}
	}
	require.Equal(t, maxIdle, n.g.idle.Len())
	require.Len(t, n.g.topics, maxIdle+1)
	_, err := n.ps.Join("/blackhole/test/live/1/t0/global")
	require.NoError(t, err, "the handle was closed")
}

func TestBadArguments(t *testing.T) {
	n := newCluster(t).node(t)
	_, err := New(Config{}, n.ps)
	require.ErrorIs(t, err, fault.Invalid)
	_, err = New(Config{Network: "test", Sink: func(*records.Record) {}}, nil)
	require.ErrorIs(t, err, fault.Invalid)
	_, err = New(Config{Sink: func(*records.Record) {}}, n.ps)
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "network"})
	for _, c := range []Config{{Network: "test"}, {Verifier: new(records.Verifier)}} {
		options := Options(c)
		require.Len(t, options, 1)
		require.ErrorIs(t, options[0](n.ps), fault.Invalid)
	}

	_, err = n.g.Follow([]Topic{local(), {"relay", "u33"}})
	require.ErrorIs(t, err, &fault.Error{Kind: fault.Invalid, Field: "topic"})
	require.Empty(t, n.ps.GetTopics())
	require.ErrorIs(t, n.g.Publish(t.Context(), nil), fault.Invalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, n.g.Publish(ctx, sign(t, 1, service("a", nil), 0)), fault.Canceled)
}

func TestClose(t *testing.T) {
	w := newCluster(t)
	a, b := w.node(t), w.node(t)
	w.star(t, a, b)
	release := b.follow(t, local(), global())
	a.await(t, happening{"subscribe", b.ID(), cellTopic})
	r := sign(t, 1, service("a", berlin()), 0)
	require.NoError(t, b.g.Publish(t.Context(), r))
	b.g.Close()
	b.g.Close()
	release()
	require.Empty(t, b.ps.GetTopics())
	require.ErrorIs(t, b.g.Publish(t.Context(), r), fault.Unavailable)
	_, err := b.g.Follow([]Topic{local()})
	require.ErrorIs(t, err, fault.Unavailable)
	require.Eventually(t, func() bool { // a finished goroutine may still be returning
		stacks := make([]byte, 4<<20)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "gossip.(*Gossip).carry")
	}, time.Minute, time.Millisecond, "a reader is left")
}

// GossipSub's own INFO lines concern no operator: they are DEBUG, with all attributes.
func TestQuiet(t *testing.T) {
	var out bytes.Buffer
	level := new(slog.LevelVar)
	log := slog.New(quiet{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})}).With("part", "gossip").WithGroup("x")
	log.Info("ends", "n", 1)
	require.Empty(t, out.String())
	log.Warn("fails")
	require.Contains(t, out.String(), "level=WARN msg=fails part=gossip")
	level.Set(slog.LevelDebug)
	log.Info("ends", "n", 1)
	require.Contains(t, out.String(), "level=DEBUG msg=ends part=gossip x.n=1")
}

// A daemon may stop pubsub first: no call blocks.
func TestPubSubEndsFirst(t *testing.T) {
	w := newCluster(t)
	verifier, err := records.NewVerifier("test", 1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	c := Config{Network: "test", Verifier: verifier, Sink: func(*records.Record) {}}
	ps, err := pubsub.NewGossipSub(ctx, w.host(t), Options(c)...)
	require.NoError(t, err)
	g, err := New(c, ps)
	require.NoError(t, err)
	release, err := g.Follow([]Topic{local()})
	require.NoError(t, err)
	cancel()
	for err == nil { // pubsub's loop may still run
		var another func()
		if another, err = g.Follow([]Topic{global()}); err == nil {
			another()
		}
	}
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorIs(t, g.Publish(t.Context(), sign(t, 1, service("a", berlin()), 0)), fault.Unavailable)
	release()
	g.Close()
}

// Peers with another minor version of the protocol hear each other.
func TestMinorVersions(t *testing.T) {
	w := newCluster(t)
	a := w.node(t)
	b := w.node(t, pubsub.WithGossipSubProtocols([]protocol.ID{"/blackhole/test/meshsub/1.7.0"}, feature))
	w.star(t, a, b)
	for _, n := range []*node{a, b} {
		n.follow(t, local())
	}
	a.await(t, happening{"subscribe", b.ID(), local().In("test")})
	b.await(t, happening{"subscribe", a.ID(), local().In("test")})
	for i, from := range []*node{a, b} {
		to := []*node{b, a}[i]
		r := sign(t, 1, service(fmt.Sprint(i), berlin()), 0)
		from.announce(t, r)
		require.Equal(t, r.Name(), receive(t, to.got).Name())
	}
}
