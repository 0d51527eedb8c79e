package coordination

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/coordination/upkeep"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// Bounds of the work under way.
const (
	closing    = 3 * time.Second // to hand over the leadership
	cleaningUp = 5 * time.Second // to give back the claim of a caller that is gone
)

// Config configures a Seat.
type Config struct {
	Host    host.Host       // finds peers by their ids
	PubSub  *pubsub.PubSub  // for announcements of the leader; nil: none
	Values  announce.Values // DHT for announcements; nil: none
	Self    Identity
	Network bootstrap.Network
	Voters  int           // at the bootstrap and later: 1, 3 or 5
	Replace time.Duration // silence after which a voter is replaced
	Access  Access        // of other peers to this member

	// Limits returns the wanted limits of the group from its present ones. This peer proposes them as leader.
	// nil keeps the limits.
	Limits func(coord.Limits) coord.Limits
	Policy Policy

	// Dir holds the durable state; Marks is the directory of the identity key. See bootstrap.DataDir.
	Dir, Marks string
	FS         vfs.FS // nil: the operating system's

	Spans func(to peer.ID) calls.BeginSpan         // begins the spans of calls to another peer; nil, also of a peer: none
	dial  func(to peer.ID) (routing.Remote, error) // for tests; nil: over the host
	// Fatal receives, once, an error after which this peer must end. The failure of the member alone does not: see
	// condition member_stopped.
	Fatal func(error)

	Conditions *condition.Set // receives no_quorum, feature_level, member_stopped, states_differ and space_low; nil: nobody

	Now      func() time.Time // nil means time.Now
	Replica  replica.Config   // Storage and Applied are set by Open
	Recorder Recorder         // nil counts nothing
	Logger   *slog.Logger     // nil logs nothing
}

// Plane is this peer's part in one group; see Seat. It implements coord.Admin, and routing coord.Service. It
// is safe for concurrent use.
type Plane struct {
	config    Config
	self      peer.ID
	name      string // self as an owner
	store     *bootstrap.Store
	disk      *raftlog.Storage // nil: this peer is not eligible
	founder   *bootstrap.Founder
	ask       *transport.Exchange
	announcer *announce.Announcer // nil without PubSub
	dhtStore  *announce.DHTStore  // nil without Values, or with a single founder, the only possible leader

	view    *groupView
	routing *routing.Router
	inquiry *inquiry
	roster  *roster
	levels  *levels

	here     atomic.Pointer[local] // this peer's member; nil without one
	outlived atomic.Bool           // this peer was a member of an older incarnation
	departed atomic.Bool           // this peer goes over to another group
	life     *goroutines           // ends at the start of Close
	failed   *failure
	down     sync.Once
}

// openPlane starts this peer's part in the group of its data directory. See Open.
func openPlane(c Config) (*Plane, error) {
	p := newPlane(c)
	if err := p.open(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	comparer := p.comparer()
	for _, work := range []func(){
		p.enter, p.routing.Run, p.inquiry.search, p.reconcile, p.readDHT, p.tell,
		func() { p.inquiry.merger.Run(p.life) }, func() { comparer.Run(p.life) },
		func() { upkeep.WatchSpace(p.life, func() *member.Member { m, _ := p.mine(); return m }, c.Conditions) },
	} {
		p.life.start(work)
	}
	return p, nil
}

func newPlane(c Config) *Plane {
	p := &Plane{config: c, self: c.Host.ID(), name: c.Host.ID().String(), life: newGoroutines(), failed: &failure{config: c}}
	p.inquiry = &inquiry{plane: p, open: map[peer.ID]bool{}, merger: formation.NewMerger(p.merging())}
	p.levels = newLevels(p)
	p.view = &groupView{network: c.Network, logger: c.Logger, belongs: p.isMember, leaderless: func() time.Duration { return p.routing.Leaderless() }}
	p.roster = &roster{
		config: &p.config, self: p.self, view: p.view, candidates: candidates{seen: map[peer.ID]candidate{}},
		founded: func() (bootstrap.Membership, bool) { return p.founder.Group() },
	}
	p.routing = routing.New(p.route())
	if c.Values != nil && (c.Network.Mode == bootstrap.Unlisted || len(c.Network.Founders) > 1) {
		p.dhtStore = announce.NewDHTStore(c.Values, c.Network, c.Self.Key, c.Now)
	}
	return p
}

// route gives package routing what it needs of this peer.
func (p *Plane) route() routing.Config {
	return routing.Config{
		Self: p.self, Life: p.life, Start: p.life.start, Jitter: newRand().Float64,
		Member: func() routing.Member {
			if l := p.here.Load(); l != nil {
				return l
			}
			return nil
		},
		Peers: p.inquiry.peers,
		Ask:   func(ctx context.Context, to peer.ID) (leader.Leadership, bool) { return p.inquiry.ask(ctx, to, 0) },
		Dial:  p.dial,
		Group: p.ID, Missing: p.missing,
		Refused: func(err error) bool {
			var n *replica.NotLeader
			return errors.As(err, &n) && !n.Maybe
		},
		Left: func() (departed bool, floor int64) {
			_, floor = p.founder.Left()
			return p.departed.Load(), floor
		},
	}
}

// isMember reports whether a peer is a member according to this peer's log, and whether this peer has a log.
func (p *Plane) isMember(id peer.ID) (in, known bool) {
	l := p.here.Load()
	if l == nil {
		return false, false
	}
	name := id.String()
	return slices.ContainsFunc(l.member.Status().Members, func(m replica.MemberStatus) bool { return m.Peer == name }), true
}

// knows reports whether a peer is a member of the group, or may become one by this peer's settings.
func (p *Plane) knows(id peer.ID) bool {
	in, _ := p.isMember(id)
	return in || p.roster.lists(id) || p.view.names(id)
}

// open opens the disk and the exchange with other peers.
func (p *Plane) open() (err error) {
	c := p.config
	place := bootstrap.DataDir{Dir: filepath.Join(c.Dir, "bootstrap"), Marks: c.Marks}
	if p.store, err = bootstrap.OpenStore(c.FS, place, p.self, c.Network); err != nil {
		return err
	}
	if err := p.dropLeft(); err != nil {
		return err
	}
	founding := bootstrap.Options{Network: c.Network, Self: p.self, Store: p.store, Settle: c.Policy.Settle, Logger: c.Logger}
	if p.roster.joins() {
		p.disk, err = raftlog.Open(raftlog.Options{FS: c.FS, Dir: filepath.Join(c.Dir, "raft"), Logger: c.Logger, Synced: c.synced()})
		switch {
		case err == nil && (c.Network.Mode == bootstrap.Listed || c.Policy.Founds):
			founding.Disk = p.disk
		case err == nil: // a member to be, which founds nothing
		case fault.KindOf(err) == fault.Unsupported:
			return err
		default:
			p.failed.stop(err)
		}
	}
	if p.ask, err = transport.NewExchange(transport.ExchangeConfig{Host: c.Host, Network: c.Network.Name, Recorder: c.Recorder, Logger: c.Logger, Known: p.knows}); err != nil {
		return err
	}
	p.founder, err = bootstrap.New(founding)
	if err != nil {
		return err
	}
	p.roster.compare()
	p.ask.Handle(transport.Information, p.inquiry.answer)
	p.ask.Handle(transport.State, p.comparer().Answer)
	if c.PubSub != nil {
		p.announcer, err = announce.New(announce.Config{
			PubSub: c.PubSub, Network: c.Network, Key: c.Self.Key, Received: p.inquiry.announced, Now: c.Now, Logger: c.Logger,
		})
	}
	return err
}

// dropLeft removes the state of a former group, after this peer went over to the present one.
func (p *Plane) dropLeft() error {
	state, c := p.store.State(), p.config
	if !state.Drop {
		return nil
	}
	if err := errors.Join(c.FS.RemoveAll(filepath.Join(c.Dir, raftDir)), store.SyncDir(c.FS, c.Dir)); err != nil {
		return fault.As("", fault.Internal, err)
	}
	state.Drop = false
	return p.store.Save(state)
}

// readDHT reads the DHT store after some time without a known leader.
func (p *Plane) readDHT() {
	if p.dhtStore == nil {
		return
	}
	reader := announce.Reader{
		Known: func() bool { return p.ID() != "" }, Led: func() bool { _, leader, _ := p.routing.Leading(); return leader != "" },
		Received: p.inquiry.published, Jitter: newRand(), Logger: p.config.Logger,
	}
	reader.Run(p.life, p.dhtStore)
}

// mine returns this peer's member, and the id of its group between members; nil without a member.
func (p *Plane) mine() (m *member.Member, group [32]byte) {
	if l := p.here.Load(); l != nil {
		return l.member, l.incarnation.protocolID()
	}
	return nil, group
}

// comparer gives package upkeep what it needs of this peer.
func (p *Plane) comparer() *upkeep.Comparer {
	return &upkeep.Comparer{
		Self: p.name, Here: p.mine, IsMember: func(id peer.ID) bool { in, _ := p.isMember(id); return in },
		Ask: func(ctx context.Context, to peer.ID, question []byte) ([]byte, error) {
			return p.ask.Ask(ctx, to, transport.State, question)
		},
		Stop: p.failed.stop, Dir: func() string { return p.disk.Dir() }, Compared: p.config.compared,
		Conditions: p.config.Conditions, Logger: p.config.Logger,
	}
}

// merging gives package formation what it needs of this peer.
func (p *Plane) merging() formation.Config {
	return formation.Config{
		Self: p.self, Network: p.config.Network, Group: func() (bootstrap.Membership, bool) { return p.founder.Group() },
		Member: func() formation.Member {
			if l := p.here.Load(); l != nil {
				return ending{l}
			}
			return nil
		},
		Ask: func(ctx context.Context, at peer.ID) (*groupv1.InfoResponse, error) {
			return p.inquiry.trusted(ctx, at)
		},
		Connected:  func() []peer.ID { return p.ask.ConnectedPeers() },
		Leaderless: func() time.Duration { return p.routing.Leaderless() },
		Keeps:      func() bool { return p.outlived.Load() || p.failed.because() != "" },
		Survives:   func() string { return p.inquiry.tolerance().String() },
		Calls:      func(id string) string { return p.inquiry.calls(id) },
		Conditions: p.config.Conditions, Logger: p.config.Logger,
	}
}

// Close hands over the leadership, stops, and waits for all goroutines. The peer stays a member of the group.
func (p *Plane) Close() error {
	var errs []error
	p.down.Do(func() {
		if l := p.here.Load(); l != nil {
			ctx, cancel := context.WithTimeout(context.Background(), closing)
			errs = append(errs, l.close(ctx))
			cancel()
		}
		p.life.end()
		if p.announcer != nil {
			errs = append(errs, p.announcer.Close())
		}
		if p.ask != nil {
			errs = append(errs, p.ask.Close())
		}
		p.life.work.Wait()
		if l := p.here.Load(); l != nil { // the peer may have joined meanwhile
			errs = append(errs, l.close(p.life))
		}
		errs = append(errs, p.routing.Close())
		if p.disk != nil {
			errs = append(errs, p.disk.Close())
		}
		if p.store != nil {
			errs = append(errs, p.store.Close())
		}
	})
	return fault.Wrap("group.Close", errors.Join(errs...))
}
