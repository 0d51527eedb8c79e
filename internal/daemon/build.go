package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blackhole/blackhole/internal/agent"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/daemon/recent"
	"github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/frontend/consulapi"
	"github.com/blackhole/blackhole/internal/frontend/dnsapi"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/frontend/mcpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	multiaddrs "github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/p2p/proof"
	"github.com/blackhole/blackhole/internal/platform/p2p/reach"
	"github.com/blackhole/blackhole/internal/platform/trace"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/internal/trade"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// parts are the components of one peer, in order of their start.
type parts struct {
	config   config.Config
	version  string
	started  time.Time
	now      func() time.Time // clock of all parts
	log      *slog.Logger
	journal  *journal // the output of log
	gatherer *prometheus.Registry
	metrics  *metrics.Discovery
	// conditions limit this peer now. All parts share the set.
	conditions *condition.Set
	memory     *recent.Memory // of the last hour
	tracing    tracing

	key         crypto.PrivKey
	identityNew bool // this start made the key
	network     membership
	datastore   *p2p.Values
	node        *p2p.Node
	plane       *discovery.Plane
	discovery   *discovery.Service
	// coordination is nil for a peer without it.
	coordination *group

	trade  *trade.Desk
	agent  *agent.Service // nil: switched off
	fronts fronts

	undo []func() error // stops the started parts, in order of their start
}

// fronts are the front ends and their authentication.
type fronts struct {
	auth     authSetup
	places   *places // of callers, and of peers
	reloader reloader
	http     *httpapi.Server
	grpc     *grpcapi.Server
	dns      *dnsapi.Server    // nil: off
	etcd     *etcdapi.Server   // nil: off
	etcdURL  string            // of etcd, for its clients
	consul   *consulapi.Server // nil: off
	requests httpapi.Requests  // counts requests; may be nil
}

// build starts the parts in order. After an error it stops the started ones.
func build(ctx context.Context, c config.Config, l listeners, log *slog.Logger, j *journal, version string) (_ *parts, err error) {
	p := &parts{config: c, version: version, started: time.Now(), now: newClock(c.Data), log: log, journal: j}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	steps := []func(context.Context) error{
		p.startAuth, func(context.Context) error { p.fronts.etcdURL = p.urlOf(l.etcd); return nil }, p.startMetrics, p.startStorage, p.startKeys, p.startDiscovery,
		p.startProofs, p.startCoordination, p.startEvaluator, p.startTrade, p.startAgent, p.startPeers, p.startFrontEnds, p.startDNS,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// close stops the parts in reverse order. The front ends have stopped before. Discovery, which uses all others,
// stops first, then the network. The stores close last: the DHT writes to its store until its end.
func (p *parts) close() error {
	var errs []error
	for i := len(p.undo) - 1; i >= 0; i-- {
		errs = append(errs, p.undo[i]())
	}
	p.undo = nil
	return errors.Join(errs...)
}

func (p *parts) onClose(f func() error) { p.undo = append(p.undo, f) }

func (p *parts) startMetrics(context.Context) (err error) {
	p.gatherer = prometheus.NewRegistry()
	p.gatherer.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if p.metrics, err = metrics.NewDiscovery(p.gatherer); err != nil {
		return err
	}
	if err := measure(p.gatherer, p.version, p.config.Data, p.journal.lost.Load); err != nil {
		return err
	}
	p.conditions, p.memory = condition.NewSet(p.log, time.Now), recent.New(time.Now)
	p.fronts.places = newPlaces(p.metrics, p.conditions, p.memory, p.log)
	p.onClose(p.fronts.places.close)
	return metrics.RegisterConditions(p.gatherer, condition.Names(), p.conditions.ActiveNames)
}

// startStorage opens the identity, under which this peer makes traces, and the values of the DHT.
func (p *parts) startStorage(ctx context.Context) (err error) {
	key, err := ownIdentity(p.config.Data)
	if p.identityNew = key == nil; err != nil {
		return err
	}
	id, err := Identity(p.config.Data)
	if err != nil {
		return err
	}
	if p.identityNew {
		p.log.Info("this peer has a new identity, because its data directory had none: if it ran before, its data is lost or elsewhere", "peer_id", id, "data", p.config.Data)
	}
	p.tracing = newTracing(ctx, trace.Program{Name: "blackholed", Version: p.version, Instance: id}, p.log)
	p.onClose(func() error { p.tracing.stop(p.log); return nil })
	if p.key, err = p2p.LoadIdentity(filepath.Join(p.config.Data, identityFile)); err != nil {
		return err
	}
	if p.datastore, err = p2p.OpenValues(filepath.Join(p.config.Data, valuesFile), p.log.With("part", "p2p")); err != nil {
		return err
	}
	p.onClose(p.datastore.Close)
	return nil
}

// startDiscovery starts the node and the discovery plane on it.
func (p *parts) startDiscovery(ctx context.Context) (err error) {
	profile, err := p2p.ParseProfile(p.config.Profile)
	if err != nil {
		return err
	}
	d := p.config.Discovery
	p.plane, err = discovery.New(discovery.Config{
		Network: p.network.name, Dir: filepath.Join(p.config.Data, registryDir), Key: p.key,
		MaxServices: d.Limits.ServicesPerProvider, IndexBytes: p.indexBytes(),
		TTL: d.RecordTTL, Refresh: d.RefreshInterval, Precision: d.Geo.Precision, PublishPrecision: d.Geo.PublishPrecision,
		Settings: discovery.Settings{
			Defaults:  queries.Defaults{Limit: d.Query.MaxResults, RadiusKM: d.Query.DefaultRadiusKM, Claims: query.Claims(d.Query.Claims)},
			CacheSize: d.Cache.Size, CacheTTL: d.Cache.TTL, Caller: access.Client, Instances: p.config.Agent.Enabled,
			Every: d.Health.CheckInterval, Confirm: d.Health.ConfirmAfter, Timeout: d.Health.CheckTimeout,
			Dial: func(ctx context.Context, provider peer.ID, offer string) (net.Conn, error) {
				return trade.Check(ctx, p.node.QuickHost(), p.network.name, provider, offer) // the plane starts with the node
			},
		},
		Loopback: profile != p2p.Public, OneMachine: profile == p2p.Dev, Closed: profile != p2p.Public || p.network.private != nil, Logger: p.log, Conditions: p.conditions, Tracer: p.tracing.Tracer, Now: p.now,
		Metrics: p.metrics, Resolver: newResolver(p.config.Data),
	})
	if err != nil {
		return fault.In("discovery", err)
	}
	if err := p.startNode(ctx, profile); err != nil {
		return err
	}
	p.onClose(p.plane.Close)
	if p.discovery, err = p.plane.Start(p.node); err != nil {
		return err
	}
	if err := metrics.RegisterClockOffset(p.gatherer, p.plane.ClockOffset); err != nil {
		return err
	}
	if err := metrics.RegisterIndex(p.gatherer, p.plane.IndexBytes); err != nil {
		return err
	}
	return metrics.RegisterHealthGauges(p.gatherer, p.plane.Usable)
}

// startNode starts the libp2p node with the needs of both planes.
func (p *parts) startNode(ctx context.Context, profile p2p.Profile) error {
	listen, err := multiaddrs.Parse("listen", p.config.Listen)
	if err != nil {
		return err
	}
	bootstrap, doors, err := multiaddrs.ParseWays("bootstrap", p.config.Bootstrap)
	if err != nil {
		return err
	}
	way, err := reachConfig(p.config)
	if err != nil {
		return err
	}
	groups, err := p.groupValues()
	if err != nil {
		return err
	}
	p.node, err = p2p.New(ctx, p.plane.Network(p2p.Config{
		Profile: profile, Network: p.network.name, PrivateKey: p.network.private, Identity: p.key, Listen: listen, Bootstrap: bootstrap, Doors: doors,
		Datastore: p.datastore, Namespaces: groups, Protocols: append(p2p.Config{}.Protocols, transport.AskProtocol(p.network.name), transport.CallProtocol(p.network.name), proof.Protocol(p.network.name), trade.Protocol(p.network.name), trade.AccessProtocol(p.network.name)),
		Probe:     probe.Config{Timeout: p.config.Discovery.Health.CheckTimeout, OnCheck: p.metrics.Checked},
		UserAgent: "blackholed/" + p.version, Logger: p.log.With("part", "p2p"), Registerer: p.gatherer,
		Conditions: p.conditions, Reach: way, Leaf: p.config.IsLeaf(),
		Limits: p2p.Limits{
			Connections: p.config.Connections.Most, PerAddress: p.config.Connections.PerAddress,
			OnRefusal: func(why p2p.Refusal) { p.metrics.ConnectionRefused(string(why)) },
		},
	}))
	if err != nil {
		return err
	}
	p.onClose(p.node.Close)
	return metrics.RegisterReach(p.gatherer, reach.States(), func() metrics.Reach {
		r := p.reach()
		return metrics.Reach{State: r.State, Direct: r.Direct, Relayed: r.Relayed, Punched: r.Punched, Unpunched: r.Unpunched, Remembered: p.node.Remembered()}
	})
}

// reachConfig translates the settings of NAT traversal.
func reachConfig(c config.Config) (reach.Config, error) {
	announce, err := multiaddrs.Parse("announce", c.Announce)
	if err != nil {
		return reach.Config{}, err
	}
	r := c.Connections.Relay
	return reach.Config{
		Announce: announce, Mode: reach.Mode(c.Connections.Reach),
		Relay: reach.RelayConfig{
			Off: !r.Enabled, Reservations: r.Reservations, ReservationsPerAddress: r.ReservationsPerAddress,
			Circuits: r.Circuits, CircuitsPerPeer: r.CircuitsPerPeer,
			CircuitBytes: int64(r.CircuitBytes), CircuitTime: r.CircuitTime,
		},
	}, nil
}

func (p *parts) startFrontEnds(context.Context) error {
	var locks *grpcapi.Coordination
	if c := p.coordination; c != nil {
		gate := authority.New(authority.Config{
			Service: c.plane, Peer: p.node.Host().ID().String(), Open: p.fronts.auth.guard == nil, Reserved: []string{p.config.Etcd.Prefix, p.config.Consul.Prefix},
			Now: p.now, Logger: p.log.With("part", "audit"),
		})
		locks = &grpcapi.Coordination{Service: gate, Admin: gate.Admin(c.plane), Owner: gate.Owner}
	}
	b := newBounds(memoryLimit(), p.config.IsLeaf(), p.fronts.places.refused, nil)
	web := httpapi.Config{
		Registrar: p.discovery, Finder: p.discovery, Node: p, Logger: p.log.With("part", "http"),
		Metrics: promhttp.HandlerFor(p.gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: 2}),
		Hosts:   p.config.Hosts, Requests: p.fronts.requests, SetLogLevel: operatorCalls{p}.SetLogLevel,
		Refused: p.fronts.places.refused, Answers: b.answers, Bodies: b.requests, History: p.memory.Since, Trade: p.trade,
		Fronts: httpapi.Fronts{GRPC: p.config.GRPC, DNS: p.config.DNS},
	}
	if len(p.config.DNSDomain) > 0 {
		web.Fronts.Zone = p.config.DNSDomain[0]
	}
	rpc := grpcapi.Config{
		Coordination: locks, Trade: p.trade, Registrar: p.discovery, Finder: p.discovery, Node: p, Operator: operatorCalls{p}, Logger: p.log.With("part", "grpc"),
		Places: grpcapi.Places{Refused: p.fronts.places.refused}, Answers: b.answers, Requests: b.requests, AtOnce: b.calls,
	}
	if p.agent != nil {
		web.Agent = &httpapi.Agent{Registrar: p.agent, Catalog: p.agent, Census: p.agent.Count, Storage: p.agent.Storage, LastChecks: p.agent.LastChecks, Removed: p.agent.Removed, Problems: p.agent.Problems}
		rpc.Agent = &grpcapi.Agent{Registrar: p.agent, Catalog: p.agent, Removed: p.agent.Removed}
	}
	p.fronts.auth.http(&web)
	p.fronts.auth.grpc(&rpc)
	p.tracing.fronts(&web, &rpc)
	calls, err := metrics.NewCalls(p.gatherer)
	if err != nil {
		return err
	}
	countCalls(calls, &rpc.Unary, &rpc.Stream)
	rpc.Web.Events = func(ctx context.Context, r *api.FollowRequest, send func(*api.FollowResponse) error) error {
		return p.fronts.http.Follow(ctx, r, send) // made below: the HTTP front end needs the calls of this one
	}
	p.fronts.grpc = grpcapi.New(rpc)
	if locks != nil {
		web.Coordination = &httpapi.Coordination{Calls: p.fronts.grpc.Calls(), Reader: locks.Service}
	}
	web.Others = mcpapi.New(mcpapi.Config{
		API:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.fronts.http.Handler().ServeHTTP(w, r) }), // made below
		Version: p.version, Referrals: p.config.ARD.Referrals, Answers: b.answers, Bodies: b.requests,
	}).Routes()
	if err := p.startConsul(&web); err != nil {
		return err
	}
	p.fronts.http = httpapi.New(web)
	return p.startEtcd(calls, b)
}

// startConsul adds the front end for clients of Consul to that of HTTP.
func (p *parts) startConsul(web *httpapi.Config) (err error) {
	c := p.coordination
	switch {
	case !p.config.Consul.Enabled:
		return nil
	case c == nil:
		return fault.Invalidf("consul.enabled", true, "needs the coordination plane, which is off: set coordination.enabled")
	}
	self := p.node.Host().ID().String()
	gate := authority.New(authority.Config{
		Service: c.plane, Peer: self, Front: consulapi.Front, Open: p.fronts.auth.guard == nil, Now: p.now, Logger: p.log.With("part", "audit"),
	})
	consul := consulapi.Config{
		Service: gate, Owner: gate.Owner, Plane: c.plane, Group: c.plane.Group, Peer: self, Prefix: p.config.Consul.Prefix,
		Led:    func() bool { return c.plane.Standing().Leader != "" },
		Logger: p.log.With("part", "consul"), Refused: web.Refused, Answers: web.Answers, Bodies: web.Bodies, Failed: p.frontFailed,
		Metrics: web.Metrics,
	}
	if p.agent != nil {
		consul.Agent = &consulapi.Agent{
			Registrar: p.agent, Catalog: p.agent, Limit: p.fronts.auth.limit, May: p.fronts.auth.may, Address: outward(p.node.Addrs()), Checks: p.startConsulChecks(),
		}
	}
	if p.fronts.consul, err = consulapi.New(consul); err == nil {
		web.Others = append(web.Others, p.fronts.consul.Routes()...)
	}
	return err
}

// outward returns the first IP address of a peer that other machines may reach, otherwise that of loopback.
func outward(addrs []string) string {
	for _, a := range addrs {
		if parts := strings.Split(a, "/"); len(parts) > 2 && strings.HasPrefix(parts[1], "ip") && !strings.Contains(a, "/p2p-circuit") {
			if ip, err := netip.ParseAddr(parts[2]); err == nil && ip.IsGlobalUnicast() {
				return ip.String()
			}
		}
	}
	return "127.0.0.1"
}

// startEtcd makes the front end for clients of etcd.
func (p *parts) startEtcd(calls *metrics.Calls, b bounds) (err error) {
	c := p.coordination
	switch {
	case p.config.Etcd.Listen == config.Off:
		return nil
	case c == nil:
		return fault.Invalidf("etcd.listen", p.config.Etcd.Listen, "needs the coordination plane, which is off: set coordination.enabled")
	}
	self := p.node.Host().ID().String()
	etcd := etcdapi.Config{
		Service: authority.New(authority.Config{
			Service: c.plane, Peer: self, Front: etcdapi.Front, Open: p.fronts.auth.guard == nil, Now: p.now, Logger: p.log.With("part", "audit"),
		}),
		Group: c.plane.Group, Leading: c.plane.Leading, NoLeader: 3 * c.plane.ElectionTimeout(),
		DiskBytes: func() int64 { return bytesIn(filepath.Join(p.config.Data, coordinationDir)) },
		KeyBytes:  int64(p.config.Coordination.Limits.Bytes),
		Peer:      self, Prefix: p.config.Etcd.Prefix, Logger: p.log.With("part", "etcd"),
		Refused: p.fronts.places.refused, Answers: b.answers, Requests: b.requests, AtOnce: b.calls,
	}
	p.fronts.auth.etcd(&etcd)
	countCalls(calls, &etcd.Unary, &etcd.Stream)
	p.fronts.etcd, err = etcdapi.New(etcd)
	return err
}
