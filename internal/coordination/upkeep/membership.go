package upkeep

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const (
	changing    = 30 * time.Second // for one change of the configuration
	maxRemoved  = 100              // peers in the list of those that operators keep out
	maxStanding = 1024             // operators' decisions on peers that the group keeps
)

// MembershipConfig configures a Membership. All fields are required, but for Dial and Limits.
type MembershipConfig struct {
	Host      host.Host
	Member    *member.Member
	Levels    *Levels
	LevelsOf  func(member uint64) coord.Levels              // as announced by another member
	Supported coord.Levels                                  // by this program
	Apply     func(context.Context, *coordv1.Command) error // executes a command of the members
	Start     func(work func()) bool                        // runs work in a goroutine that the owner waits for; false at the end

	Voters  int                                  // wanted
	Replace time.Duration                        // silence after which a voter is replaced
	Limits  func(coord.Limits) coord.Limits      // the wanted limits from the present ones; nil keeps them
	Dial    func(context.Context, peer.ID) error // connects to a candidate; nil: all can be dialled
	Keeps   func(peer.ID) bool                   // whether a member may stay one
	IsOver  func() bool                          // whether the group gave itself up: then Reconcile changes nothing

	WithName func(id string) string
	Logger   *slog.Logger
}

// Membership repairs the members of the group while its member leads, and carries out an operator's changes of them. Reconcile is
// for one goroutine; the other methods are safe for concurrent use.
type Membership struct {
	MembershipConfig
	candidates candidates
	observed   atomic.Pointer[[]membership.Member] // nil while the member does not lead

	// Of the goroutine of Reconcile.
	origin  time.Time
	tracker *membership.Tracker // nil while the member does not lead
	term    uint64              // of the tracker
	touched time.Duration       // time of the last change that Reconcile began, or of the election; not of an operator's
	elected time.Duration
	limited bool          // the limits are as wanted, or were refused
	change  chan struct{} // the change under way closes it at its end; nil without one

	readdress time.Duration // time of the next record of changed addresses
}

// NewMembership returns the Membership of a member.
func NewMembership(c MembershipConfig) *Membership {
	return &Membership{
		MembershipConfig: c, origin: time.Now(),
		candidates: candidates{host: c.Host, dial: c.Dial, withName: c.WithName, seen: map[peer.ID]candidate{}},
	}
}

// Offered notes a peer that offers itself as a member, if it supports the level of the group.
func (c *Membership) Offered(from peer.ID, raftID uint64, theirs coord.Levels) {
	if group := c.Member.Status().Level; group != 0 && !theirs.Supports(group) {
		c.Levels.Refused(from, fault.New("", fault.Unsupported, "the group is at feature level %d, the peer supports %v", group, theirs))
		return
	}
	c.candidates.add(from, raftID)
}

// Unseen returns the time since a member answered the leader here.
func (c *Membership) Unseen(id uint64) time.Duration {
	if seen := c.observed.Load(); seen != nil {
		for _, m := range *seen {
			if m.ID == id {
				return m.Unseen
			}
		}
	}
	return 0
}

// Reconcile does the leader's periodic work: it sets limits and level of the group, records the addresses of the
// members, and begins at most one change of them.
// Call it a few times a second.
func (c *Membership) Reconcile(ctx context.Context) {
	s, now := c.Member.Status(), time.Since(c.origin)
	isChanging := c.isChanging(now)
	if !s.Leads || !s.Promoted {
		c.tracker = nil
		c.observed.Store(nil)
		return
	}
	if c.tracker == nil || c.term != s.Header.Term { // the leadership may have been lost and won again between two checks
		c.tracker, c.touched, c.limited = membership.NewTracker(s.Header.Member), now, false
		c.term, c.elected = s.Header.Term, now
	}
	if c.IsOver() {
		return
	}
	c.setLimits(ctx)
	c.recordAddresses(ctx, s, now)
	if level := c.Levels.next(s, c.Supported, c.LevelsOf, now-c.elected); level != s.Level {
		if err := c.apply(ctx, &coordv1.Command{Request: &coordv1.Command_SetLevel{SetLevel: &coordv1.SetLevel{Level: level}}}); err != nil {
			c.Logger.Warn("the feature level of the group was not raised", "level", level, "error", err)
		} else {
			c.Logger.Info("raised the feature level of the group", "level", level)
		}
	}
	members := c.tracker.Observe(now, s.Commit, ProgressOf(s))
	c.observed.Store(&members)
	c.candidates.dialDue(ctx, c.Start, c.Logger)
	decided, _ := c.standings()
	state := c.state(s, members, decided)
	state.Candidates = slices.DeleteFunc(state.Candidates, func(p membership.Peer) bool { return decided[p.Name] == coord.Barred })
	state.Changing, state.Quiet = isChanging || state.Changing, now-c.touched
	if change, ok := c.rules().Decide(state); ok {
		c.begin(ctx, change, state.Steps(change))
	}
}

// state returns what decisions on the members are based on.
func (c *Membership) state(s replica.Status, observed []membership.Member, decided map[string]coord.Standing) membership.State {
	members := slices.Clone(observed)
	for i := range members {
		m := &members[i]
		p, err := peer.Decode(m.Name)
		m.Barred = err != nil || !c.Keeps(p) || decided[m.Name] == coord.Barred
		m.Wanted = decided[m.Name] == coord.Wanted
		m.Prefix = prefixOf(c.Host, p)
	}
	return membership.State{
		Leader: s.Header.Member, Members: members, Candidates: c.candidates.fresh(), Unreached: c.candidates.unreached(),
		Changing: s.Joint || s.Transferee != 0,
	}
}

// isChanging reports whether a change of this leader is under way. The group rests from its end.
func (c *Membership) isChanging(now time.Duration) bool {
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
func (c *Membership) setLimits(ctx context.Context) {
	if c.limited || c.Limits == nil {
		return
	}
	var have coord.Limits
	c.Member.View(func(m *machine.Machine) { have = m.Limits() })
	want := c.Limits(have)
	if c.limited = want == have; c.limited {
		return
	}
	err := c.apply(ctx, &coordv1.Command{Request: &coordv1.Command_Configure{Configure: &coordv1.Configure{Limits: want.Message()}}})
	if err == nil {
		c.Logger.Info("changed the limits of the group", "limits", want)
	} else if c.limited = fault.KindOf(err) == fault.Invalid; c.limited {
		c.Logger.Warn("the limits of the group were not changed", "error", err)
	} // any other failure is retried by the leader
}

func (c *Membership) apply(ctx context.Context, cmd *coordv1.Command) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return c.Apply(ctx, cmd)
}

// rules applies the operator's patience to the defaults.
func (c *Membership) rules() membership.Config {
	r := membership.DefaultConfig()
	r.Voters, r.Patience = c.Voters, c.Replace
	r.Returned = min(r.Returned, r.Patience)
	r.Stable = min(r.Stable, r.Patience/5)
	r.Interval = min(r.Interval, r.Patience/10)
	return r
}

// ProgressOf converts the progress of the members at their leader.
func ProgressOf(s replica.Status) []membership.Progress {
	out := make([]membership.Progress, len(s.Members))
	for i, m := range s.Members {
		out[i] = membership.Progress{Peer: membership.Peer{ID: m.ID, Name: m.Peer}, Voter: m.Voter, Match: m.Match, Active: m.Active}
	}
	return out
}

// begin begins a change. The log names its steps. A change may wait for a member that is slow or gone, and the other duties
// must not.
func (c *Membership) begin(ctx context.Context, change membership.Change, steps []string) {
	log, ended := c.Logger.With("steps", steps), make(chan struct{})
	if c.Start(func() {
		defer close(ended)
		if err := c.carryOut(ctx, change); err != nil {
			log.Warn("changing the group failed", "error", err)
			return
		}
		log.Info("membership changed")
	}) {
		c.change = ended
	}
}

// carryOut makes one change of the configuration and waits for it.
func (c *Membership) carryOut(ctx context.Context, change membership.Change) (err error) {
	ctx, cancel := context.WithTimeout(ctx, changing)
	defer cancel()
	var configuration replica.Change
	if change.Add.ID != 0 {
		configuration.Learners = []replica.Member{{ID: change.Add.ID, Peer: change.Add.Name}}
	}
	for _, id := range change.Promote {
		configuration.Voters = append(configuration.Voters, replica.Member{ID: id})
	}
	if change.Remove != 0 {
		configuration.Remove = []uint64{change.Remove}
	}
	switch {
	case change.Transfer != 0:
		err = c.Member.Transfer(ctx, change.Transfer)
	case len(configuration.Voters)+len(configuration.Learners)+len(configuration.Remove) > 0:
		err = c.Member.Change(ctx, configuration)
	}
	return err
}

// Change carries out an operator's change of the members at the leader. After a handover it fails with Unavailable, so that the
// caller repeats it at the next leader, which finds the standing decision.
func (c *Membership) Change(ctx context.Context, order coord.MemberChange) (done coord.MemberOutcome, err error) {
	observed, s := c.observed.Load(), c.Member.Status()
	if observed == nil || !s.Leads || !s.Promoted {
		return done, fault.New("", fault.Unavailable, "this member does not lead, or leads for less than a second")
	}
	decided, kept := c.standings()
	state := c.state(s, *observed, decided)
	plan, err := c.rules().Plan(state, order)
	if err != nil {
		return done, err
	}
	done = coord.MemberOutcome{
		Steps: state.Steps(plan.Change), Before: plan.Before.String(), After: plan.After.String(), Standing: plan.Standing,
	}
	if order.DryRun {
		return done, nil
	}
	// A leader that takes over before the change itself knows the decision.
	if now := plan.Standing; now != "" && decided[order.Peer] != now {
		if _, known := decided[order.Peer]; !known && kept >= maxStanding {
			return done, fault.New("", fault.LimitReached, "the group keeps decisions on %d peers already", kept)
		}
		put := coord.PutStep(coord.MembersPrefix+order.Peer, []byte(now), 0)
		if err := c.Apply(ctx, coord.CommandOf("", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{put}})); err != nil {
			return done, err
		}
	}
	err = c.carryOut(ctx, plan.Change)
	Audit(c.Logger, c.WithName, order, done, err)
	if err == nil && plan.Change.Transfer != 0 && order.Action != coord.TransferLeadership {
		return done, fault.New("", fault.Unavailable, "handed over the leadership; the next leader goes on")
	}
	done.Done = err == nil
	return done, err
}

// standings returns the operators' decisions on peers, by peer id, and the number of peers that have had one. They are keys
// of the group, written by members alone: so every later leader follows them, and snapshots and backups contain them.
func (c *Membership) standings() (decided map[string]coord.Standing, kept int) {
	decided = map[string]coord.Standing{}
	c.Member.View(func(m *machine.Machine) {
		page, err := m.Range(machine.Query{Span: coord.Under(coord.MembersPrefix), Limit: maxStanding})
		if err != nil {
			return // impossible: it asks for the present
		}
		kept = len(page.Keys)
		for _, kv := range page.Keys {
			decided[strings.TrimPrefix(kv.Key, coord.MembersPrefix)] = coord.Standing(kv.Value)
		}
	})
	return decided, kept
}

// Removed returns the peers that operators keep out, by id, at most maxRemoved of them.
func (c *Membership) Removed() (peers []string) {
	decided, _ := c.standings()
	for _, id := range slices.Sorted(maps.Keys(decided)) {
		if decided[id] == coord.Barred && len(peers) < maxRemoved {
			peers = append(peers, id)
		}
	}
	return peers
}

// KeepsOut reports whether an operator keeps a peer out.
func (c *Membership) KeepsOut(id peer.ID) (out bool) {
	c.Member.View(func(m *machine.Machine) {
		kv, found := m.Get(coord.MembersPrefix + id.String())
		out = found && coord.Standing(kv.Value) == coord.Barred
	})
	return out
}

// Audit logs an operator's change of the group: it takes something from somebody.
func Audit(log *slog.Logger, withName func(id string) string, c coord.MemberChange, done coord.MemberOutcome, err error) {
	log = log.With("action", c.Action, "peer", withName(c.Peer), "by", c.By, "via", withName(c.Via),
		"steps", done.Steps, "before", done.Before, "after", done.After, "force", c.Force)
	if err != nil {
		log.Warn("an operator's change of the group failed", "error", err)
		return
	}
	log.Info("an operator changed the group", "audit", "group_change")
}
