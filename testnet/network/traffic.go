package network

import (
	"bufio"
	"context"
	"net/http"
	"regexp"
	"strconv"

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
	line := regexp.MustCompile(`^blackhole_stream_bytes_total{direction="(\w+)",protocol="(.*)"} (\S+)$`) // labels are in the order of their names
	flows := map[string]Traffic{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		found := line.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		bytes, err := strconv.ParseFloat(found[3], 64)
		if err != nil {
			return nil, fault.As(op, fault.Internal, err)
		}
		flow := flows[found[2]]
		if found[1] == "sent" {
			flow.Sent = bytes
		} else {
			flow.Received = bytes
		}
		flows[found[2]] = flow
	}
	return flows, fault.As(op, fault.Internal, lines.Err())
}
