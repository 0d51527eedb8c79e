package formation

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	busy      = 500 * time.Millisecond // between two steps while a group ends
	abandoned = 5 * time.Second        // without a leader until a group whose peers went over counts as gone
)

// summaryAge bounds the age of a member's summary of its group: peers ask for it at any rate.
const summaryAge = time.Second

// Member describes the group of this peer's member; Apply ends it. It is safe for concurrent use.
type Member struct {
	*member.Member
	Group machine.GroupID
	Apply func(context.Context, *coordv1.Command) error // executes a command of the members

	mu   sync.Mutex
	at   time.Time
	said Group
}

// Describe describes the group from the applied state, but for Listed and Former.
func (m *Member) Describe() (g Group, data machine.UserData) {
	m.View(func(state *machine.Machine) { g, data = GroupOf(m.Group, state) })
	return g, data
}

// Summary returns a description of the last second. It is advisory: the state machine checks every end of a group.
func (m *Member) Summary() Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() || time.Since(m.at) > summaryAge {
		m.at = time.Now()
		m.said, _ = m.Describe()
	}
	return m.said
}

// Config configures a Merger. All fields are required.
type Config struct {
	Self    peer.ID
	Network bootstrap.Network
	// Group returns the group of this peer, if it is known.
	Group func() (bootstrap.Membership, bool)
	// Member returns this peer's member; nil without one.
	Member func() *Member
	// Ask returns the answer of a trusted peer to the question for its group.
	Ask func(context.Context, peer.ID) (*groupv1.InfoResponse, error)
	// Connected returns the connected peers that can be asked.
	Connected func() []peer.ID
	// Leaderless returns the time without a known leader of this peer's group.
	Leaderless func() time.Duration
	// Keeps reports whether the disk of this peer's member stays for the operator, so that it does not go over.
	Keeps func() bool
	// Alone reports whether this peer is the only member of its group.
	Alone func() bool
	// Called names a peer in a sentence.
	Called func(id string) string

	Conditions *condition.Set
	Logger     *slog.Logger
}

// Departure is the change of this peer to another group.
type Departure struct {
	To    bootstrap.Membership
	Floor coord.Revision // of the other group: earlier cursors of watches can be of the former one
}

// Merger carries out the decisions of Next. It keeps nothing that lasts: the end of a group is in its log. Run is for one goroutine;
// other methods are safe for concurrent use.
type Merger struct {
	config Config
	others *others
}

// NewMerger returns a Merger; Run starts it.
func NewMerger(c Config) *Merger {
	return &Merger{config: c, others: &others{Config: c, known: map[machine.GroupID]*other{}, asked: map[peer.ID]allegiance{}, apart: map[peer.ID]time.Time{}}}
}

// Hint notes a trusted peer's description of a group, of any age.
func (m *Merger) Hint(from peer.ID, info *groupv1.GroupInfo) { m.others.hint(from, info) }

// Run looks for other groups until this peer is to go over to another one, or ctx ends: then the result is nil.
func (m *Merger) Run(ctx context.Context) *Departure {
	for wait := busy; pause.For(ctx, wait); {
		m.others.look(ctx)
		own, known := m.own()
		if !known {
			continue
		}
		step := m.next(own)
		m.report(own, step)
		if leaves := m.carryOut(ctx, own, step); leaves != nil {
			return leaves
		}
		if wait = interval; step.Action != Rest && step.Action != Contest {
			wait = busy
		}
	}
	return nil
}

// own describes this peer's group. A peer without its state gives nothing up.
func (m *Merger) own() (g Group, known bool) {
	membership, known := m.config.Group()
	if !known {
		return g, false
	}
	if l := m.config.Member(); l != nil {
		g, _ = l.Describe()
		g.Listed = membership.Listed()
		return g, true
	}
	return Group{ID: idOf(membership), UserData: true}, true
}

func (m *Merger) next(own Group) Step {
	return Next(own, m.others.described(), m.config.Leaderless() >= abandoned)
}

// carryOut takes a step. It returns the change of this peer to another group, if this is the step.
func (m *Merger) carryOut(ctx context.Context, own Group, step Step) (leaves *Departure) {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	var err error
	switch step.Action {
	case Dissolve:
		err = m.end(ctx, step)
	case Leave:
		leaves, err = m.leave(ctx, own, step.Group)
	}
	if err != nil {
		m.config.Logger.Debug("a step to end the group failed, and is repeated", "error", err)
	}
	return leaves
}

// leading returns this peer's member if it leads with all of the log applied.
func (m *Merger) leading() (*Member, bool) {
	l := m.config.Member()
	if l == nil {
		return nil, false
	}
	s := l.Status()
	return l, s.Leads && s.Promoted
}

// end gives the group up, as its leader, if that is still right after the word of the other group's leader.
func (m *Merger) end(ctx context.Context, step Step) error {
	l, leads := m.leading()
	if !leads {
		return nil
	}
	other, err := m.others.confirm(ctx, step.Group)
	if err != nil {
		return err
	}
	own, _ := m.own()
	if m.next(own) != step {
		return nil
	}
	m.config.Logger.Warn("this peer's coordination group holds no data of applications and gives itself up for another one of the network",
		"group", own.ID, "successor", step.Group)
	return l.Apply(ctx, &coordv1.Command{Request: &coordv1.Command_Dissolve{Dissolve: own.End(other)}})
}

// leave returns the change to a living group. A living group with a leader is never left: an operator may have restored it.
func (m *Merger) leave(ctx context.Context, own Group, to machine.GroupID) (*Departure, error) {
	if m.config.Keeps() {
		return nil, nil
	}
	g, err := m.others.confirm(ctx, to)
	if err != nil {
		return nil, err
	}
	if now, _ := m.own(); now.Over != own.Over || m.next(now) != (Step{Action: Leave, Group: to}) {
		return nil, nil // it lives again
	}
	o, known := m.others.of(to)
	if !known {
		return nil, nil
	}
	m.config.Conditions.Clear(condition.OtherGroup)
	return &Departure{o.membership, g.Revision}, nil
}

// report keeps the condition other_group: a lock of one group does not exclude the other.
func (m *Merger) report(own Group, step Step) {
	sighted, conditions := m.others.sighted(), m.config.Conditions
	switch {
	case own.Over.Over() && step.Action == Wait:
		conditions.Raise(condition.OtherGroup, fault.Problem{
			What:   fmt.Sprintf("this peer's coordination group was dissolved into group %v, whose leader does not answer", own.Over.Successor),
			Effect: "locks, leases and keys fail until it does",
			Remedy: "If it is gone for good, restore a backup of one of the two by `blackholed group restore FILE`",
		})
	case len(sighted) == 0:
		strangers := m.others.strangers()
		if len(strangers) == 0 || !m.config.Alone() {
			conditions.Clear(condition.OtherGroup)
			return
		}
		conditions.Raise(condition.OtherGroup, fault.Problem{
			What:   "this peer alone is a group, and " + m.config.Called(strangers[0].String()) + ", which does not prove its key of the network, is in another one",
			Effect: "a lock of one does not exclude the other",
			Remedy: "If this peer has lost its data directory, stop it, remove the new one, and start it with --join LINE of `blackholed invite` there",
		})
	default:
		about := sighted[0]
		if slices.Contains(sighted, step.Group) {
			about = step.Group
		}
		o, _ := m.others.of(about)
		by, _ := o.seen()
		conditions.Raise(condition.OtherGroup, fault.Problem{
			What:   "this peer and " + m.config.Called(by.String()) + " belong to separate coordination groups of one network",
			Effect: "a lock of one does not exclude the other, and each lists its own instances",
			Remedy: "What is next: " + outlook(own, o.describe(), step),
		})
	}
}

// outlook says how two groups become one.
func outlook(own, other Group, step Step) string {
	switch {
	case step.Action == Contest:
		return remedy(own, other)
	case step.Action == Rest:
		return "no member of the other group answers"
	case step.Action == Leave && !own.Over.Over():
		return "peers of this group went over to the other one, and this peer follows them"
	case step.Action == Wait:
		return "the other group is to give itself up"
	}
	return "this peer's group gives itself up"
}

// remedy says what an operator does about two groups that both stay.
func remedy(own, other Group) string {
	const raise = "%s is empty, and gives itself up once the revision of %s, %d, has reached its own, %d: each write there raises it"
	mine, theirs := "this peer's group", "the other one"
	switch {
	case own.Listed && other.Listed:
		return "both have listed founders and stay: stop the peers of one, remove their directories coordination, and start them with the founders of the other"
	case !own.UserData && !own.Listed && !own.Over.Over():
		return fmt.Sprintf(raise, mine, theirs, other.Reached, own.Revision)
	case !other.UserData && !other.Listed && !other.Over.Over():
		return fmt.Sprintf(raise, theirs, mine, own.Reached, other.Revision)
	case other.Listed || !own.Listed && own.Revision < other.Revision:
	default:
		mine, theirs = theirs, mine
	}
	return fmt.Sprintf("copy the keys of %s to %s, stop its applications and delete its keys: without data it gives itself up", mine, theirs)
}
