package p2p

import (
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/metrics"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// traffic counts the bytes of streams by protocol. It implements metrics.Reporter. libp2p's own reporter keeps a meter for
// each peer, and a goroutine that computes rates every second, also on an idle peer.
type traffic struct {
	prefix               string // of the network's protocols
	own, library         map[string]flow
	negotiation, unknown flow
}

// flow counts one protocol in both directions.
type flow struct{ received, sent prometheus.Counter }

// newTraffic registers the counters. The labels are a fixed set, because remote peers choose the versions of protocols.
func newTraffic(reg prometheus.Registerer, prefix string) (*traffic, error) {
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "blackhole_stream_bytes_total",
		Help: "Bytes of streams between peers, by protocol and direction, without encryption and multiplexing.",
	}, []string{"protocol", "direction"})
	if err := reg.Register(bytes); err != nil {
		return nil, fault.As("p2p.New", fault.Exists, err)
	}
	of := func(name string) flow {
		return flow{received: bytes.WithLabelValues(name, "received"), sent: bytes.WithLabelValues(name, "sent")}
	}
	t := &traffic{prefix: prefix + "/", own: map[string]flow{}, library: map[string]flow{}, negotiation: of("negotiation"), unknown: of("other")}
	for _, name := range []string{"coord", "group", "kad", "keeper", "meshsub", "proof", "raft"} {
		t.own[name] = of(name)
	}
	for id, name := range map[string]string{"/ipfs/id/1.0.0": "identify", "/ipfs/id/push/1.0.0": "identify-push", "/ipfs/ping/1.0.0": "ping"} {
		t.library[id] = of(name)
	}
	return t, nil
}

// of returns the flow of a protocol. A stream without one is being negotiated.
func (t *traffic) of(id protocol.ID) flow {
	if id == "" {
		return t.negotiation
	}
	found, ok := t.library[string(id)]
	if rest, ours := strings.CutPrefix(string(id), t.prefix); ours {
		part, _, _ := strings.Cut(rest, "/")
		found, ok = t.own[part]
	}
	if !ok {
		return t.unknown
	}
	return found
}

// LogSentMessageStream implements metrics.Reporter.
func (t *traffic) LogSentMessageStream(n int64, id protocol.ID, _ peer.ID) {
	t.of(id).sent.Add(float64(n))
}

// LogRecvMessageStream implements metrics.Reporter.
func (t *traffic) LogRecvMessageStream(n int64, id protocol.ID, _ peer.ID) {
	t.of(id).received.Add(float64(n))
}

// The other methods of metrics.Reporter count nothing: nobody calls them with a use for the result.

func (*traffic) LogSentMessage(int64)                                  {}
func (*traffic) LogRecvMessage(int64)                                  {}
func (*traffic) GetBandwidthForPeer(peer.ID) metrics.Stats             { return metrics.Stats{} }
func (*traffic) GetBandwidthForProtocol(protocol.ID) metrics.Stats     { return metrics.Stats{} }
func (*traffic) GetBandwidthTotals() metrics.Stats                     { return metrics.Stats{} }
func (*traffic) GetBandwidthByPeer() map[peer.ID]metrics.Stats         { return nil }
func (*traffic) GetBandwidthByProtocol() map[protocol.ID]metrics.Stats { return nil }
func (*traffic) Reset()                                                {}
func (*traffic) TrimIdle(time.Time)                                    {}
