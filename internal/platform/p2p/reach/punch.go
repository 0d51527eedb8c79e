package reach

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	punchCheck = 3 * time.Second // between two looks at the relayed connections
	punchSlots = 4               // hole punches under way, besides those of libp2p
)

// punchPauses are the times until the next hole punch with the same peer. libp2p punches once, when a relayed
// connection arrives. That is too early for a peer that has just started and does not know its outer address.
func punchPauses() []time.Duration {
	return []time.Duration{5 * time.Second, 20 * time.Second, time.Minute, 10 * time.Minute}
}

// puncher punches holes for relayed connections. As in libp2p, the end that accepted the connection begins.
type puncher struct {
	host    host.Host
	service *holepunch.Service
	found   func() []multiaddr.Multiaddr // own addresses: announced, of devices, and observed by others
}

// newPuncher replaces libp2p's own service, whose punches nobody can repeat. outer returns addresses that the host does not find.
func newPuncher(h host.Host, outer func() []multiaddr.Multiaddr, tracer holepunch.MetricsTracer) (*puncher, error) {
	full, ok := h.(interface {
		IDService() identify.IDService
		AllAddrs() []multiaddr.Multiaddr
	})
	if !ok {
		return nil, fault.New("reach.Attach", fault.Internal, "the host has no identify service")
	}
	found := func() []multiaddr.Multiaddr { return multiaddr.Unique(slices.Concat(outer(), full.AllAddrs())) }
	public := func() []multiaddr.Multiaddr { return address.Public(found()) }
	s, err := holepunch.NewService(h, full.IDService(), public, holepunch.WithMetricsTracer(tracer))
	if err != nil {
		return nil, err
	}
	return &puncher{host: h, service: s, found: found}, nil
}

// run repeats hole punches until ctx ends. The caller closes the puncher to end the punches under way.
func (p *puncher) run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	slots := make(chan struct{}, punchSlots)
	plan := punchPlan{}
	for pause.For(ctx, punchCheck) {
		// Without this protocol, the service waits for an outer address.
		if !slices.Contains(p.host.Mux().Protocols(), holepunch.Protocol) {
			continue
		}
		for _, id := range plan.due(p.relayed(), time.Now()) {
			select {
			case slots <- struct{}{}:
			default:
				continue // the next look finds it again
			}
			plan.begin(id, time.Now())
			work.Go(func() {
				defer func() { <-slots }()
				_ = p.service.DirectConnect(id) // the tracer counts the outcome
			})
		}
	}
}

// relayed lists the peers that are connected through a relay only and began the connection.
func (p *puncher) relayed() []peer.ID {
	var out, direct []peer.ID
	for _, c := range p.host.Network().Conns() {
		switch stat := c.Stat(); {
		case !stat.Limited:
			direct = append(direct, c.RemotePeer())
		case stat.Direction == network.DirInbound:
			out = append(out, c.RemotePeer())
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(id peer.ID) bool { return slices.Contains(direct, id) })
}

func (p *puncher) close() error { return p.service.Close() }

// punchPlan says when to punch the next hole, for each relayed peer. It forgets a peer with its connection.
type punchPlan map[peer.ID]*punchTries

type punchTries struct {
	count int       // begun
	next  time.Time // of the next one
}

// due returns the peers to punch a hole for, and follows the relayed peers.
func (p punchPlan) due(relayed []peer.ID, now time.Time) []peer.ID {
	for id := range p {
		if !slices.Contains(relayed, id) {
			delete(p, id)
		}
	}
	var out []peer.ID
	for _, id := range relayed {
		tries := p[id]
		if tries == nil {
			tries = &punchTries{next: now.Add(punchPauses()[0])}
			p[id] = tries
		}
		if tries.count < len(punchPauses()) && !now.Before(tries.next) {
			out = append(out, id)
		}
	}
	return out
}

// begin counts a hole punch.
func (p punchPlan) begin(id peer.ID, now time.Time) {
	tries := p[id]
	tries.count++
	if tries.count < len(punchPauses()) {
		tries.next = now.Add(punchPauses()[tries.count])
	}
}
