package coordination

import (
	"context"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/pause"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	reconcileInterval = 250 * time.Millisecond // between two checks of the group
	offering          = 2 * time.Second        // between two offers to be a member
	standby           = 30 * time.Second       // between two offers to a group that needs no member
	asking            = 10 * time.Second       // between two rounds of questions to members
	changing          = 30 * time.Second       // for one change of the configuration
)

// reconcile runs the periodic work for the group: the leader repairs the membership and announces the group, a
// peer that is not a member offers itself.
func (p *Plane) reconcile() {
	reconciler := &reconciler{plane: p, origin: time.Now()}
	announcer := &announce.Leader{
		Announcer: p.announcer, Store: p.dhtStore, Info: p.inquiry.info, Start: p.life.start, Jitter: newRand(), Logger: p.config.Logger,
	}
	var offered, asked time.Time
	kept, interval := uint64(0), reconcileInterval
	if p.disk == nil { // never a member, so only records of recoveries are to be kept
		interval = offering
	}
	for pause.For(p.life, interval) {
		reconciler.saveRecovery(&kept)
		l := p.here.Load()
		if l == nil || l.checkStopped() || reconciler.checkOutlived(l) {
			continue
		}
		if time.Since(asked) > asking {
			asked = time.Now()
			p.inquiry.askMembersSoon()
		}
		announcer.Announce(p.life, l.Leads())
		reconciler.reconcile(l)
		pause := offering
		if p.roster.standsBy() {
			pause = standby
		}
		if time.Since(offered) > pause && !l.Belongs() {
			offered = time.Now()
			p.inquiry.askAll(offerOf(p)) // all possible leaders learn of this candidate
			l.wire.Recheck()
		}
	}
}

// checkOutlived ends this peer's membership if the group continues without it in a newer incarnation. The disk
// stays for the operator.
func (c *reconciler) checkOutlived(l *local) bool {
	p := c.plane
	now, _ := p.view.incarnation()
	if now.recovery.Incarnation <= l.incarnation.recovery.Incarnation {
		return false
	}
	p.logOutlived(now.recovery, l.incarnation.recovery.Incarnation)
	p.outlived.Store(true)
	l.retire()
	return true
}

func (p *Plane) logOutlived(s bootstrap.Recovery, ours uint64) {
	p.config.Logger.Error("the coordination group was recovered without this member, which takes no part any more: "+
		"to make it one again stop it, remove the directory, and start it", "directory", p.config.Dir,
		"incarnation", s.Incarnation, "by", s.Peer, "ours", ours)
	p.config.Conditions.Raise(condition.MemberStopped, "the coordination group was recovered by %s without this member, which takes no part: "+
		"stop this peer, remove %s and start it", p.inquiry.calls(s.Peer.String()), p.config.Dir)
}

// saveRecovery stores the newest known recovery record.
func (c *reconciler) saveRecovery(kept *uint64) {
	p := c.plane
	life, _ := p.view.incarnation()
	if life.recovery.Incarnation > *kept {
		*kept = life.recovery.Incarnation
		p.failed.fatal(life.recovery.Save(p.config.FS, p.config.Dir))
	}
}

// Belongs reports whether this member is listed and its group has a leader. Calls of others wait for another member.
func (l *local) Belongs() bool { return l.member.Status().Leader.ID != 0 && l.listed() }

// listed reports whether this member's configuration contains it, and whether other peers know no later one without it.
// A removed member, or a learner, gets no other notice of its removal.
func (l *local) listed() bool {
	s, id := l.member.Status(), l.plane.disk.Member()
	return slices.ContainsFunc(s.Members, func(m replica.MemberStatus) bool { return m.ID == id }) && !l.plane.view.excludes(id, s.Applied)
}

// reconciler applies the decisions of package membership while this peer leads.
type reconciler struct {
	plane   *Plane
	origin  time.Time
	tracker *membership.Tracker // nil while this peer does not lead
	term    uint64              // of the tracker
	touched time.Duration       // time of the last change, or of the election
	elected time.Duration
	limited bool          // the limits are as wanted, or were refused
	change  chan struct{} // the change under way closes it at its end; nil without one
}

func (c *reconciler) reconcile(l *local) {
	s := l.member.Status()
	now := time.Since(c.origin)
	ongoing := c.ongoing(now)
	if !s.Leads || !s.Promoted {
		c.tracker = nil
		l.observed.Store(nil)
		return
	}
	if c.tracker == nil || c.term != s.Header.Term { // the leadership may have been lost and won again between two checks
		c.tracker, c.touched, c.limited = membership.NewTracker(c.plane.disk.Member()), now, false
		c.term, c.elected = s.Header.Term, now
	}
	if over := l.summary.of(l).Over; over.Over() {
		return // it refuses every change
	}
	c.setLimits(l)
	c.plane.levels.raise(l, s, now-c.elected)
	members := c.tracker.Observe(now, s.Commit, progressOf(s))
	standings{l}.judge(members)
	l.observed.Store(&members)
	dialCandidates(c.plane)
	state := membership.State{
		Leader: c.plane.disk.Member(), Members: members, Candidates: standings{l}.offers(), Unreached: c.plane.roster.candidates.unreached(),
		Changing: ongoing || s.Joint || s.Transferee != 0, Quiet: now - c.touched,
	}
	if change, ok := c.plane.config.membershipConfig().Decide(state); ok {
		c.apply(l, change, state.Steps(change))
	}
}

// ongoing reports whether a change of this reconciler is under way. The group rests from its end.
func (c *reconciler) ongoing(now time.Duration) bool {
	if c.change == nil {
		return false
	}
	select {
	case <-c.change:
		c.change, c.touched = nil, now
		return false
	default:
		return true
	}
}

// setLimits proposes the wanted limits, once in a leadership.
func (c *reconciler) setLimits(l *local) {
	if c.limited || c.plane.config.Limits == nil {
		return
	}
	var have coord.Limits
	l.member.View(func(m *machine.Machine) { have = m.Limits() })
	want := c.plane.config.Limits(have)
	if c.limited = want == have; c.limited {
		return
	}
	ctx, cancel := context.WithTimeout(c.plane.life, askTime)
	defer cancel()
	err := l.Apply(ctx, &coord.Configure{Limits: want})
	if err == nil {
		c.plane.config.Logger.Info("changed the limits of the group", "limits", want)
	} else if c.limited = fault.KindOf(err) == fault.Invalid; c.limited {
		c.plane.config.Logger.Warn("the limits of the group were not changed", "error", err)
	} // any other failure is retried by the leader
}

// membershipConfig applies the operator's patience to the defaults.
func (c *Config) membershipConfig() membership.Config {
	r := membership.DefaultConfig()
	r.Voters, r.Patience = c.Voters, c.Replace
	r.Returned = min(r.Returned, r.Patience)
	r.Stable = min(r.Stable, r.Patience/5)
	r.Interval = min(r.Interval, r.Patience/10)
	return r
}

func progressOf(s replica.Status) []membership.Progress {
	out := make([]membership.Progress, len(s.Members))
	for i, m := range s.Members {
		out[i] = membership.Progress{Peer: membership.Peer{ID: m.ID, Name: m.Peer}, Voter: m.Voter, Match: m.Match, Active: m.Active}
	}
	return out
}

// apply begins a change. The log names its steps. A change may wait for a member that is slow or gone, and the other duties
// of reconcile must not.
func (c *reconciler) apply(l *local, change membership.Change, steps []string) {
	log, ended := c.plane.config.Logger.With("steps", steps), make(chan struct{})
	if c.plane.life.start(func() {
		defer close(ended)
		if err := l.carryOut(c.plane.life, change); err != nil {
			log.Warn("changing the group failed", "error", err)
			return
		}
		log.Info("membership changed")
	}) {
		c.change = ended
	}
}

func configurationOf(c membership.Change) (out replica.Change) {
	if c.Add.ID != 0 {
		out.Learners = []replica.Member{{ID: c.Add.ID, Peer: c.Add.Name}}
	}
	for _, id := range c.Promote {
		out.Voters = append(out.Voters, replica.Member{ID: id})
	}
	if c.Remove != 0 {
		out.Remove = []uint64{c.Remove}
	}
	return out
}
