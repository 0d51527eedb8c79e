package coordination

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/internal/coordination/upkeep"
	"github.com/blackhole/blackhole/internal/coordination/view"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	workInterval    = 250 * time.Millisecond // between two checks of the group
	asking          = 10 * time.Second       // between two rounds of questions to members
	closing         = 3 * time.Second        // to hand over the leadership
	leaderlessGrace = 5 * time.Second        // without a leader until the condition no_quorum: an election is shorter
)

// plane is this peer's part in one group; see Seat. It makes the parts and connects them: no part knows it.
type plane struct {
	config   Config
	self     peer.ID
	store    *bootstrap.Store
	disk     *raftlog.Storage // nil: this peer is not eligible
	founder  *bootstrap.Founder
	exchange *transport.Exchange
	dhtStore *announce.DHTStore // nil without Values, or with a single founder, the only possible leader

	view    *view.View
	search  *formation.Search
	roster  *formation.Roster
	merger  *formation.Merger
	routing *routing.Router

	mu   sync.Mutex
	open map[peer.ID]bool // peers that askSoon asks

	here     atomic.Pointer[local] // this peer's member; nil without one
	removed  atomic.Bool           // the leader says that an operator keeps this peer out
	outlived atomic.Bool           // this peer was a member of an older incarnation
	departed atomic.Bool           // this peer goes over to another group
	life     *goroutines           // ends at the start of Close
	failed   *failure
	down     sync.Once
}

// openPlane starts this peer's part in the group of its data directory. See Open. leave receives the order to go over to another
// group, once; full hears, once, that the plane is to be opened again when its full disk has room.
func openPlane(c Config, leave func(*plane, formation.Departure), full func(*plane)) (*plane, error) {
	p := newPlane(c)
	p.failed.full = func() { full(p) }
	if err := p.start(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	for _, work := range []func(){
		func() { p.failed.fatal(p.search.Run(p.life)) },
		func() {
			if d := p.merger.Run(p.life); d != nil {
				leave(p, *d)
			}
		},
		p.enter, p.routing.Run, p.work, p.readDHT, p.tell,
	} {
		p.life.start(work)
	}
	return p, nil
}

func newPlane(c Config) *plane {
	p := &plane{config: c, self: c.Host.ID(), open: map[peer.ID]bool{}, life: newGoroutines(), failed: &failure{config: c}}
	group := func() (bootstrap.Membership, bool) { return p.founder.Group() }
	leaderless := func() time.Duration { return p.routing.Leaderless() }
	connected := func() []peer.ID { return p.exchange.ConnectedPeers() }
	p.view = view.New(view.Config{
		Network: c.Network, Self: p.self, Name: c.Name, Etcd: c.Etcd, Levels: c.Replica.Levels(), Logger: c.Logger, IsMember: p.isMember, Leaderless: leaderless,
		Ask: func(ctx context.Context, to peer.ID, question []byte) ([]byte, error) {
			return p.exchange.Ask(ctx, to, transport.Information, question)
		},
	})
	p.roster = &formation.Roster{Network: c.Network, Policy: c.Policy, Access: c.Access, Self: p.self, Has: p.view.Has, Group: group}
	p.merger = formation.NewMerger(formation.Config{
		Self: p.self, Network: c.Network, Group: group, Ask: p.askTrusted, Connected: connected, Leaderless: leaderless,
		Member: func() *formation.Member {
			if l := p.here.Load(); l != nil {
				return l.group
			}
			return nil
		},
		Keeps: func() bool { return p.outlived.Load() || p.failed.because() != "" },
		Alone: func() bool {
			l := p.here.Load()
			return l != nil && len(l.member.Status().Members) == 1
		},
		Called: p.view.Called, Conditions: c.Conditions, Logger: c.Logger,
	})
	p.routing = routing.New(routing.Config{
		Self: p.self, Life: p.life, Start: p.life.start, Jitter: rand.Float64,
		Member: func() routing.Member {
			if l := p.here.Load(); l != nil {
				return l
			}
			return nil
		},
		Peers: p.peers,
		Ask:   func(ctx context.Context, to peer.ID) (leader.Leadership, bool) { return p.ask(ctx, to, 0) },
		Dial:  p.dial,
		Group: p.view.ID, Missing: p.missing, Exhausted: c.Exhausted,
		Refused: func(err error) bool {
			var n *replica.NotLeader
			return errors.As(err, &n) && !n.Maybe
		},
		Left: func() (departed bool, floor int64) {
			_, floor = p.founder.Left()
			return p.departed.Load(), floor
		},
	})
	if c.Values != nil && (!c.Network.Listed() || len(c.Network.Founders) > 1) {
		p.dhtStore = announce.NewDHTStore(c.Values, c.Network, c.Key, c.Now)
	}
	return p
}

// start opens the disk and the exchange with other peers.
func (p *plane) start() (err error) {
	c, dir := p.config, p.config.dir()
	if p.store, err = bootstrap.OpenStore(c.FS, dir.Bootstrap(), p.self, c.Network); err != nil {
		return err
	}
	if err := dir.DropLeft(p.store); err != nil {
		return err
	}
	founding := bootstrap.Options{Store: p.store, Settle: c.Policy.Settle, Expect: c.Policy.Expect, Logger: c.Logger}
	if p.roster.Joins(dir.HasLog()) {
		p.disk, err = dir.Open(c.Logger, c.Metrics.Synced)
		switch {
		case err == nil && (c.Network.Listed() || c.Policy.Founds):
			founding.Disk = p.disk
		case err == nil: // a member to be, which founds nothing
		case fault.KindOf(err) == fault.Unsupported:
			return err
		default: // the peer goes on without a member
			p.failed.stop(err)
			err = nil
		}
	}
	p.founder = bootstrap.New(founding)
	p.exchange = transport.NewExchange(transport.ExchangeConfig{
		Host: c.Host, Network: c.Network.Name, Metrics: c.Metrics, Logger: c.Logger, Known: p.knows,
		Handlers: map[transport.Topic]transport.AskHandler{transport.Information: p.answer, transport.State: p.answerState},
	})
	p.search = &formation.Search{SearchConfig: formation.SearchConfig{
		Self: p.self, Founder: p.founder, Connected: p.exchange.ConnectedPeers, Trusts: p.roster.Trusts,
		Ask: func(ctx context.Context, at peer.ID) (*groupv1.InfoResponse, bool) { return p.askNow(ctx, at, 0) },
	}}
	if added, removed, changed := p.roster.Changed(); changed {
		group, _ := p.founder.Group()
		c.Logger.Warn("coordination.founders differs from the founders of this peer's group, which stays as it is: "+
			"an added peer becomes a candidate for membership, and a removed member leaves as coordination.members says",
			"group", group.GroupID(), "added", added, "removed", removed)
	}
	return nil
}

// answerState answers a leader's question for the hash of this member's state.
func (p *plane) answerState(ctx context.Context, from peer.ID, question []byte) ([]byte, error) {
	l := p.here.Load()
	if l == nil {
		return nil, fault.New("coordination.answerState", fault.Unavailable, "this peer is not a member of the group")
	}
	return l.comparer.Answer(ctx, from, question)
}

// isMember reports whether a peer is a member according to this peer's log, and whether this peer has a log.
func (p *plane) isMember(id peer.ID) (in, known bool) {
	l := p.here.Load()
	if l == nil {
		return false, false
	}
	name := id.String()
	return slices.ContainsFunc(l.member.Status().Members, func(m replica.MemberStatus) bool { return m.Peer == name }), true
}

// knows reports whether a peer is a member of the group, or may become one by this peer's settings.
func (p *plane) knows(id peer.ID) bool {
	in, _ := p.isMember(id)
	return in || p.roster.Lists(id) || p.view.Has(id)
}

// enter waits for the group and starts this peer's part in it.
func (p *plane) enter() {
	select {
	case <-p.founder.Founded():
	case <-p.life.Done():
		return
	}
	group, _ := p.founder.Group()
	known, had, err := p.config.dir().Incarnation(p.disk, group.GroupID())
	if err != nil {
		p.failed.fatal(fault.Wrap("coordination.enter", err))
		return
	}
	p.view.Adopt(group, known)
	p.routing.Advance(leader.Needed{})
	switch {
	case p.disk == nil: // a client
	case had.Recovery.Incarnation < known.Recovery.Incarnation:
		p.outlive(known.Recovery, had.Recovery.Incarnation)
	default:
		if err := p.join(group); err != nil {
			p.failed.stop(fault.Wrap("coordination.enter", err))
		}
	}
}

// join starts this peer as a member.
func (p *plane) join(group bootstrap.Membership) error {
	now, _ := p.view.Incarnation()
	now, ok, err := formation.Begin(p.disk, p.self, group, now, p.awaitIncarnation)
	if err != nil || !ok {
		return err
	}
	l, err := p.startLocal(group, now)
	if err != nil {
		return err
	}
	p.here.Store(l)
	p.routing.Wake()
	p.life.start(func() { l.comparer.Run(l.life) })
	p.life.start(func() { upkeep.WatchSpace(l.life, l.member, p.view.CalledOwner, p.config.Conditions) })
	p.life.start(func() { upkeep.WatchReserve(l.life, p.counted, l.silent, p.config.Conditions) })
	p.config.Logger.Info("takes part in the coordination group", "group", now.Group, "incarnation", now.Recovery.Incarnation, "member", fmt.Sprintf("%016x", p.disk.Member()))
	return nil
}

// awaitIncarnation asks until a member describes the incarnation.
func (p *plane) awaitIncarnation() (view.Incarnation, bool) {
	for wait := workInterval; ; wait = min(2*wait, upkeep.Offering) {
		p.askAll(0)
		if now, described := p.view.Incarnation(); described {
			return now, true
		}
		if !pause.For(p.life, wait) {
			return view.Incarnation{}, false
		}
	}
}

// work does the periodic work for the group: the leader repairs the membership and announces the group, a
// peer that is not a member offers itself.
func (p *plane) work() {
	announcer := &announce.Leader{Store: p.dhtStore, Info: p.info, Start: p.life.start, Logger: p.config.Logger}
	var offered, asked time.Time
	saved, interval := uint64(0), workInterval
	if p.disk == nil { // never a member, so only records of recoveries are to be kept
		interval = upkeep.Offering
	}
	for pause.For(p.life, interval) {
		now, _ := p.view.Incarnation()
		if now.Recovery.Incarnation > saved {
			saved = now.Recovery.Incarnation
			p.failed.fatal(now.Recovery.Save(p.config.FS, p.config.Dir))
		}
		l := p.here.Load()
		switch {
		case l == nil:
			continue
		case p.failed.because() != "":
			p.life.start(func() { p.retire(l) }) // a stalled disk may never answer; during Close there is no need
			continue
		case now.Recovery.Incarnation > l.incarnation.Recovery.Incarnation:
			p.outlive(now.Recovery, l.incarnation.Recovery.Incarnation)
			p.retire(l)
			continue
		}
		if l.member.Status().Leader.ID == 0 {
			l.membership.Introduce()
		}
		if time.Since(asked) > asking {
			asked = time.Now()
			for _, at := range p.peers() { // the only contact between members of two incarnations
				p.askSoon(at)
			}
		}
		announcer.Announce(p.life, l.Leads())
		l.membership.Reconcile(p.life)
		pause := upkeep.Offering
		if p.standsBy() {
			pause = upkeep.Standby
		}
		if time.Since(offered) > pause && !l.Belongs() {
			offered = time.Now()
			candidate := uint64(0)
			if p.roster.Serves() {
				candidate = p.disk.Member()
			}
			p.askAll(candidate) // all possible leaders learn of this candidate
			l.transport.Recheck()
		}
	}
}

// outlive ends this peer's membership because the group continues without it in a newer incarnation. The disk stays for the
// operator.
func (p *plane) outlive(now bootstrap.Recovery, ours uint64) {
	p.outlived.Store(true)
	p.config.Logger.Error("the coordination group was recovered without this member, which takes no part any more: "+
		"to make it one again stop it, remove the directory, and start it", "directory", p.config.Dir,
		"incarnation", now.Incarnation, "by", now.Peer, "ours", ours)
	p.config.Conditions.Raise(condition.MemberStopped, fault.Problem{
		What:   "the coordination group was recovered by " + p.view.Called(now.Peer.String()) + " without this member",
		Effect: "it takes no part, and may have writes that the others lack",
		Remedy: "Copy what you need, stop this peer, " + store.Aside(p.config.Dir) + ", and start it",
	})
}

// retire ends this peer's member without a successor. The peer goes on as a client.
func (p *plane) retire(l *local) {
	p.here.Store(nil)
	p.routing.Wake()
	l.end()
	if err := l.close(l.life); err != nil { // no member can take over
		p.config.Logger.Warn("closing the old group membership failed", "error", err)
	}
}

// standsBy reports whether the group needs this peer as a client only.
func (p *plane) standsBy() bool { return p.view.IsFull(p.config.Voters) && !p.view.Has(p.self) }

// tell logs each new leader, and keeps a condition while none is known: no_group without a group, otherwise no_quorum.
func (p *plane) tell() {
	log, conditions := p.config.Logger, p.config.Conditions
	var last string
	for {
		term, name, changed := p.routing.Leading()
		if name != "" && name != last {
			log.Info("the group has a leader", "leader", p.view.WithName(name), "term", term, "before", p.view.WithName(last))
			last = name
			p.config.Metrics.Led()
		}
		var late <-chan time.Time
		if name == "" {
			late = time.After(leaderlessGrace)
		} else {
			conditions.Clear(condition.NoQuorum)
			conditions.Clear(condition.NoGroup)
		}
		select {
		case <-changed:
		case <-late:
			is := p.lacks()
			is.Effect = "locks, leases, keys and changes of the directory fail, and reads may be stale"
			conditions.Raise(p.roster.Lacks(), is)
		case <-p.life.Done():
			return
		}
	}
}

// readDHT reads the DHT store after some time without a known leader.
func (p *plane) readDHT() {
	if p.dhtStore == nil {
		return
	}
	reader := announce.Reader{
		Known: func() bool { return p.view.ID() != "" }, Led: func() bool { return p.routing.Leaderless() == 0 },
		Received: p.published, Logger: p.config.Logger,
	}
	reader.Run(p.life, p.dhtStore)
}

// Close hands over the leadership, stops, and waits for all goroutines. The peer stays a member of the group.
func (p *plane) Close() error {
	var errs []error
	p.down.Do(func() {
		if l := p.here.Load(); l != nil {
			ctx, cancel := context.WithTimeout(context.Background(), closing)
			errs = append(errs, l.close(ctx))
			cancel()
		}
		p.life.end()
		if p.exchange != nil {
			errs = append(errs, p.exchange.Close())
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
	return fault.Wrap("coordination.Close", errors.Join(errs...))
}
