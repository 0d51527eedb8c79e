package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Metrics reads the metrics of a peer, with its HTTP API at address: values by name and labels, as in name{label="value"}. It
// leaves no connection. The answer costs about 100 KB of TCP.
func Metrics(ctx context.Context, c *http.Client, address string) (map[string]float64, error) {
	const op = "network.Metrics"
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/metrics", nil)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	req.Close = true
	resp, err := c.Do(req)
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fault.New(op, fault.Unavailable, "%s answers %s", address, resp.Status)
	}
	found, err := parseMetrics(resp.Body)
	return found, fault.As(op, fault.Unavailable, err)
}

func parseMetrics(text io.Reader) (map[string]float64, error) {
	found := make(map[string]float64)
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ') // labels may have spaces
		if at < 0 || line[0] == '#' {
			continue
		}
		if value, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			found[line[:at]] = value
		}
	}
	return found, lines.Err()
}

// NoDistrust reads the metrics of every living peer, and returns their number. It fails with Conflict if one of them has taken
// another for a liar: all peers of the network are honest.
func (n *Network) NoDistrust(ctx context.Context) (int, error) {
	peers := n.Living()
	for _, p := range peers {
		found, err := Distrust(ctx, http.DefaultClient, p.HTTP)
		if err != nil {
			return 0, fault.Wrap(p.Name, err)
		}
		if len(found) > 0 {
			return 0, fault.New(p.Name, fault.Conflict, "it distrusts honest peers: %s", strings.Join(found, ", "))
		}
	}
	return len(peers), nil
}

// Distrust returns the metrics above zero by which a peer counts answers that an honest peer cannot give.
func Distrust(ctx context.Context, c *http.Client, address string) ([]string, error) {
	all, err := Metrics(ctx, c, address)
	if err != nil {
		return nil, err
	}
	return distrusting(all)
}

// distrusting returns the metrics of distrust above zero. A peer without distrust has none of them, so another
// metric of the same family must show that the name is right.
func distrusting(all map[string]float64) (found []string, err error) {
	const family, metric = "blackhole_discovery_", `refused_total{reason="answer_`
	seen := false
	for _, name := range slices.Sorted(maps.Keys(all)) {
		seen = seen || strings.HasPrefix(name, family)
		if strings.HasPrefix(name, family+metric) && all[name] > 0 {
			found = append(found, fmt.Sprint(name, " ", all[name]))
		}
	}
	if !seen {
		return nil, fault.As("network.Distrust", fault.Unavailable, errors.New("there is no metric "+family+"*"))
	}
	return found, nil
}

// Traffic is the bytes of one protocol on the streams of a peer, since its start.
type Traffic struct{ Sent, Received float64 }

// Traffic asks the peer for its bytes by protocol. It is empty at a version without this metric.
func (p *Peer) Traffic(ctx context.Context) (map[string]Traffic, error) {
	all, err := Metrics(ctx, http.DefaultClient, p.HTTP)
	flows := make(map[string]Traffic)
	for name, bytes := range all {
		labels, ok := strings.CutPrefix(name, `blackhole_stream_bytes_total{direction="`) // labels are in the order of their names
		direction, protocol, whole := strings.Cut(strings.TrimSuffix(labels, `"}`), `",protocol="`)
		if !ok || !whole {
			continue
		}
		flow := flows[protocol]
		if direction == "sent" {
			flow.Sent = bytes
		} else {
			flow.Received = bytes
		}
		flows[protocol] = flow
	}
	return flows, err
}
