package transport

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// AskProtocol returns the protocol of Exchange in a network: a groupv1.AskRequest and a groupv1.AskResponse on a stream.
func AskProtocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("group", "1")) }

// Topic is the subject of a question. Topics cross the wire as numbers.
type Topic uint8

const (
	// Information is the topic of questions for a description of the group.
	Information Topic = 2
	// State is the topic of the leader's question to members for a hash of their state.
	State Topic = 4
)

// AskHandler answers a question of an authenticated peer, which may be any peer. The asker receives the
// kind and the message of an error. ctx ends with the Exchange, and after the time for the question.
type AskHandler func(ctx context.Context, from peer.ID, question []byte) ([]byte, error)

// ExchangeConfig configures an Exchange. All fields are required, but for Limits. A question of a topic without a handler is
// answered with Unsupported.
type ExchangeConfig struct {
	Host     host.Host
	Network  network.Name
	Handlers map[Topic]AskHandler
	Metrics  *metrics.Coordination // nil counts nothing
	Logger   *slog.Logger
	Limits   AskLimits
	Known    func(peer.ID) bool // as in Config
}

// AskLimits bounds an Exchange. A zero field takes its default.
type AskLimits struct {
	ServedPerPeer int           // questions of one peer that are answered at once; 16
	Time          time.Duration // for one question, from the dial to the answer; 5 s
}

const (
	maxServed   = 256 // questions of all peers that are answered at once
	maxIdle     = 16  // idle streams to peers that were asked before
	asksPerPeer = 32  // questions to one peer at once
)

// Exchange asks questions and answers them, with MaxMessage bytes at most either way. It is safe for
// concurrent use.
type Exchange struct {
	ExchangeConfig
	server *rpc.Server
	pool   *rpc.Pool
	life   context.Context // of the answers
	end    context.CancelFunc
}

// NewExchange returns an Exchange that serves until Close.
func NewExchange(c ExchangeConfig) *Exchange {
	c.Limits.ServedPerPeer = cmp.Or(c.Limits.ServedPerPeer, 16)
	c.Limits.Time = cmp.Or(c.Limits.Time, 5*time.Second)
	x := &Exchange{ExchangeConfig: c}
	x.life, x.end = context.WithCancel(context.Background())
	format := rpc.Format{MaxSize: MaxMessage + 1<<13} // the answer, or a refusal
	x.pool = rpc.NewPool(rpc.PoolConfig{
		Host: c.Host, Protocol: AskProtocol(c.Network), Service: service, Format: format, CallsPerPeer: asksPerPeer,
		IdlePerPeer: 1, Idle: maxIdle, IdleFor: c.Limits.Time * 3 / 4, // a client asks its leader every 2 s, see leader.Tick
	})
	x.server = rpc.NewServer(rpc.ServerConfig{
		Host: c.Host, Protocol: AskProtocol(c.Network), Service: service, Request: new(groupv1.AskRequest), Format: format, Handler: x.respond,
		Streams: maxServed, StreamsPerPeer: c.Limits.ServedPerPeer, Known: c.Known, Resting: maxServed / 4, IdleTimeout: c.Limits.Time, FrameTimeout: c.Limits.Time,
		Refused: func() { c.Metrics.Refused("busy") }, Logger: c.Logger,
	})
	return x
}

// Close answers no more questions, ends the ones in flight, and waits for the handlers.
func (x *Exchange) Close() error {
	x.end()
	x.server.Close()
	x.pool.Close()
	return nil
}

// ConnectedPeers returns the connected peers that speak the protocol, by id.
func (x *Exchange) ConnectedPeers() []peer.ID {
	var all []peer.ID
	for _, id := range x.Host.Network().Peers() {
		if len(rpc.Offered(x.Host, id, AskProtocol(x.Network))) > 0 {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// Ask asks a peer and waits for its answer. It dials the peer if necessary. Errors: as the peer's
// handler, by their kind; TooLarge; Unavailable; Timeout; Canceled.
func (x *Exchange) Ask(ctx context.Context, to peer.ID, topic Topic, question []byte) ([]byte, error) {
	const op = "transport.Ask"
	if len(question) > MaxMessage {
		return nil, fault.New(op, fault.TooLarge, "the question has %d bytes: use %d at most", len(question), MaxMessage)
	}
	ctx, cancel := context.WithTimeout(ctx, x.Limits.Time)
	defer cancel()
	resp := new(groupv1.AskResponse)
	if err := x.pool.Call(ctx, to, &groupv1.AskRequest{Topic: uint32(topic), Question: question}, resp); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if err := rpc.Restore(op, resp.GetRefusal()); err != nil {
		return nil, err
	}
	return resp.GetAnswer(), nil
}

// respond answers one question.
func (x *Exchange) respond(s *rpc.Stream, req proto.Message, malformed error) (proto.Message, error) {
	switch {
	case fault.KindOf(malformed) == fault.Unsupported: // of a later version
		x.Metrics.Refused("unsupported")
		return &groupv1.AskResponse{Refusal: rpc.Refuse(malformed)}, nil
	case malformed != nil:
		x.Metrics.Refused("malformed")
		return nil, malformed
	}
	ctx, cancel := context.WithTimeout(x.life, x.Limits.Time)
	defer cancel()
	m := req.(*groupv1.AskRequest)
	answer, err := x.handle(ctx, s.Remote(), m.GetTopic(), m.GetQuestion())
	if err != nil {
		return &groupv1.AskResponse{Refusal: rpc.Refuse(err)}, nil
	}
	return &groupv1.AskResponse{Answer: answer}, nil
}

func (x *Exchange) handle(ctx context.Context, from peer.ID, topic uint32, question []byte) ([]byte, error) {
	if len(question) > MaxMessage {
		return nil, fault.New("", fault.TooLarge, "the question has %d bytes", len(question))
	}
	handler := x.Handlers[Topic(topic)]
	if handler == nil || topic > 0xff {
		return nil, fault.New("", fault.Unsupported, "topic %d is unknown", topic)
	}
	answer, err := handler(ctx, from, question)
	if err == nil && len(answer) > MaxMessage {
		return nil, fault.New("", fault.TooLarge, "the answer has %d bytes", len(answer))
	}
	return answer, err
}
