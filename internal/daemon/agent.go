package daemon

import (
	"context"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/agent"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/agent/requirement"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination"
	"github.com/blackhole/blackhole/internal/frontend/consulapi"
	"github.com/blackhole/blackhole/internal/frontend/dnsapi"
	"github.com/blackhole/blackhole/internal/frontend/dnssd"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/link"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// instancesDir is the registry's folder in the data directory.
const instancesDir = "instances"

// startEvaluator evaluates requirements whenever this peer leads the group,
// through its own member, also without an agent plane.
func (p *parts) startEvaluator(context.Context) error {
	if p.coordination == nil {
		return nil
	}
	plane := p.coordination.plane
	evaluator := requirement.New(requirement.Config{
		Counter: instances.Counter, Self: p.node.Host().ID().String(), Leader: plane, Member: plane.Member(), Logger: p.log.With("part", "requirements"),
	})
	p.background(evaluator.Run)
	return nil
}

// background runs until this peer closes what came before.
func (p *parts) background(run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { run(ctx) })
	p.onClose(func() error {
		cancel()
		work.Wait()
		return nil
	})
}

// startAgent starts the agent plane, unless it is switched off.
func (p *parts) startAgent(context.Context) (err error) {
	c := p.config.Agent
	if !c.Enabled {
		return nil
	}
	self := p.node.Host().ID().String()
	log := p.log.With("part", "agent")
	instruments, err := metrics.NewAgent(p.gatherer, p.metrics, p.instances, p.now)
	if err != nil {
		return err
	}
	made := agent.Config{
		Registry: registry.Config{
			Dir: filepath.Join(p.config.Data, instancesDir), Self: self, MaxInstances: c.Limits.Instances, Logger: log,
		},
		Checks: health.Config{
			Targets: c.Limits.Instances, Workers: c.Checks.Workers, Scripts: c.Checks.Scripts, Random: rand.Uint64, Logger: log,
		},
		Validate: c.DependencyValidation, Strict: c.Strict, Loopback: c.Checks.AllowLoopback != "false",
		Multicast: p.config.Profile == "lan" && p.config.DNS != config.Off,
		Caller:    p.fronts.auth.callerName,
		Client:    access.Client,
		Announcer: p.discovery, Metrics: instruments, Now: p.now, Logger: log,
		Tracer: p.tracing.Tracer,
	}
	p.fronts.requests = instruments
	if p.fronts.auth.guard != nil {
		made.May = p.fronts.auth.may
	}
	if g := p.coordination; g != nil {
		others := newRemoteAgents(func(to peer.ID) (*link.Link, error) {
			target, options := coordination.DialTarget(p.node.Host(), p.network.name, to, g.plane.ID())
			return link.Open(target, link.Settings{
				Dial: append(options, grpc.WithPerRPCCredentials(callerCredentials{})), Begin: p.tracing.calls(to.String()),
			})
		})
		p.onClose(others.Close)
		made.Group, made.Peers, made.Refused = g.plane, others, p.refusedByGroup
		made.Speaks = func(ctx context.Context) (string, error) {
			return grpcapi.SpokenFor(ctx), g.plane.Member().Vouches(ctx)
		}
	}
	if p.agent, err = agent.New(made); err != nil {
		return err
	}
	p.onClose(p.agent.Close)
	if aside := p.agent.Aside(); len(aside) > 0 {
		p.conditions.Raise(condition.SetAside, fault.Problem{
			What:   fault.Counted(len(aside), "instance") + " on the disk of this peer did not pass at its start, the first is " + aside[0],
			Effect: "nobody finds it", Remedy: "Register it again: `blackholed instance register`",
		})
	}
	return countInstances(p.gatherer, p.agent.Stats, p.agent.Pending)
}

// consulChecks runs the checks of services of Consul's clients. Each check has a target of its own, so a service can have several checks.
type consulChecks struct {
	*health.Checker
	loopback bool
}

func (p *parts) startConsulChecks() consulChecks {
	c := p.config.Agent
	checks := consulChecks{health.New(health.Config{
		Report:  func(r health.Report) { p.fronts.consul.Checked(r.Key.ID, r.Status) },
		Targets: c.Limits.Instances, Workers: c.Checks.Workers, Random: rand.Uint64, Logger: p.log.With("part", "consul"),
	}), c.Checks.AllowLoopback != "false"}
	p.onClose(func() error { checks.Close(); return nil })
	return checks
}

func (c consulChecks) target(p consulapi.Probe) health.Target {
	return health.Target{Key: instance.Key{ID: p.ID}, Host: p.Host, Port: p.Port, Check: p.Check, Local: c.loopback && p.Local, TLS: p.TLS, Head: p.Head, Unmeasured: true}
}

func (c consulChecks) Validate(p consulapi.Probe) error { return c.Checker.Validate(c.target(p)) }

func (c consulChecks) Set(p consulapi.Probe) error { return c.Checker.Set(c.target(p)) }

func (c consulChecks) Remove(id string) { c.Checker.Remove(instance.Key{ID: id}) }

// frontFailed raises the condition of a front end whose periodic work fails for a reason, and clears it for nil.
func (p *parts) frontFailed(reason error) {
	if reason == nil {
		p.conditions.Clear(condition.FrontFailed)
		return
	}
	p.conditions.Raise(condition.FrontFailed, fault.Problem{What: "the front end for clients of Consul has a " + fault.Message(reason)})
}

// refusedByGroup raises the condition of refused instances for a reason, and clears it for nil.
func (p *parts) refusedByGroup(reason error) {
	if reason == nil {
		p.conditions.Clear(condition.DirectoryRefused)
		return
	}
	p.conditions.Raise(condition.DirectoryRefused, fault.Problem{
		What: "the coordination group refuses instances of this peer: " + fault.Message(reason), Effect: "other peers do not find them",
	})
}

// instances counts the instances of this peer by the status names of SAP-044
// Registry.
func (p *parts) instances() map[string]int {
	counts := map[string]int{}
	if p.agent != nil {
		for status, n := range p.agent.Census() {
			counts[dialect.ServiceStatus(status)] += n
		}
	}
	return counts
}

// startDNS starts the DNS server.
func (p *parts) startDNS(context.Context) (err error) {
	c := p.config
	if c.DNS == config.Off || p.agent == nil {
		return nil
	}
	self := p.node.Host().ID()
	p.fronts.dns, err = dnsapi.New(dnsapi.Config{
		Catalog: p.agent, Self: self.String(), Node: p.named, SelfName: label(self),
		Domains: c.DNSDomain, TTL: c.DNSTTL, Allow: p.reachable(), Now: p.now, Random: rand.Uint64, Logger: p.log.With("part", "dns"),
	})
	if err != nil {
		return err
	}
	if err := p.fronts.dns.Listen(c.DNS); err != nil {
		return fault.In("dns", err)
	}
	p.onClose(func() error { p.fronts.dns.Close(); return nil })
	if c.Profile == "lan" {
		p.background(dnssd.New(p.agent, self.String(), p.log.With("part", "dns")).Run)
	}
	return countNames(p.gatherer, p.fronts.dns)
}

// reachable lists the special networks that DNS answers may contain, by
// profile. Outside them, a registration could point a name at an internal
// machine.
func (p *parts) reachable() []netip.Prefix {
	var nets []string
	switch p.config.Profile {
	case "dev":
		nets = []string{"127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"}
	case "lan":
		nets = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"}
	}
	prefixes := make([]netip.Prefix, 0, len(nets))
	for _, n := range nets {
		prefixes = append(prefixes, netip.MustParsePrefix(n))
	}
	return prefixes
}

// label is the DNS name of a peer: its id in base 36, without case and short
// enough for a label.
func label(id peer.ID) string {
	return "k" + new(big.Int).SetBytes(peer.ToCid(id).Bytes()).Text(36) // k: the prefix of base 36 in multibase
}

// named finds this peer or a connected peer by its label.
func (p *parts) named(name string) (dnsapi.Node, bool) {
	id, err := peer.Decode(name)
	if err != nil {
		return dnsapi.Node{}, false
	}
	host := p.node.Host()
	if id == host.ID() {
		return nodeOf(id, host.Addrs()), true
	}
	var addrs []multiaddr.Multiaddr
	for _, c := range host.Network().ConnsToPeer(id) {
		addrs = append(addrs, c.RemoteMultiaddr())
	}
	return nodeOf(id, addrs), len(addrs) > 0
}

func nodeOf(id peer.ID, addrs []multiaddr.Multiaddr) dnsapi.Node {
	n := dnsapi.Node{Text: []string{"peer_id=" + id.String()}}
	seen := map[netip.Addr]bool{}
	for _, a := range addrs {
		ip, err := manet.ToIP(a)
		if addr, ok := netip.AddrFromSlice(ip); err == nil && ok && !seen[addr.Unmap()] {
			seen[addr.Unmap()] = true
			n.Addrs = append(n.Addrs, addr.Unmap())
		}
	}
	return n
}

// maxAgentConns bounds the connections to agents of other peers.
const maxAgentConns = 128

// remoteAgents is a pool of connections to the agents of other peers.
type remoteAgents struct {
	dial func(to peer.ID) (*link.Link, error)

	mu   sync.Mutex // guards open
	open *simplelru.LRU[peer.ID, *link.Link]
}

func newRemoteAgents(dial func(peer.ID) (*link.Link, error)) *remoteAgents {
	open := bounded.Map(maxAgentConns, func(_ peer.ID, c *link.Link) { _ = c.Close() })
	return &remoteAgents{dial: dial, open: open}
}

// At implements agent.Peers.
func (r *remoteAgents) At(name string) (instances.Registrar, error) {
	to, err := peer.Decode(name)
	if err != nil {
		return nil, fault.As("daemon.At", fault.Unavailable, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.open.Get(to); ok {
		return c.Agent, nil
	}
	c, err := r.dial(to)
	if err != nil {
		return nil, fault.As("daemon.At", fault.Unavailable, err)
	}
	r.open.Add(to, c)
	return c.Agent, nil
}

// Close closes all connections.
func (r *remoteAgents) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open.Purge()
	return nil
}
