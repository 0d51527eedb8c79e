package daemon

import (
	"time"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// Status implements discovery.Node.
func (p *parts) Status() discovery.Status {
	return discovery.Status{
		PeerID: p.node.Host().ID().String(), Profile: p.config.Profile, Listen: p.node.Addrs(), Version: p.version,
		UptimeSeconds: time.Since(p.started).Seconds(),
		Peers:         len(p.node.Host().Network().Peers()), RoutingTable: p.node.Routing().Size(),
		RecordsKept: p.index.Len(), RecordsOwn: p.registry.Len(), Ready: p.Ready() == nil,
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
	return fault.New("daemon.Ready", fault.Unavailable, "not joined yet: no bootstrap peer answered")
}

// census counts known services for the gauges: usable or not, by claim and by measurement.
func (p *parts) census() (healthy, unhealthy int) {
	for r := range p.index.All() {
		m, measured := p.node.Prober().Measured(r.Name().Provider)
		if r.Facts().Status == pb.HealthStatus_UNHEALTHY || (measured && !m.Reachable) {
			unhealthy++
		} else {
			healthy++
		}
	}
	return healthy, unhealthy
}
