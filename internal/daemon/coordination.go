package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/coordination"
	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/trade"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

// maxFollowers bounds the peers that follow the directory at this one.
const maxFollowers = 4096

// coordinationDir is the plane's folder in a data directory.
const coordinationDir = "coordination"

// group holds the parts of the coordination plane.
type group struct {
	plane    *coordination.Seat
	server   *grpcapi.Server // for other peers
	listener net.Listener    // of their streams
	failed   chan error      // receives the fatal error of the plane
}

// groupValues returns the DHT namespace of group announcements with its validator, if this peer takes part in
// a group.
func (p *parts) groupValues() (p2p.Namespaces, error) {
	if !p.network.coordinates(&p.config) {
		return nil, nil
	}
	founders, err := foundersOf(p.network.name, p.config.Coordination)
	if err != nil {
		return nil, err
	}
	if err := founders.Validate(); err != nil {
		return nil, err
	}
	validator := announce.NewValidator(founders, p.now, func(err error) { p.metrics.Failed("coordination.Value", err) })
	return p2p.Namespaces{announce.DHTNamespace(founders.Name): validator}, nil
}

// startCoordination starts the plane if this peer takes part in a group.
func (p *parts) startCoordination(context.Context) error {
	c := p.config.Coordination
	if !p.network.coordinates(&p.config) {
		return nil
	}
	host := p.node.Host()
	founders, err := foundersOf(p.network.name, c)
	if err != nil {
		return err
	}
	if p.config.IsLeaf() && slices.Contains(founders.Founders, host.ID()) {
		return fault.Invalidf("coordination.founders", host.ID().String(), "names this peer, which is a leaf: a leaf is a client of the group")
	}
	made := &group{failed: make(chan error, 1)}
	instruments, err := metrics.NewCoordination(p.gatherer, made.figures)
	if err != nil {
		return err
	}
	made.plane, err = coordination.Open(coordination.Config{
		Host: host, Values: p.node.Routing(), Key: p.key, Name: p.config.PeerName(), Etcd: p.etcdElsewhere(),
		Network: founders, Policy: policyOf(&p.config, p.node), Voters: c.Voters, Replace: c.Replace, Limits: limitsOf(c.Limits),
		Access: p.groupAccess(),
		Dir:    filepath.Join(p.config.Data, coordinationDir), Marks: p.config.Data,
		Spans:     func(to peer.ID) calls.BeginSpan { return p.tracing.calls(to.String()) },
		LocksLost: p.memory.LocksLost,
		Fatal:     func(err error) { made.failed <- err }, Exhausted: p.fronts.places.ofGroup, Conditions: p.conditions, Metrics: instruments, Now: p.now, Logger: p.log.With("part", "group"),
	})
	if err != nil {
		return err
	}
	p.onClose(made.plane.Close)
	made.listener = made.plane.Member().Listen()
	p.onClose(made.listener.Close)
	p.coordination = made
	return nil
}

// etcdElsewhere returns the URL of the front for clients of etcd that other peers may name. One of loopback leads to the host of whoever
// reads it: in profile dev that is this one.
func (p *parts) etcdElsewhere() string {
	u, err := url.Parse(p.fronts.etcdURL)
	if err != nil || p.config.Profile != "dev" && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()) {
		return ""
	}
	return p.fronts.etcdURL
}

// groupAccess returns the peers that may use the group through this one.
func (p *parts) groupAccess() formation.Access {
	c := p.config.Coordination
	auth := p.config.Auth.On()
	a := formation.Access{Open: c.Open(p.config.Profile, auth), Allow: c.Allow}
	if c.ByKey(p.config.Profile, auth) {
		a.Proves = p.network.proofs.Check
	}
	a.Trusts = p.network.trusts(&p.config)
	return a
}

// settle is the wait of a first peer for neighbours that may found the group too.
const settle = 2 * time.Second

// policyOf returns a peer's part in founding and membership. A peer with a way into an existing network founds no
// group, unless it expects others to begin with.
func policyOf(c *config.Config, n *p2p.Node) formation.Policy {
	reaches := func(ctx context.Context, id peer.ID) error { return dial.Reaches(ctx, n.Host(), id) }
	expect := c.Coordination.Expect
	policy := formation.Policy{Client: c.IsLeaf(), Founds: n.Alone() || expect > 0, Expect: expect, Serves: n.Routing().Serving, Dial: reaches}
	switch c.Coordination.MemberPolicy(c.Profile) {
	case config.AutoMembers:
		policy.Members = formation.TrustedMembers
	case config.NoMembers:
		policy.Members = formation.NoMembers
	}
	if n.HasMulticast() {
		policy.Settle = settle
	}
	return policy
}

// startPeers serves other peers: the group's contract at this member, and the instances of this peer's agent.
func (p *parts) startPeers(context.Context) error {
	c := p.coordination
	if c == nil {
		return nil
	}
	serving := c.plane.Member()
	known := func(ctx context.Context) bool { return serving.Vouches(ctx) == nil }
	auth := newPeerAuth(serving.Admit, p.log.With("part", "audit"), p.now)
	b := newBounds(memoryLimit(), p.config.IsLeaf(), p.fronts.places.ofPeers, known)
	config := grpcapi.Config{
		Coordination: &grpcapi.Coordination{
			Service: serving, Admin: serving, Owner: auth.owner,
			Peers: true, Vouches: serving.Vouches, Authenticated: p.config.Auth.On(),
		},
		Credentials: transport.Credentials(), Logger: p.log.With("part", "peers"),
		Places:  grpcapi.Places{MaxWatches: maxFollowers, Refused: p.fronts.places.ofPeers, Known: known},
		Answers: b.answers, Requests: b.requests, AtOnce: b.calls,
	}
	if p.agent != nil {
		config.Agent = &grpcapi.Agent{Registrar: p.agent.Direct(), Catalog: p.agent}
		config.May = func(ctx context.Context, _ string) error { _, err := auth.owner(ctx); return err }
		config.Unary = []grpc.UnaryServerInterceptor{auth.agents}
	}
	p.tracing.peers(&config)
	c.server = grpcapi.New(config)
	return nil
}

// Restoration describes a group restored from a backup.
type Restoration = formation.Restoration

// Restore makes the peer of an unused data directory the only voter of the next incarnation of a backup's group, or only
// describes this with commit false. Errors: as coordination.Restore; NotFound without an identity, which it does not create.
func Restore(dataDir string, backup io.Reader, after uint64, commit bool) (r Restoration, err error) {
	const op = "daemon.Restore"
	key, err := existingIdentity(dataDir)
	if err != nil {
		return r, fault.Wrap(op, err)
	}
	r, err = formation.Restore(formation.RestoreConfig{
		RecoverConfig: formation.RecoverConfig{Key: key, Dir: filepath.Join(dataDir, coordinationDir)}, Commit: commit,
		Backup: backup, Marks: dataDir, After: after,
	})
	return r, fault.Wrap(op, err)
}

// limitsOf applies the configured limits.
func limitsOf(c config.GroupLimits) func(coord.Limits) coord.Limits {
	return func(l coord.Limits) coord.Limits {
		l.Leases, l.Keys, l.Bytes = set(c.Leases, l.Leases), set(c.Keys, l.Keys), set(c.Bytes, l.Bytes)
		l.Queue, l.Clients = set(c.Queue, l.Queue), set(c.Clients, l.Clients)
		l.HistoryEvents, l.HistoryBytes = set(c.HistoryEvents, l.HistoryEvents), set(c.HistoryBytes, l.HistoryBytes)
		q := &l.PerOwner
		q.Leases, q.Claims, q.Bytes = set(c.LeasesPerOwner, q.Leases), set(c.ClaimsPerOwner, q.Claims), set(c.BytesPerOwner, q.Bytes)
		q.UnleasedKeys, q.UnleasedBytes = set(c.UnleasedKeysPerOwner, q.UnleasedKeys), set(c.UnleasedBytesPerOwner, q.UnleasedBytes)
		q.Clients = set(c.ClientsPerOwner, q.Clients)
		l.Reserved = set(c.ReservedPercent, l.Reserved)
		return l
	}
}

// set returns a setting, or the present value for 0.
func set[T uint32 | uint64](setting int, present T) T {
	return cmp.Or(T(setting), present)
}

// foundersOf returns the eligible peers of the group: without settings, the first peer of the network.
func foundersOf(name network.Name, c config.Coordination) (bootstrap.Network, error) {
	n := bootstrap.Network{Name: name}
	for _, s := range c.Founders {
		id, err := peer.Decode(s)
		if err != nil {
			return n, fault.Invalidf("coordination.founders", s, "is no peer id: %w", err)
		}
		n.Founders = append(n.Founders, id)
	}
	return n, nil
}

// await waits for the plane's fatal error, or the end of the peer.
func (c *group) await(ctx context.Context) error {
	select {
	case err := <-c.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// figures returns the values of the gauges.
func (c *group) figures() metrics.GroupStats {
	if c.plane == nil {
		return metrics.GroupStats{}
	}
	return c.plane.Stats()
}

// tradeDir is the folder of grants in a data directory.
const tradeDir = "trade"

// startTrade starts the desk at which this peer sells and buys.
func (p *parts) startTrade(context.Context) (err error) {
	t := p.config.Trade
	p.trade, err = trade.Open(trade.Config{
		Network: p.network.name, Key: p.key, Host: p.node.QuickHost(), Dir: filepath.Join(p.config.Data, tradeDir),
		Own: p.discovery.Own, All: p.discovery.OwnAll, Group: p.ledgerGroup, Suspends: p.doubted,
		Hooks:  trade.Hooks{OnPay: t.OnPay, OnGrant: t.OnGrant, OnEnd: t.OnEnd, Limit: t.TimeLimit},
		Shared: p.config.Profile != string(p2p.Public) || p.network.private != nil, Logger: p.log.With("part", "trade"), Conditions: p.conditions,
		Tell: p.memory.Grant,
	})
	if err != nil {
		return err
	}
	p.onClose(p.trade.Close)
	return metrics.RegisterTrade(p.gatherer, func() metrics.Trade { return metrics.Trade(p.trade.Stats()) })
}

// ledgerGroup returns the group that keeps the ledger of this peer, and the name of its present life: nil for a peer that is a member of none.
func (p *parts) ledgerGroup() (coord.Service, string, error) {
	if p.coordination == nil {
		return nil, "", nil
	}
	plane := p.coordination.plane
	switch s := plane.Standing(); s.Phase {
	case "member":
		return plane, fmt.Sprintf("%s/%d", s.ID, s.Incarnation), nil
	case "founding", "joining", "stopped":
		return nil, "", fault.New("daemon.Group", fault.Unavailable, "this peer is %s: %s", s.Phase, s.Missing)
	}
	return nil, "", nil
}

// doubted says why this peer may grant nothing: a second machine with its identity could grant the same units.
func (p *parts) doubted() error {
	for _, c := range p.conditions.Active() {
		if c.Name == condition.IdentityInUse {
			return fault.New("daemon.Grant", fault.Unavailable, "%s", c.String())
		}
	}
	return nil
}
