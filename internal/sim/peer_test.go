package sim

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2pprotocol "github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keeper"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/discovery/truth"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/metrics/metricstest"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/records"
)

// What a simulated peer has less of than the daemon: hundreds share one memory.
const (
	verified       = 1024
	cachedAnswers  = 64
	servicesAtMost = 100
)

// place is the address and the identity of a peer.
type place struct {
	addr netip.Addr
	key  crypto.PrivKey
	id   peer.ID
	skew time.Duration // of its clock at the start
	disk vfs.FS        // of the registry

	refresh time.Duration // of its records, a quarter of their life; 0 is the registry's
}

func newPlace(addr netip.Addr, key crypto.PrivKey) place {
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		panic(err) // impossible: the key is Ed25519
	}
	return place{addr: addr, key: key, id: id, disk: vfs.NewMem()}
}

// keyOf makes the n-th key of a seed.
func keyOf(seed, n uint64) crypto.PrivKey {
	var s [ed25519.SeedSize]byte
	binary.BigEndian.PutUint64(s[:], seed)
	binary.BigEndian.PutUint64(s[8:], n)
	key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(s[:]))
	if err != nil {
		panic(err) // impossible: the key has the right length
	}
	return key
}

func (p place) info() peer.AddrInfo {
	return peer.AddrInfo{ID: p.id, Addrs: []multiaddr.Multiaddr{listenOn(p.addr)}}
}

// simPeer is one peer, wired as internal/daemon wires it, without front ends and disk.
type simPeer struct {
	place
	node      *p2p.Node
	index     *index.Index
	keeper    *keeper.Keeper
	discovery *engine.Service
	counts    *counts

	conditions *condition.Set
	identity   *engine.IdentityWatch
	errors     errorLog     // of identity
	skewed     atomic.Int64 // nanoseconds that the clock is fast now

	connections int // see p2p.Config

	shares  bool // see wire
	closed  bool // see wire
	service atomic.Pointer[engine.Service]

	dead bool
	undo []func() error
}

// startPeer starts a peer that joins by the peers of bootstrap.
func startPeer(w *wire, at place, bootstrap []peer.AddrInfo, connections int) (_ *simPeer, err error) {
	s := &simPeer{place: at, connections: connections, counts: newCounts(), shares: w.shares, closed: w.closed}
	s.skewed.Store(int64(at.skew))
	s.conditions = condition.NewSet(slog.New(slog.DiscardHandler), s.now)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	verifier, err := records.NewVerifier(networkName, verified)
	if err != nil {
		return nil, err
	}
	s.identity = &engine.IdentityWatch{Conditions: s.conditions, Logger: slog.New(&s.errors), Now: s.now}
	s.index = index.New(index.Config{MaxPerProvider: servicesAtMost, Seen: s.identity.Seen})
	live := gossip.Config{Network: networkName, Verifier: verifier, Known: s.index.Latest, Sink: s.take, Now: s.now, Received: s.counts.Received}
	if err := s.enter(w, bootstrap, live); err != nil {
		return nil, err
	}
	updates, err := gossip.New(live, s.node.PubSub())
	if err != nil {
		return nil, err
	}
	s.onClose(func() error { updates.Close(); return nil })
	s.keeper, err = keeper.New(protocol.Config{
		Network: networkName, Host: s.node.QuickHost(), Router: s.node.Routing(), Index: s.index, Verifier: verifier, Now: s.now,
		Signals: protocol.Signals{Conditions: s.conditions, Metrics: s.counts.Discovery}, Heard: s.heard, Asked: s.asked, Limits: protocol.Limits{Cell: 1000},
	})
	if err != nil {
		return nil, err
	}
	s.onClose(s.keeper.Close)
	return s, s.offer(updates)
}

// enter starts the peer's part in the network.
func (s *simPeer) enter(w *wire, bootstrap []peer.AddrInfo, live gossip.Config) (err error) {
	s.node, err = p2p.New(context.Background(), p2p.Config{
		Profile: p2p.LAN, Network: networkName, Identity: s.key, Bootstrap: bootstrap,
		Listen: []multiaddr.Multiaddr{listenOn(s.addr)}, Transport: w.transport(s.addr),
		Datastore: dssync.MutexWrap(ds.NewMapDatastore()),
		Providers: func(multihash []byte) []peer.ID { return s.index.Sellers(multihash, 64, s.now(), rand.IntN) },
		PubSub:    gossip.Options(live), Protocols: []libp2pprotocol.ID{protocol.Protocol(networkName)}, Limits: p2p.Limits{Connections: s.connections},
	})
	if err == nil {
		s.onClose(s.node.Close)
	}
	return err
}

// offer starts what the peer does for its own user.
func (s *simPeer) offer(updates *gossip.Gossip) error {
	random := rand.New(rand.NewPCG(binary.BigEndian.Uint64([]byte(s.id[len(s.id)-8:])), 0))
	own, err := offers.Open(offers.Config{
		Network: networkName,
		Dir:     "registry", FS: s.disk, Key: s.key, Refresh: s.refresh, TTL: 4 * s.refresh, MaxServices: servicesAtMost, Jitter: random.Float64,
	}, s.now())
	if err != nil {
		return err
	}
	s.onClose(own.Close)
	s.identity.Attach(own, s.index)
	parts, settings := engine.Parts{
		Registry: own, Index: s.index, Keepers: s.keeper, Updates: updates, Peers: s.node.Prober(),
		Metrics: s.counts.Discovery, Now: s.now, Random: rand.Uint64,
	}, engine.Settings{CacheSize: cachedAnswers, Defaults: queries.Defaults{Limit: 100}}
	if s.shares {
		parts.Speaks = nobody{}
		settings.Witnesses = &truth.Sharing{
			Network: networkName, Key: s.key, Self: s.id, Records: s.index.All,
			Witness: s.keeper.Witness, Tell: s.keeper.Tell, Hand: s.keeper.Hand, OwnWitnesses: s.keeper.OwnWitnesses, Knowers: s.keeper.Knowers, Closed: s.closed,
		}
	}
	s.discovery, err = engine.NewService(parts, settings)
	if err == nil {
		s.onClose(s.discovery.Close)
		s.service.Store(s.discovery)
	}
	return err
}

// nobody speaks to endpoints.
type nobody struct{}

func (nobody) Probe(context.Context, probe.Target) (probe.Outcome, bool) {
	return probe.Outcome{}, false
}

func (s *simPeer) heard(st protocol.Statement, from netip.Prefix) {
	if d := s.service.Load(); d != nil {
		d.Heard(st, from)
	}
}

func (s *simPeer) asked(n records.Name, by peer.ID) {
	if d := s.service.Load(); d != nil {
		d.Asked(n, by)
	}
}

// take receives a live update; a stale one is no news.
func (s *simPeer) take(r *records.Record) { _, _ = s.index.Put(r, s.now()) }

// now returns the time of the peer's clock.
func (s *simPeer) now() time.Time { return time.Now().Add(time.Duration(s.skewed.Load())) }

func (s *simPeer) onClose(f func() error) { s.undo = append(s.undo, f) }

// close stops the parts in reverse.
func (s *simPeer) close() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// counts are the metrics of a peer, which a test reads.
type counts struct {
	*metrics.Discovery
	registry *prometheus.Registry
}

func newCounts() *counts {
	registry := prometheus.NewRegistry()
	made, err := metrics.NewDiscovery(registry)
	if err != nil {
		panic(err) // impossible: the registry is new
	}
	return &counts{Discovery: made, registry: registry}
}

// distrusted is the begin of the series that count answers of dishonest peers.
const distrusted = "refused_total{answer_"

// seen returns the counts that are not zero.
func (c *counts) seen(t assert.TestingT) map[string]int64 {
	seen := make(map[string]int64)
	for series, n := range metricstest.Values(t, c.registry) {
		if n > 0 {
			seen[strings.TrimPrefix(series, "blackhole_discovery_")] = int64(n)
		}
	}
	return seen
}

// errorLog counts errors. It is safe for concurrent use.
type errorLog struct{ n atomic.Int64 }

func (e *errorLog) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }
func (e *errorLog) Handle(context.Context, slog.Record) error    { e.n.Add(1); return nil }
func (e *errorLog) WithAttrs([]slog.Attr) slog.Handler           { return e }
func (e *errorLog) WithGroup(string) slog.Handler                { return e }
