package daemon

import (
	"context"

	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/directory"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// maxReached bounds the peers whose agents are connected to at a time.
const maxReached = 128

// startDirectory makes this peer's part in the directory of the group, which startAgent starts.
func (p *parts) startDirectory(context.Context) (err error) {
	c := p.coordination
	if c == nil || !p.config.Agent.Enabled {
		return nil
	}
	self := p.node.Host().ID().String()
	if c.known, err = catalog.New(catalog.Config{}); err != nil {
		return err
	}
	c.directory = directory.New(directory.Config{
		Group: c.plane, Catalog: c.known, Self: self, Lost: func(keys []instance.Key) { p.agent.Lost(keys) },
		Failed: p.metrics.Failed, Logger: p.log.With("part", "directory"),
	})
	p.onClose(c.directory.Close)
	return nil
}

// reached are the agents of other peers that calls go to.
type reached struct {
	dial func(to peer.ID) (*client.Client, error)

	mu   sync.Mutex // guards open
	open *simplelru.LRU[peer.ID, *client.Client]
}

func newReached(dial func(peer.ID) (*client.Client, error)) *reached {
	open, err := simplelru.NewLRU(maxReached, func(_ peer.ID, c *client.Client) { _ = c.Close() })
	if err != nil {
		panic(err) // it has a size
	}
	return &reached{dial: dial, open: open}
}

// At gives the agent of a peer.
func (r *reached) At(name string) (instance.Registrar, error) {
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

// Close ends the connections.
func (r *reached) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open.Purge()
	return nil
}
