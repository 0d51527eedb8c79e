package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// pair holds two peers that may ask each other.
type pair struct {
	hosts  []host.Host
	asks   []*Exchange
	counts []*counts
	wire   *wire
}

func newPair(t *testing.T, limits AskLimits) *pair {
	p := &pair{wire: newWire(t)}
	p.hosts = hosts(t, p.wire, 3)
	for _, h := range p.hosts[:2] {
		c := newCounts(t)
		x := NewExchange(ExchangeConfig{
			Host: h, Network: "test", Handlers: map[Topic]AskHandler{}, Metrics: c.Coordination, Logger: slog.New(slog.DiscardHandler), Limits: limits,
			Known: func(peer.ID) bool { return true },
		})
		t.Cleanup(func() { require.NoError(t, x.Close()) })
		p.asks, p.counts = append(p.asks, x), append(p.counts, c)
	}
	return p
}

func (p *pair) to() peer.ID { return p.hosts[1].ID() }

func TestAsk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, AskLimits{})
		p.asks[1].Handlers[Information] = func(_ context.Context, from peer.ID, question []byte) ([]byte, error) {
			assert.Equal(t, p.hosts[0].ID(), from, "authenticated")
			switch string(question) {
			case "refuse":
				return nil, fault.New("somewhere", fault.Conflict, "because of \xff")
			case "too much":
				return make([]byte, MaxMessage+1), nil
			}
			return append([]byte("re: "), question...), nil
		}
		ask := func(topic Topic, question []byte) ([]byte, error) {
			return p.asks[0].Ask(t.Context(), p.to(), topic, question)
		}
		for _, size := range []int{0, 1, 1000, MaxMessage - 4} {
			answer, err := ask(Information, bytes.Repeat([]byte{'x'}, size))
			require.NoError(t, err)
			require.Len(t, answer, size+4)
		}
		_, err := ask(Information, make([]byte, MaxMessage+1))
		require.ErrorIs(t, err, fault.TooLarge)
		_, err = ask(Information, []byte("refuse"))
		require.ErrorIs(t, err, fault.Conflict)
		require.Equal(t, "because of \ufffd", fault.Message(err))
		_, err = ask(Information, []byte("too much"))
		require.ErrorIs(t, err, fault.TooLarge)
		_, err = ask(Topic(9), nil)
		require.ErrorIs(t, err, fault.Unsupported)
		_, err = p.asks[0].Ask(t.Context(), p.hosts[2].ID(), Information, nil)
		require.ErrorIs(t, err, fault.Unavailable, "that peer does not speak the protocol")

		delete(p.asks[1].Handlers, Information)
		_, err = ask(Information, nil)
		require.ErrorIs(t, err, fault.Unsupported)
		require.Equal(t, []peer.ID{p.to()}, p.asks[0].ConnectedPeers())
	})
}

// TestAskEnds: a question ends with its context, or at the bound of time.
func TestAskEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, AskLimits{})
		p.asks[1].Handlers[Information] = func(ctx context.Context, _ peer.ID, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		begin := time.Now()
		_, err := p.asks[0].Ask(t.Context(), p.to(), Information, nil)
		require.ErrorIs(t, err, fault.Timeout)
		require.InDelta(t, 5, time.Since(begin).Seconds(), 0.1)

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin = time.Now()
		_, err = p.asks[0].Ask(ctx, p.to(), Information, nil)
		require.ErrorIs(t, err, fault.Canceled)
		require.InDelta(t, 1, time.Since(begin).Seconds(), 0.1)

		time.AfterFunc(time.Second, func() { assert.NoError(t, p.asks[1].Close()) })
		begin = time.Now()
		_, err = p.asks[0].Ask(t.Context(), p.to(), Information, nil)
		require.Error(t, err)
		require.InDelta(t, 1, time.Since(begin).Seconds(), 0.1, "who closes does not let others wait")
	})
}

func echo(_ context.Context, _ peer.ID, question []byte) ([]byte, error) { return question, nil }

// TestAsksPerPeer: one peer may ask only so much at once, other peers are not kept out, and a silent peer is
// cut off.
func TestAsksPerPeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, AskLimits{ServedPerPeer: 2})
		p.asks[1].Handlers[Information] = func(context.Context, peer.ID, []byte) ([]byte, error) { return []byte("yes"), nil }
		var ended atomic.Int64
		for range 10 {
			s, err := p.hosts[2].NewStream(t.Context(), p.to(), AskProtocol("test"))
			require.NoError(t, err)
			_, err = s.Write([]byte{9})
			require.NoError(t, err)
			go func() {
				if _, err := s.Read(make([]byte, 1)); err != nil {
					ended.Add(1)
				}
			}()
		}
		settle(100 * time.Millisecond)
		require.Equal(t, 8, p.counts[1].of("refused.busy"))
		require.Equal(t, int64(8), ended.Load())
		_, err := p.asks[0].Ask(t.Context(), p.to(), Information, nil)
		require.NoError(t, err)
		settle(6 * time.Second)
		require.Equal(t, int64(10), ended.Load())
	})
}

// TestGarbledQuestions: the stream of a question that breaks the protocol is reset without an answer.
func TestGarbledQuestions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, AskLimits{})
		for name, c := range map[string]struct {
			bytes     []byte
			malformed int // recorded
		}{
			"too long":      {binary.AppendUvarint(nil, MaxMessage+16<<10), 1},
			"not a message": {[]byte{2, 0xff, 0xff}, 1},
			"cut short":     {[]byte{9, 8, 2}, 0},
		} {
			before := p.counts[1].of("refused.malformed")
			s, err := p.hosts[2].NewStream(t.Context(), p.to(), AskProtocol("test"))
			require.NoError(t, err)
			_, err = s.Write(c.bytes)
			require.NoError(t, err)
			require.NoError(t, s.CloseWrite())
			answer, err := io.ReadAll(s)
			require.Error(t, err, name)
			require.Empty(t, answer)
			settle(time.Millisecond)
			require.Equal(t, before+c.malformed, p.counts[1].of("refused.malformed"), name)
		}
	})
}

// TestQuestionOfALaterVersion: a question with a field that this version does not know is refused, with the field.
func TestQuestionOfALaterVersion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, AskLimits{})
		x := p.asks[0]
		req := &groupv1.AskRequest{Topic: uint32(Information)}
		req.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1))
		resp := new(groupv1.AskResponse)
		require.NoError(t, x.pool.Call(t.Context(), p.to(), req, resp))
		require.Equal(t, peerv1.Code_CODE_UNSUPPORTED, resp.Refusal.GetCode())
		require.Equal(t, []string{"9"}, resp.Refusal.GetUnknown())
		require.Equal(t, 1, p.counts[1].of("refused.unsupported"))
	})
}
