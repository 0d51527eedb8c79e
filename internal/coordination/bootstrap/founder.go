package bootstrap

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Options configures a Founder.
type Options struct {
	Store *Store // not closed by the Founder

	// Disk is the member's. nil: the peer founds nothing and only looks for a group.
	Disk interface {
		Member() uint64
		// Assume gives a disk without a group another member id.
		Assume(member uint64) error
	}

	// Settle is the wait of a peer without a list of founders for neighbours that may found too; 0: none.
	Settle time.Duration
	Logger *slog.Logger
}

// Founder knows the group of a peer, or finds or founds it. It is safe for concurrent use.
type Founder struct {
	Options
	Network Network
	self    peer.ID
	founded chan struct{}
	left    []GroupID
	floor   int64

	mu       sync.Mutex
	group    *Membership
	visible  int       // founders in sight at the last look, this peer included
	settling time.Time // start of the settling time; zero: a lower peer may found
}

// New returns the Founder of the peer of a Store.
func New(o Options) *Founder {
	f := &Founder{Options: o, Network: o.Store.network, self: o.Store.self, founded: make(chan struct{}), visible: 1}
	state := o.Store.State()
	f.left, f.floor = state.Left, state.Floor
	if f.group = state.Group; f.group != nil {
		close(f.founded)
	}
	return f
}

// Abstains returns the reason for which the peer founds nothing; empty if it may.
func (f *Founder) Abstains() string {
	switch {
	case !f.Network.Eligible(f.self):
		return "it is not among the founders"
	case f.Store.Amnesia() != "":
		return "it may have voted and forgot: " + f.Store.Amnesia()
	case f.Disk == nil:
		return "it founds no group"
	}
	return ""
}

// Left returns the groups from which this peer went over to the present one, and the revision that the present one had then.
func (f *Founder) Left() ([]GroupID, int64) { return f.left, f.floor }

// Founding returns the network in which this peer may found; false once it knows a group, or if it abstains.
func (f *Founder) Founding() (id NetworkID, ok bool) {
	if _, known := f.Group(); known || f.Abstains() != "" {
		return id, false
	}
	return f.Network.ID(), true
}

// Look founds the group if it is time. others are the peers that say now that they may found in the same network and know no
// group. Errors: as Store.Save and Options.Disk; the process must end.
func (f *Founder) Look(now time.Time, others []peer.ID) error {
	if _, may := f.Founding(); !may {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.group != nil {
		return nil
	}
	if f.Network.Listed() {
		f.visible = 1
		for _, p := range f.Network.founders() {
			if p != f.self && slices.Contains(others, p) {
				f.visible++
			}
		}
		if f.visible < f.Network.Quorum() {
			return nil
		}
		return f.learn(f.Network.Membership())
	}
	switch lower := slices.ContainsFunc(others, func(p peer.ID) bool { return p < f.self }); {
	case lower:
		f.settling = time.Time{}
		return nil
	case f.settling.IsZero():
		f.settling = now
	}
	if now.Sub(f.settling) < f.Settle {
		return nil
	}
	return f.learn(f.Network.Alone(Voter{Peer: f.self, RaftID: f.Disk.Member()}))
}

// Offer takes an encoded membership of any origin: gossip, the DHT, or a description of the group. One that a trusted peer
// vouches for may name other founders. Without a list of founders only such ones count.
//
// Errors: as Network.Open and Recognize, then nothing changes; as Look.
func (f *Founder) Offer(membership []byte, vouched bool) error {
	const op = "bootstrap.Offer"
	open := f.Network.Open
	if vouched {
		open = f.Network.Recognize
	}
	m, err := open(membership)
	if err != nil {
		return fault.Wrap(op, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.group != nil {
		return nil
	}
	return fault.Wrap(op, f.learn(m))
}

// learn stores the group. A listed founder with its first disk is an initial voter: it takes the raft id of the list before the
// group is known, so that a later disk never has that id.
func (f *Founder) learn(m Membership) error {
	if v, first := m.Voter(f.self); first && m.Listed() && f.Abstains() == "" {
		if err := f.Disk.Assume(v.RaftID); err != nil {
			return err
		}
	}
	state := f.Store.State()
	state.Group = &m
	if err := f.Store.Save(state); err != nil {
		return err
	}
	f.group = &m
	f.Logger.Info("the coordination group is known", "group", m.GroupID(), "initial voters", len(m.Voters))
	close(f.founded)
	return nil
}

// Founded returns a channel that is closed once the group is known.
func (f *Founder) Founded() <-chan struct{} { return f.founded }

// Group returns the group of this peer; it never changes.
func (f *Founder) Group() (Membership, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.group == nil {
		return Membership{}, false
	}
	return *f.group, true
}

// Lacks says what a founder without a group waits for.
func (f *Founder) Lacks() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := "the group is not founded: this peer waits for neighbours that may found too"
	if f.Network.Listed() {
		text = fmt.Sprintf("the group is not founded: %d of %d founders in sight, %d needed", f.visible, len(f.Network.Founders), f.Network.Quorum())
	}
	if why := f.Abstains(); why != "" {
		text += "; this one founds nothing: " + why
	}
	return text
}
