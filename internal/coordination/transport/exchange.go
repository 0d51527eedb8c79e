package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/pkg/fault"
)

// AskProtocol is the protocol of Exchange.
const AskProtocol protocol.ID = "/blackhole/group/1"

// Topic says what a question is about. Topics cross the wire as numbers.
type Topic uint8

const (
	// Bootstrap is the topic of the messages that found a group: they need no answer.
	Bootstrap Topic = 1
	// Information is the topic of questions for what a peer knows of the group.
	Information Topic = 2
)

// AskHandler answers a question from an authenticated peer, which may be anybody. An error reaches
// the asker as its kind and message. Ctx ends with the Exchange, or when the time for the question is over.
type AskHandler func(ctx context.Context, from peer.ID, question []byte) ([]byte, error)

// ExchangeConfig is what an Exchange is made of. Host is required.
type ExchangeConfig struct {
	Host     host.Host
	Recorder AskRecorder  // nil: nothing is counted
	Logger   *slog.Logger // nil: nothing is logged
	Limits   AskLimits
}

// AskLimits are the bounds of an Exchange. A zero field is its default.
type AskLimits struct {
	Served        int           // questions answered at once, of all peers; 256
	ServedPerPeer int           // of one peer; 16
	Sends         int           // messages of Send on their way, to all peers; 256
	SendsPerPeer  int           // to one peer; 16
	Time          time.Duration // for one question, from opening the stream to the answer; 5 s
}

// AskRecorder counts what an Exchange does not do.
type AskRecorder interface {
	// Refused counts questions that were not answered: "busy", "malformed".
	Refused(reason string)
	// Dropped counts messages of Send that were not sent: "full", "failed".
	Dropped(reason string)
}

// Exchange asks and answers: one question and one answer, of MaxMessage bytes at most, on a stream
// of its own. It is safe for concurrent use.
type Exchange struct {
	ExchangeConfig
	door  *door
	sends *sendLimiter

	mu       sync.RWMutex // guards handlers
	handlers map[Topic]AskHandler
}

// NewExchange makes an Exchange that serves until Close; see Handle. Errors: Invalid.
func NewExchange(c ExchangeConfig) (*Exchange, error) {
	if c.Host == nil {
		return nil, fault.Invalidf("host", nil, "is required")
	}
	c.setDefaults()
	x := &Exchange{
		ExchangeConfig: c,
		door:           newDoor(c.Limits.Served, c.Limits.ServedPerPeer),
		sends:          newSendLimiter(c.Limits.Sends, c.Limits.SendsPerPeer),
		handlers:       make(map[Topic]AskHandler),
	}
	c.Host.SetStreamHandler(AskProtocol, x.serve)
	return x, nil
}

func (c *ExchangeConfig) setDefaults() {
	orDefault(&c.Limits.Served, 256)
	orDefault(&c.Limits.ServedPerPeer, 16)
	orDefault(&c.Limits.Sends, 256)
	orDefault(&c.Limits.SendsPerPeer, 16)
	orDefault(&c.Limits.Time, 5*time.Second)
	if c.Recorder == nil {
		c.Recorder = nopAskRecorder{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// nopAskRecorder is the AskRecorder of those who have none.
type nopAskRecorder struct{}

func (nopAskRecorder) Refused(string) {}
func (nopAskRecorder) Dropped(string) {}

// Handle answers the questions of a topic from now on; nil does not any more. Those without a
// handler are answered with Unsupported.
func (x *Exchange) Handle(topic Topic, handler AskHandler) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.handlers[topic] = handler
}

// Close answers no more, ends what is on its way, and waits for the handlers.
func (x *Exchange) Close() error {
	x.Host.RemoveStreamHandler(AskProtocol)
	x.sends.close()
	x.door.close()
	return nil
}

// ConnectedPeers are the connected peers that speak the protocol, by id.
func (x *Exchange) ConnectedPeers() []peer.ID {
	var all []peer.ID
	for _, id := range x.Host.Network().Peers() {
		if spoken, err := x.Host.Peerstore().SupportsProtocols(id, AskProtocol); err == nil && len(spoken) > 0 {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// Send gives a message on, without waiting, and disregards the answer. It may be lost, and
// two may arrive in another order.
func (x *Exchange) Send(to peer.ID, topic Topic, message []byte) {
	sent := x.sends.start(to, func(ctx context.Context) {
		if _, err := x.Ask(ctx, to, topic, message); err != nil {
			x.Recorder.Dropped("failed")
			x.Logger.Debug("message not delivered", "peer", to, "topic", topic, "error", err)
		}
	})
	if !sent {
		x.Recorder.Dropped("full")
	}
}

// Ask asks a peer, which is dialled if need be, and waits for its answer. Errors: those of the peer's
// handler, by their kind; TooLarge; Unavailable; Timeout; Canceled.
func (x *Exchange) Ask(ctx context.Context, to peer.ID, topic Topic, question []byte) ([]byte, error) {
	const op = "transport.Ask"
	if len(question) > MaxMessage {
		return nil, fault.New(op, fault.TooLarge, "a question of %d bytes is above the bound of %d", len(question), MaxMessage)
	}
	ctx, cancel := context.WithTimeout(ctx, x.Limits.Time)
	defer cancel()
	answer, err := x.ask(ctx, to, topic, question)
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return nil, fault.Wrap(op, ctx.Err())
	case isFault(err):
		return nil, fault.Wrap(op, err)
	default:
		return nil, fault.As(op, fault.Unavailable, err)
	}
}

func isFault(err error) bool {
	var f *fault.Error
	return errors.As(err, &f)
}

func (x *Exchange) ask(ctx context.Context, to peer.ID, topic Topic, question []byte) ([]byte, error) {
	s, err := x.Host.NewStream(network.WithAllowLimitedConn(ctx, "small questions"), to, AskProtocol)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Reset() }() // of no effect on a stream that both sides have closed
	defer context.AfterFunc(ctx, func() { _ = s.Reset() })()
	if err := writeTagged(s, byte(topic), question); err != nil {
		return nil, err
	}
	_ = s.CloseWrite() // fails when the answerer was so quick that it has closed already
	status, answer, err := readTagged(s)
	switch {
	case err != nil:
		return nil, err
	case status == 0:
		return answer, nil
	default:
		return nil, fault.New("", fault.Kind(status-1), "%s", strings.ToValidUTF8(string(answer), "?"))
	}
}

// serve answers one question.
func (x *Exchange) serve(s network.Stream) {
	if !x.door.enter(s) {
		x.Recorder.Refused("busy")
		_ = s.Reset()
		return
	}
	defer x.door.leave(s)
	ctx, cancel := context.WithTimeout(x.sends.ctx, x.Limits.Time)
	defer cancel()
	_ = s.SetDeadline(deadline(x.Limits.Time))
	if err := x.respond(ctx, s); err != nil {
		x.Recorder.Refused("malformed")
		x.Logger.Debug("question not answered", "peer", s.Conn().RemotePeer(), "error", err)
		_ = s.Reset()
		return
	}
	_ = s.Close()
}

func (x *Exchange) respond(ctx context.Context, s network.Stream) error {
	if err := s.Scope().SetService(service); err != nil {
		return err
	}
	topic, question, err := readTagged(s)
	if err != nil {
		return err
	}
	answer, err := x.handle(ctx, s.Conn().RemotePeer(), Topic(topic), question)
	if err != nil {
		text := fault.Message(err)
		return writeTagged(s, byte(fault.KindOf(err))+1, []byte(text[:min(len(text), 256)]))
	}
	return writeTagged(s, 0, answer)
}

func (x *Exchange) handle(ctx context.Context, from peer.ID, topic Topic, question []byte) ([]byte, error) {
	x.mu.RLock()
	handler := x.handlers[topic]
	x.mu.RUnlock()
	if handler == nil {
		return nil, fault.New("", fault.Unsupported, "topic %d is not known", topic)
	}
	answer, err := handler(ctx, from, question)
	if err == nil && len(answer) > MaxMessage {
		return nil, fault.New("", fault.TooLarge, "the answer has %d bytes", len(answer))
	}
	return answer, err
}

// writeTagged writes a frame whose first byte is a tag.
func writeTagged(w io.Writer, tag byte, body []byte) error {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, frameHead+1+len(body)), uint32(1+len(body)))
	_, err := w.Write(append(append(b, tag), body...))
	return err
}

// readTagged reads such a frame.
func readTagged(r io.Reader) (tag byte, body []byte, err error) {
	var head [frameHead + 1]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || size > MaxMessage+1 {
		return 0, nil, fault.New("", fault.TooLarge, "a message of %d bytes is not within 1 and %d", size, MaxMessage+1)
	}
	body = make([]byte, size-1)
	_, err = io.ReadFull(r, body)
	return head[frameHead], body, err
}
