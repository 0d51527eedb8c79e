package p2p

import (
	"fmt"
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	names "github.com/blackhole/blackhole/pkg/network"
)

// flows returns the counted bytes as "protocol direction".
func flows(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	families, err := reg.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "blackhole_stream_bytes_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			all[labels["protocol"]+" "+labels["direction"]] = m.GetCounter().GetValue()
		}
	}
	return all
}

// TestTrafficHasFixedLabels: a remote peer chooses the version of a protocol, and never adds a label.
func TestTrafficHasFixedLabels(t *testing.T) {
	reg, n := prometheus.NewRegistry(), names.Name("test")
	count, err := newTraffic(reg, n.Prefix())
	require.NoError(t, err)
	before := len(flows(t, reg))
	for i := range 1000 {
		for _, id := range []string{n.Protocol("keeper", fmt.Sprintf("1.%d.0", i)), n.Protocol(fmt.Sprintf("raft/%x", i), "1"), n.Protocol(fmt.Sprint("x", i), "1"), fmt.Sprint("/x/", i)} {
			count.LogSentMessageStream(2, protocol.ID(id), "")
			count.LogRecvMessageStream(3, protocol.ID(id), "")
		}
	}
	count.LogSentMessageStream(7, "/ipfs/id/push/1.0.0", "")
	count.LogRecvMessageStream(5, "", "")
	got := flows(t, reg)
	require.Len(t, got, before)
	for name, bytes := range map[string]float64{
		"keeper sent": 2000, "keeper received": 3000, "raft sent": 2000, "raft received": 3000, "other sent": 4000, "other received": 6000,
		"identify-push sent": 7, "negotiation received": 5, "kad sent": 0, "ping received": 0,
	} {
		require.Contains(t, got, name)
		require.Equal(t, bytes, got[name], name)
	}
}

// TestTrafficOfNode counts a message of a real stream.
func TestTrafficOfNode(t *testing.T) {
	reg, c := prometheus.NewRegistry(), testConfig(t)
	c.Registerer = reg
	a, b := start(t, c), start(t, testConfig(t))
	id := protocol.ID(names.Default("dev").Protocol("proof", "9"))
	b.Host().SetStreamHandler(id, func(s network.Stream) { _, _ = io.Copy(s, s); _ = s.Close() })
	require.NoError(t, a.Host().Connect(t.Context(), info(b)))
	s, err := a.Host().NewStream(t.Context(), b.host.ID(), id)
	require.NoError(t, err)
	const sent = 100_000
	_, err = s.Write(make([]byte, sent))
	require.NoError(t, err)
	require.NoError(t, s.CloseWrite())
	_, err = io.Copy(io.Discard, s)
	require.NoError(t, err)
	got := flows(t, reg)
	require.InDelta(t, sent, got["proof sent"], 1000, "with the negotiation")
	require.InDelta(t, sent, got["proof received"], 1000)
	require.Positive(t, got["identify received"])
}

func BenchmarkTraffic(b *testing.B) {
	n := names.Name("test")
	count, err := newTraffic(prometheus.NewRegistry(), n.Prefix())
	require.NoError(b, err)
	id := protocol.ID(n.Protocol("keeper", "1.0.0"))
	b.ReportAllocs()
	for b.Loop() {
		count.LogSentMessageStream(700, id, "")
	}
}
