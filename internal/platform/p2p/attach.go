package p2p

import (
	"context"
	"sync"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/host"

	"github.com/blackhole/blackhole/internal/platform/p2p/routing"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Attached is what planes need of a peer, on the host and the DHT of a program. Neither belongs to it.
type Attached struct {
	stack
	cancel context.CancelFunc
	stop   func() // for Close, once
}

// Attach starts the parts beside a program's own ones. It reads Network, PubSub, Probe and Profile of c. first: no other peer of the
// network is known, so an empty routing table is no failure. The host must have no connection yet: the routing table calls back, and
// nothing guards the assignment of its callbacks. ctx bounds nothing after the return; Close stops the parts.
//
// Errors: Invalid, field "dht", for a server of another network's DHT.
func Attach(ctx context.Context, h host.Host, d *dht.IpfsDHT, c Config, first bool) (*Attached, error) {
	const op = "p2p.Attach"
	settings, ok := c.Profile.settings()
	if !ok {
		return nil, fault.Invalidf("profile", string(c.Profile), "must be dev, lan or public")
	}
	if err := routing.Serves(h, d, c.Network); err != nil {
		return nil, fault.Wrap(op, err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a := &Attached{stack: stack{host: h, dht: d}, cancel: cancel}
	a.stop = sync.OnceFunc(a.stopParts)
	table := routing.Config{Host: h, Network: c.Network, Open: settings.open, HasKnown: !first}
	if err := a.serve(life, settings.low, table, c.Probe, c.PubSub); err != nil {
		a.Close()
		return nil, fault.Wrap(op, err)
	}
	return a, nil
}

// Close stops the parts, and leaves host and DHT running.
func (a *Attached) Close() { a.stop() }

func (a *Attached) stopParts() {
	a.cancel()
	a.work.Wait()
	if a.routing != nil {
		a.routing.Close()
	}
}
