package tour

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/network"
)

// noDistrust reads the metrics of every living peer: all peers of the network are honest, so no peer
// may have taken another for a liar.
func noDistrust(ctx context.Context, t *Tour) (string, error) {
	peers := t.Network.Living()
	for _, p := range peers {
		found, err := network.Distrust(ctx, http.DefaultClient, p.HTTP)
		if err != nil {
			return "", fault.Wrap(p.Name, err)
		}
		if len(found) > 0 {
			return "", fault.New(p.Name, fault.Conflict, "it distrusts honest peers: %s", strings.Join(found, ", "))
		}
	}
	return fmt.Sprintf("%d peers distrust nobody", len(peers)), nil
}
