package coordination

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/coordination/upkeep"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Seat is this peer's place in the group of its network: one plane after the other. A peer whose group gave itself up goes
// over to the successor, without a restart of the process. Calls during the change fail with Unavailable. It is safe for
// concurrent use, and implements coord.Service and coord.Admin.
type Seat struct {
	coord.Through // to the router of the present plane

	config Config
	life   *goroutines
	plane  atomic.Pointer[plane] // a closed one during the change

	mu       sync.Mutex // held during a change, and by Close
	down     bool
	reopened time.Time     // when a full disk had room last; guarded by mu
	wait     time.Duration // between two looks for room; guarded by mu
}

// Open starts the plane of this peer. The peer looks for the group, bootstraps it with other eligible peers,
// and joins it as a member on demand. A data directory keeps its group under changed founders. Errors: Conflict for a
// data directory of another group or network; Invalid; Internal.
func Open(c Config) (*Seat, error) {
	const op = "coordination.Open"
	c.setDefaults()
	if err := c.Network.Validate(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	c.Fatal = (&failure{config: c}).fatal // once, over all planes
	s := &Seat{config: c, life: newGoroutines()}
	s.Through = func() (coord.Service, error) { return s.plane.Load().routing, nil }
	if err := s.open(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	return s, nil
}

// open starts the plane of the directory.
func (s *Seat) open() error {
	p, err := openPlane(s.config, func(from *plane, d formation.Departure) {
		s.life.start(func() { s.changeGroup(from, d) })
	}, func(from *plane) {
		s.life.start(func() { s.awaitRoom(from) })
	})
	if err == nil {
		s.plane.Store(p)
	}
	return err
}

// replace ends a plane, changes its directory, and starts a plane again.
func (s *Seat) replace(old *plane, departs bool, change func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down:
		return fault.New("", fault.Unavailable, "this peer is shutting down")
	case s.plane.Load() != old:
		return fault.New("", fault.Conflict, "the group changed meanwhile: look at its status and order again")
	}
	old.departed.Store(departs)
	if err := old.Close(); err != nil && !disk.Full(err) {
		s.config.Logger.Warn("closing the old group membership failed", "group", old.view.ID(), "error", err)
	}
	failed := change()
	s.config.Conditions.Clear(condition.MemberStopped) // it was of the former member
	err := s.open()
	old.routing.HandOver()
	if err != nil {
		s.config.Fatal(fault.Wrap("coordination.replace", err))
		return err
	}
	return failed
}

const (
	roomNeeded = 20 << 20        // bytes to open the log: the next file of it, and the table that the last one becomes
	roomFirst  = 5 * time.Second // between the failure and the first look for room
	roomMost   = 5 * time.Minute
)

// awaitRoom opens the plane of a full disk again, by the code of a start, once there is room. The former member is
// gone then, and the next one knows what the disk has alone, as after a crash. If that fills the disk again, the next
// look comes later.
func (s *Seat) awaitRoom(full *plane) {
	s.mu.Lock()
	s.wait = min(2*s.wait, roomMost)
	if time.Since(s.reopened) > 2*roomMost {
		s.wait = roomFirst
	}
	wait := s.wait
	s.mu.Unlock()
	for pause.For(s.life, wait) {
		usage, err := s.config.FS.GetDiskUsage(s.config.Dir)
		if err == nil && usage.AvailBytes < s.config.room() {
			continue
		}
		s.mu.Lock()
		s.reopened = time.Now()
		s.mu.Unlock()
		if s.replace(full, false, func() error { return nil }) == nil {
			s.config.Logger.Info("opened the log of this peer's member again, because its disk has room")
		}
		return
	}
}

// changeGroup goes over to another group. A crash on the way leaves a directory of the former group or of the next one: Open goes on
// from each.
func (s *Seat) changeGroup(old *plane, d formation.Departure) {
	leave := func() error {
		err := bootstrap.Leave(s.config.FS, s.config.dir().Bootstrap(), old.self, s.config.Network, d.To, int64(d.Floor))
		if err != nil {
			s.config.Fatal(fault.Wrap("coordination.changeGroup", err))
		}
		return err
	}
	if s.replace(old, true, leave) == nil {
		s.config.Logger.Info("went over to another coordination group: leases and locks of the former one have ended",
			"from", old.view.ID(), "to", d.To.GroupID())
	}
}

// promoteAlone carries out an order to promote a member of a group without a leader. cause says why no leader took it. A crash on
// the way leaves the former member, or the new one.
func (s *Seat) promoteAlone(ctx context.Context, p *plane, c coord.MemberChange, cause error) (done coord.MemberOutcome, err error) {
	if c.Peer != p.self.String() {
		return done, fault.New("", fault.Unavailable,
			"%s; if the voters are gone for good, give this order at the peer that is to go on: without a leader a member only promotes itself", fault.Message(cause))
	}
	plan, err := p.planSuccession(ctx)
	if err != nil {
		return done, err
	}
	done = plan.Outcome()
	switch {
	case c.DryRun:
		return done, nil
	case !c.Force:
		return done, fault.Refused(fault.Conflict, "force", "no leader answers, and to go on would %s; a dry run says all that happens", plan.Loss())
	}
	err = s.replace(p, false, func() error {
		began, err := formation.Recover(formation.RecoverConfig{Key: s.config.Key, Dir: s.config.Dir, FS: s.config.FS})
		if err == nil {
			s.config.Logger.Warn("this peer continues the coordination group alone, by order", "incarnation", began.Incarnation, "revision", began.Revision)
		}
		return err
	})
	upkeep.Audit(s.config.Logger, p.view.WithName, c, done, err)
	done.Done = err == nil
	return done, err
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

// Leading returns the highest term in which a leader of the group was confirmed, the leader's peer id,
// empty while none is known, and a channel that is closed when either changes. See package leader. The
// term goes back only after a forced recovery, which begins a new incarnation with terms of its own, and in another group.
func (s *Seat) Leading() (term uint64, leader string, changed <-chan struct{}) {
	return s.plane.Load().routing.Leading()
}

// ElectionTimeout returns the shortest time without a leader before an election.
func (s *Seat) ElectionTimeout() time.Duration { return s.config.Replica.ElectionTimeout() }

// ID returns the group's id in hex; empty while no group is known.
func (s *Seat) ID() string { return s.plane.Load().view.ID() }

// ChangeMembers implements coord.Admin. Without a leader, the promotion of this peer begins the next incarnation.
func (s *Seat) ChangeMembers(ctx context.Context, c coord.MemberChange) (done coord.MemberOutcome, err error) {
	p := s.plane.Load()
	c.Via = p.self.String()
	if c.Action == coord.LeaveGroup {
		c.Action, c.Peer = coord.RemoveMember, c.Via
	}
	err = p.routing.AtLeader(ctx, func(ctx context.Context, t routing.Target) error {
		done, err = t.ChangeMembers(ctx, c)
		return err
	})
	if c.Action == coord.PromoteMember && fault.KindOf(err) == fault.Unavailable && ctx.Err() == nil && p.routing.Leaderless() > 0 {
		done, err = s.promoteAlone(ctx, p, c, err)
		err = fault.Wrap("coordination.ChangeMembers", err)
	}
	return done, err
}

// Backup implements coord.Admin: any member writes it.
func (s *Seat) Backup(ctx context.Context, w io.Writer) error {
	var broken error // after the first byte a backup is not repeated
	counted := &countingWriter{w: w}
	err := s.plane.Load().routing.AtMember(ctx, func(ctx context.Context, t routing.Target) error {
		err := t.Backup(ctx, counted)
		if err != nil && counted.n > 0 {
			broken = fault.New("coordination.Backup", fault.Unavailable, "the backup broke off after %d bytes: %w", counted.n, err)
			return nil
		}
		return err
	})
	return errors.Join(err, broken)
}

type countingWriter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

var _ interface {
	coord.Service
	coord.Admin
} = (*Seat)(nil)
