package coordination

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Seat is this peer's place in the group of its network: one Plane after the other. A peer whose group gave itself up goes
// over to the successor, without a restart of the process. Calls during the change fail with Unavailable. It is safe for
// concurrent use, and implements coord.Service and coord.Admin.
type Seat struct {
	coord.Through // to the present plane

	config Config
	life   *goroutines
	plane  atomic.Pointer[Plane] // a closed one during the change

	alone chan *succession // orders to go on without the lost majority, for run

	mu   sync.Mutex // held during a change, and by Close
	down bool
}

// Open starts the plane of this peer. The peer looks for the group, bootstraps it with other eligible peers,
// and joins it as a member on demand. A data directory keeps its group under changed founders. Errors: Conflict for a
// data directory of another group or network; Invalid; Internal.
func Open(c Config) (*Seat, error) {
	const op = "coordination.Open"
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if err := c.Network.Validate(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	fatal := failure{config: c}
	c.Fatal = fatal.fatal // once, over all planes
	s := &Seat{config: c, life: newGoroutines(), alone: make(chan *succession)}
	s.Through = func() (coord.Service, error) { return s.plane.Load().routing, nil }
	if err := s.open(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	s.life.start(s.run)
	return s, nil
}

// open starts the plane of the directory.
func (s *Seat) open() error {
	p, err := openPlane(s.config)
	if err == nil {
		s.plane.Store(p)
	}
	return err
}

// run changes to another group whenever the plane says so, and to the next incarnation by order.
func (s *Seat) run() {
	for {
		select {
		case order := <-s.alone:
			order.done <- s.succeed(order)
		case to := <-s.plane.Load().inquiry.merger.Departed():
			if err := s.goOver(to); err != nil {
				s.config.Fatal(fault.Wrap("coordination.goOver", err))
				return
			}
		case <-s.life.Done():
			return
		}
	}
}

// goOver ends the plane and starts one in another group. A crash on the way leaves a directory of the former group or of the
// next one: Open goes on from each.
func (s *Seat) goOver(to formation.Departure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil
	}
	old := s.plane.Load()
	from := old.ID()
	old.departed.Store(true)
	if err := old.Close(); err != nil {
		s.config.Logger.Warn("closing the old group membership failed", "group", from, "error", err)
	}
	place := bootstrap.DataDir{Dir: s.config.FS.PathJoin(s.config.Dir, "bootstrap"), Marks: s.config.Marks}
	if err := bootstrap.Leave(s.config.FS, place, old.self, s.config.Network, to.To, int64(to.Floor)); err != nil {
		return err
	}
	s.config.Conditions.Clear(condition.OtherGroup)
	err := s.reopen(old)
	if err == nil {
		s.config.Logger.Info("went over to another coordination group: leases and locks of the former one have ended", "from", from, "to", to.To.GroupID())
	}
	return err
}

// reopen starts the plane of the changed directory.
func (s *Seat) reopen(old *Plane) error {
	s.config.Conditions.Clear(condition.MemberStopped) // it was of the former member
	err := s.open()
	old.routing.HandOver()
	return err
}

// Close hands over the leadership, stops, and waits for all goroutines. The peer stays a member of the group.
func (s *Seat) Close() error {
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	s.life.end()
	s.life.work.Wait()
	return s.plane.Load().Close()
}

// Member returns the contract at this peer's own member, for other peers. It forwards nothing: operations of
// the leader fail with Unavailable at other members.
func (s *Seat) Member() Serving {
	m := Serving{now: s.plane.Load}
	m.Through = func() (coord.Service, error) {
		l, err := m.at()
		return l, err
	}
	return m
}

// Leading returns the highest term in which a leader of the group was confirmed, the leader's peer id,
// empty while none is known, and a channel that is closed when either changes. See package leader. The
// term goes back only after a forced recovery, which begins a new incarnation with terms of its own, and in another group.
func (s *Seat) Leading() (term uint64, leader string, changed <-chan struct{}) {
	return s.plane.Load().routing.Leading()
}

// ID returns the group's id in hex; empty while no group is known.
func (s *Seat) ID() string { return s.plane.Load().ID() }

// Stats returns the counters of this member. Without one, only the failures survived are known.
func (s *Seat) Stats() Stats { return s.plane.Load().Stats() }

// Standing describes the group without a question to another peer, for health and readiness.
func (s *Seat) Standing() coord.GroupState { return s.plane.Load().Standing() }

// Electing reports whether no leader is known to a peer that takes part in the election, or in the bootstrap before it.
func (s *Seat) Electing() bool { return s.plane.Load().Electing() }

// Group implements coord.Admin. The leader knows most. Without its answer, a member describes its own view.
func (s *Seat) Group(ctx context.Context) (coord.GroupState, error) { return s.plane.Load().Group(ctx) }

// ChangeMembers implements coord.Admin. Without a leader, the promotion of this peer begins the next incarnation.
func (s *Seat) ChangeMembers(ctx context.Context, c coord.MemberChange) (coord.MemberOutcome, error) {
	p := s.plane.Load()
	done, err := p.ChangeMembers(ctx, c)
	if c.Action != coord.PromoteMember || fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil || p.routing.Leaderless() == 0 {
		return done, err
	}
	return s.promoteAlone(ctx, p, c, err)
}

// Backup implements coord.Admin.
func (s *Seat) Backup(ctx context.Context, w io.Writer) error { return s.plane.Load().Backup(ctx, w) }

// raftDir holds the log and the snapshots of this peer's member.
const raftDir = "raft"

var _ interface {
	coord.Service
	coord.Admin
} = (*Seat)(nil)
