package daemon

import (
	"context"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// maxAgentConns bounds the connections to agents of other peers.
const maxAgentConns = 128

// remoteAgents is a pool of connections to the agents of other peers.
type remoteAgents struct {
	dial func(to peer.ID) (*client.Client, error)

	mu   sync.Mutex // guards open
	open *simplelru.LRU[peer.ID, *client.Client]
}

func newRemoteAgents(dial func(peer.ID) (*client.Client, error)) *remoteAgents {
	open, err := simplelru.NewLRU(maxAgentConns, func(_ peer.ID, c *client.Client) { _ = c.Close() })
	if err != nil {
		panic(err) // impossible: the size is positive
	}
	return &remoteAgents{dial: dial, open: open}
}

// At implements agent.Peers.
func (r *remoteAgents) At(name string) (instance.Registrar, error) {
	to, err := peer.Decode(name)
	if err != nil {
		return nil, fault.As("daemon.At", fault.Unavailable, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.open.Get(to); ok {
		return c.Agent(), nil
	}
	c, err := r.dial(to)
	if err != nil {
		return nil, fault.As("daemon.At", fault.Unavailable, err)
	}
	r.open.Add(to, c)
	return c.Agent(), nil
}

// Close closes all connections.
func (r *remoteAgents) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open.Purge()
	return nil
}

// callerCredentials tell another peer the authenticated caller behind a call.
type callerCredentials struct{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (callerCredentials) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	name := access.From(ctx).Name
	if name == "" {
		return nil, nil
	}
	return map[string]string{coord.PrincipalMetadata: coord.NamedOwner(name)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: libp2p encrypts.
func (callerCredentials) RequireTransportSecurity() bool { return false }
