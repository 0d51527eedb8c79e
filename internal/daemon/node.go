package daemon

import (
	"time"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

// Status implements discovery.Node.
func (p *parts) Status() discovery.Status {
	kept, own := p.plane.Records()
	return discovery.Status{
		PeerID: p.node.Host().ID().String(), Profile: p.config.Profile, Listen: p.node.Addrs(), Version: p.version,
		UptimeSeconds: time.Since(p.started).Seconds(),
		Peers:         len(p.node.Host().Network().Peers()), RoutingTable: p.node.Routing().Size(),
		RecordsKept: kept, RecordsOwn: own, Ready: p.Ready() == nil,
	}
}

// Peers implements discovery.Node.
func (p *parts) Peers() []discovery.PeerInfo {
	var out []discovery.PeerInfo
	for _, info := range p.node.Peers() {
		out = append(out, discovery.PeerInfo{
			ID: info.ID.String(), Addrs: info.Addrs, Agent: info.Agent, LatencyMs: query.Millis(info.Latency),
		})
	}
	return out
}

// Ready implements discovery.Node.
func (p *parts) Ready() error {
	if p.node.Ready() {
		return nil
	}
	return fault.New("daemon.Ready", fault.Unavailable, "joining the network: waiting for a bootstrap peer")
}
