package daemon

import (
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/daemon/recent"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/disk"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Status implements discovery.Node.
func (p *parts) Status() discovery.Status {
	kept, own := p.plane.Records()
	var conditions []discovery.Condition
	for _, c := range p.conditions.Active() {
		conditions = append(conditions, discovery.Condition{Name: string(c.Name), Message: c.String(), Problem: c.Problem})
	}
	return discovery.Status{
		PeerID: p.node.Host().ID().String(), IdentityNew: p.identityNew, Name: string(p.config.PeerName()), Group: p.groupStanding(), Network: p.network.name.String(), NetworkClosed: p.config.Network.Closed, Profile: p.config.Profile, Mode: string(p.node.Mode()), Listen: p.node.Addrs(), Version: p.version,
		UptimeSeconds: time.Since(p.started).Seconds(),
		Peers:         len(p.node.Host().Network().Peers()), RoutingTable: p.node.Routing().Size(),
		RecordsKept: kept, RecordsOwn: own, Ready: p.Ready() == nil, Conditions: conditions,
		ClockOffset: p.plane.ClockOffset(), RecordsUnstored: p.plane.Unstored(), RecordsAnnouncing: p.plane.Announcing(),
		Reach: p.reach(),
	}
}

// groupStanding describes the coordination group as far as this peer knows it without a question; nil without the plane.
func (p *parts) groupStanding() *discovery.Group {
	if p.coordination == nil || p.coordination.plane == nil {
		return nil
	}
	s := p.coordination.plane.Standing()
	return &discovery.Group{
		ID: s.ID, Role: roleIn(s, p.node.Host().ID().String()), Term: s.Term, Leader: s.Leader, LeaderName: s.NameOf(s.Leader),
		Survives: s.Survives, Tolerance: s.Tolerance, Missing: s.Missing,
	}
}

// watch returns what notes the changes of this peer.
func (p *parts) watch() *recent.Watch {
	see := recent.Sources{
		Self: p.node.Host().ID().String(), Offers: p.discovery.OwnAll,
		Conditions: func() []condition.Condition {
			p.fronts.auth.checkCertificate(p.config.Auth, p.conditions, p.now())
			checkDisk(p.config.Data, disk.Free, p.conditions)
			return p.conditions.Active()
		},
		Peers: func() (ids []string) {
			for _, id := range p.node.Host().Network().Peers() {
				ids = append(ids, id.String())
			}
			return ids
		},
	}
	if p.coordination != nil {
		see.Group = p.coordination.plane.Standing
	}
	if p.agent != nil {
		see.Removed = func() []instances.Removal { return p.agent.Removed(instance.Name{}) }
	}
	return recent.NewWatch(p.memory, see, time.Now)
}

// roleIn returns the role of a peer in the group, or its phase on the way there.
func roleIn(s coord.GroupState, self string) string {
	is := func(m coord.Member) bool { return m.Peer == self }
	switch {
	case s.Phase != "member":
		return s.Phase
	case s.Leader == self:
		return "leader"
	case slices.ContainsFunc(s.Voters, is):
		return "voter"
	}
	return "learner"
}

func (p *parts) reach() discovery.Reach {
	r := p.node.Reach()
	direct, relayed := p.node.Connections()
	var relays []string
	for _, id := range r.Relays {
		relays = append(relays, id.String())
	}
	return discovery.Reach{
		State: string(r.State), Text: r.Text, Since: r.Since, Relays: relays,
		Direct: direct, Relayed: relayed, Punched: r.Punched, Unpunched: r.Unpunched,
	}
}

// Peers implements discovery.Node.
func (p *parts) Peers() []discovery.PeerInfo {
	var out []discovery.PeerInfo
	for _, info := range p.node.Peers() {
		one := discovery.PeerInfo{ID: info.ID.String(), Addrs: info.Addrs, Agent: info.Agent, LatencyMs: queries.Millis(info.Latency)}
		if p.coordination != nil && p.coordination.plane != nil {
			one.Name = p.coordination.plane.NameOf(info.ID)
		}
		out = append(out, one)
	}
	return out
}

// firstElection bounds the time after the start in which a peer waits for a leader before it is ready. MAGIC: an election
// takes less; without a majority the peer serves what needs none.
const firstElection = 5 * time.Second

// unelected says that the first election since the start is under way.
func unelected(electing bool, up time.Duration) error {
	if electing && up < firstElection {
		return fault.New("daemon.Ready", fault.Unavailable, "the coordination group elects a leader")
	}
	return nil
}

// Ready implements discovery.Node.
func (p *parts) Ready() error {
	if p.node.Ready() {
		c := p.coordination
		return unelected(c != nil && c.plane != nil && c.plane.Electing(), time.Since(p.started))
	}
	for _, c := range p.conditions.Active() {
		if c.Name == condition.AddressLimit || c.Name == condition.OtherNetwork {
			return fault.New("daemon.Ready", fault.Unavailable, "joining the network: %s", c.String())
		}
	}
	return fault.New("daemon.Ready", fault.Unavailable, "joining the network: waiting for a bootstrap peer")
}
