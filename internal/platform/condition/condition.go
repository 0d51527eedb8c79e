// Package condition keeps the causes that limit this peer now: it is joining, its clock is wrong, another machine
// uses its identity. One set serves the whole daemon. A part raises and clears its own conditions. The log, the
// status, the health report and the metrics show the set, and some conditions make answers incomplete.
package condition

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Name identifies a condition in status, metrics and logs.
type Name string

// The conditions.
const (
	// Joining: this peer has not yet compared its records with other keepers since its start.
	Joining Name = "joining"
	// Isolated: this peer lost its connections to the network.
	Isolated Name = "isolated"
	// ClockOffset: the clock of this peer differs from the clocks of the other keepers.
	ClockOffset Name = "clock_offset"
	// IdentityInUse: another machine signs records with the identity of this peer.
	IdentityInUse Name = "identity_in_use"
	// NotReachable: strangers cannot connect to this peer, neither directly nor through a relay, or not at the
	// addresses that it announces.
	NotReachable Name = "not_reachable"
	// AddressLimit: bootstrap peers refuse this peer because too many peers share its address.
	AddressLimit Name = "address_limit"
	// OtherNetwork: a bootstrap peer belongs to a network with another name.
	OtherNetwork Name = "other_network"
	// NoWayIn: no bootstrap peer was reached.
	NoWayIn Name = "no_way_in"
	// PrivateAddresses: the profile expects public addresses and this machine has private ones only.
	PrivateAddresses Name = "private_addresses"
	// NotStored: no keeper holds the newest version of a service of this peer.
	NotStored Name = "not_stored"
	// OtherGroup: a peer of the network has a coordination group of its own.
	OtherGroup Name = "other_group"
	// NoGroup: this peer has joined a network, and no trusted peer shows a coordination group.
	NoGroup Name = "no_group"
	// NoQuorum: no leader of the coordination group is known.
	NoQuorum Name = "no_quorum"
	// DirectoryRefused: the coordination group takes no instances of this peer, so other peers do not find them.
	DirectoryRefused Name = "directory_refused"
	// NoReserve: the coordination group does not survive the loss of another voter.
	NoReserve Name = "no_reserve"
	// OlderKeepers: some keepers do not know a part of this peer's questions.
	OlderKeepers Name = "older_keepers"
	// FeatureLevel: this program does not support the feature level of the coordination group.
	FeatureLevel Name = "feature_level"
	// MemberStopped: this peer's member of the coordination group stopped because of its disk or its state.
	MemberStopped Name = "member_stopped"
	// StatesDiffer: the members of the coordination group have different states, and no majority agrees.
	StatesDiffer Name = "states_differ"
	// IndexFull: this peer's index refuses or evicts records for want of memory.
	IndexFull Name = "index_full"
	// CellFull: a cell without parts has more offers than one cell takes, so some are refused.
	CellFull Name = "cell_full"
	// NoGrants: this peer grants no units of its offers: its ledger is out of reach, or lost sight of earlier grants.
	NoGrants Name = "no_grants"
	// SpaceLow: a pool of the coordination group is nearly full: of its keys, bytes, leases, clients or requirements.
	SpaceLow Name = "space_low"
	// Disk: the disk of the data directory is nearly full, or the directory is gone.
	Disk Name = "disk"
	// Certificate: the server certificate of this peer has ended, or ends within a week.
	Certificate Name = "certificate"
	// SetAside: stored instances of this peer do not pass and are left out.
	SetAside Name = "set_aside"
	// FrontFailed: the periodic work of a front end for other clients fails by a fault of this program, or what it kept
	// does not pass.
	FrontFailed Name = "front_failed"
	// PoolExhausted: callers of this peer find no place for a connection, a watch, a wait or a large request, or the group no room.
	PoolExhausted Name = "pool_exhausted"
)

// Names lists all conditions.
func Names() []string {
	return []string{
		string(Joining), string(Isolated), string(ClockOffset), string(IdentityInUse),
		string(NotReachable), string(AddressLimit), string(OtherNetwork), string(NoWayIn), string(PrivateAddresses), string(NotStored), string(NoGroup), string(NoQuorum), string(DirectoryRefused), string(NoReserve), string(OtherGroup),
		string(OlderKeepers), string(FeatureLevel), string(MemberStopped), string(StatesDiffer), string(IndexFull), string(CellFull), string(NoGrants), string(SpaceLow),
		string(Disk), string(Certificate), string(PoolExhausted),
		string(SetAside), string(FrontFailed),
	}
}

// doubtful reports whether no answer of a peer in this condition may claim to be complete.
func (n Name) doubtful() bool { return n == Isolated || n == ClockOffset }

// Includes reports whether a condition says all that a milder one does: the milder one ends when it begins.
func (n Name) Includes(milder Name) bool {
	return n == NoQuorum && (milder == NoReserve || milder == NoGroup)
}

// Condition is an active condition.
type Condition struct {
	Name Name
	fault.Problem
}

// Set holds the active conditions. It is safe for concurrent use. A nil Set ignores all changes and is empty.
type Set struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	active map[Name]Condition
	doubt  atomic.Pointer[string] // nil: none
}

// NewSet returns an empty set that logs the begin and the end of each condition.
func NewSet(log *slog.Logger, now func() time.Time) *Set {
	return &Set{log: log, now: now, active: make(map[Name]Condition)}
}

// Raise begins a condition, or replaces the words of an active one. Only the begin is logged, as a warning. It ends the
// conditions that this one includes at the same moment, so that nobody sees a better one between two bad ones.
func (s *Set) Raise(n Name, p fault.Problem) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, active := s.active[n]
	p.State = cmp.Or(p.State, fault.Now)
	if active {
		p.Since = c.Since
	} else if p.Since.IsZero() {
		p.Since = s.now()
	}
	if active && p == c.Problem {
		return
	}
	s.active[n] = Condition{n, p}
	if !active {
		s.log.Warn(p.String(), "condition", string(n))
	}
	for _, c := range s.list() {
		if n.Includes(c.Name) {
			delete(s.active, c.Name)
			s.log.Info("condition became another one", "condition", string(c.Name), "now", string(n), "lasted", s.now().Sub(c.Since).Round(time.Second))
		}
	}
	s.summarize()
}

// Clear ends a condition. The end of an active one is logged.
func (s *Set) Clear(n Name) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, active := s.active[n]
	if !active {
		return
	}
	delete(s.active, n)
	s.summarize()
	s.log.Info("condition ended", "condition", string(n), "lasted", s.now().Sub(c.Since).Round(time.Second))
}

// Active returns the active conditions by name.
func (s *Set) Active() []Condition {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list()
}

// ActiveNames returns the names of the active conditions.
func (s *Set) ActiveNames() []string {
	var names []string
	for _, c := range s.Active() {
		names = append(names, string(c.Name))
	}
	return names
}

// Doubt explains why no answer may claim to be complete now. It returns "" without such a condition. It costs one
// atomic load.
func (s *Set) Doubt() string {
	if s == nil {
		return ""
	}
	if d := s.doubt.Load(); d != nil {
		return *d
	}
	return ""
}

func (s *Set) list() []Condition {
	out := make([]Condition, 0, len(s.active))
	for _, c := range s.active {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Condition) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out
}

// summarize updates doubt after a change. The caller holds mu.
func (s *Set) summarize() {
	var doubts []string
	for _, c := range s.list() {
		if c.Name.doubtful() {
			doubts = append(doubts, c.Finding())
		}
	}
	if len(doubts) == 0 {
		s.doubt.Store(nil)
		return
	}
	joined := strings.Join(doubts, "; ")
	s.doubt.Store(&joined)
}
