package tour

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/network"
)

// distrustMetric begins the metrics that count answers that an honest peer cannot give.
const distrustMetric = `blackhole_refused_total{reason="answer_`

// noDistrust reads the metrics of every living peer: all peers of the network are honest, so no peer
// may have taken another for a liar.
func noDistrust(ctx context.Context, t *Tour) (string, error) {
	peers := t.Network.Living()
	for _, p := range peers {
		text, err := metricsOf(ctx, p)
		if err != nil {
			return "", fault.Wrap(p.Name, err)
		}
		if found := distrusting(strings.NewReader(text)); len(found) > 0 {
			return "", fault.New(p.Name, fault.Conflict, "it distrusts honest peers: %s", strings.Join(found, ", "))
		}
	}
	return fmt.Sprintf("%d peers distrust nobody", len(peers)), nil
}

// distrusting returns the metrics of distrust above zero.
func distrusting(metrics io.Reader) (found []string) {
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, distrustMetric) && !strings.HasSuffix(line, " 0") {
			found = append(found, line)
		}
	}
	return found
}

func metricsOf(ctx context.Context, p *network.Peer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.HTTP+"/v1/metrics", nil)
	if err != nil {
		return "", fault.As("tour.metrics", fault.Invalid, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fault.As("tour.metrics", fault.Unavailable, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fault.New("tour.metrics", fault.Unavailable, "status %s", resp.Status)
	}
	return string(text), fault.Wrap("tour.metrics", err)
}
