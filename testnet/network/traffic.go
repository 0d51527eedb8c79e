package network

import (
	"context"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Traffic is the bytes of one protocol on the streams of a peer, since its start.
type Traffic struct{ Sent, Received float64 }

// Traffic asks the peer for its bytes by protocol. It is empty at a version without this metric. The answer itself costs about
// 100 KB of TCP.
func (p *Peer) Traffic(ctx context.Context) (map[string]Traffic, error) {
	const op = "network.Traffic"
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.HTTP+"/v1/metrics", nil)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fault.New(op, fault.Unavailable, "/v1/metrics of %s answers %s", p.Name, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	flows := map[string]Traffic{}
	for _, m := range families["blackhole_stream_bytes_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		flow := flows[labels["protocol"]]
		if labels["direction"] == "sent" {
			flow.Sent = m.GetCounter().GetValue()
		} else {
			flow.Received = m.GetCounter().GetValue()
		}
		flows[labels["protocol"]] = flow
	}
	return flows, nil
}
