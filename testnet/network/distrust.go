package network

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// distrustMetric begins the metrics that count answers that an honest peer cannot give.
const distrustMetric = `blackhole_discovery_refused_total{reason="answer_`

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

// Distrust returns the metrics above zero by which a peer, with its HTTP API at address, counts answers that an
// honest peer cannot give.
func Distrust(ctx context.Context, c *http.Client, address string) ([]string, error) {
	const op = "network.Distrust"
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/metrics", nil)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	found, err := distrusting(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fault.New(op, fault.Unavailable, "status %s", resp.Status)
	}
	return found, fault.As(op, fault.Unavailable, errors.Join(err, resp.Body.Close()))
}

// distrusting returns the metrics of distrust above zero. A peer without distrust has none of them, so another
// metric of the same family must show that the name is right.
func distrusting(metrics io.Reader) (found []string, err error) {
	family, seen := distrustMetric[:strings.Index(distrustMetric, "refused")], false
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		line := lines.Text()
		seen = seen || strings.HasPrefix(line, family)
		if strings.HasPrefix(line, distrustMetric) && !strings.HasSuffix(line, " 0") {
			found = append(found, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if !seen {
		return nil, errors.New("there is no metric " + family + "*")
	}
	return found, nil
}
