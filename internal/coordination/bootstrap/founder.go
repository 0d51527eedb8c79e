package bootstrap

import (
	"bytes"
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
	// Expect is the number of peers that have to see each other before the lowest of them founds, without a list of founders; below 2:
	// it founds after Settle.
	Expect int
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
	word     *Membership // see State
	visible  int         // founders in sight at the last look, this peer included
	settling time.Time   // start of the settling time; zero: a lower peer may found
}

// New returns the Founder of the peer of a Store.
func New(o Options) *Founder {
	f := &Founder{Options: o, Network: o.Store.network, self: o.Store.self, founded: make(chan struct{}), visible: 1}
	state := o.Store.State()
	f.left, f.floor, f.word = state.Left, state.Floor, state.Word
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
		return f.Store.Amnesia()
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

// Candidate is a peer that says now that it may found in the same network and knows no group.
type Candidate struct {
	Peer peer.ID
	Word []byte // as Founder.Word
}

// Word returns the encoded group that this peer wants to found or lets another one found; nil: none.
func (f *Founder) Word() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.word == nil || f.group != nil {
		return nil
	}
	return f.word.Encode()
}

// Look founds the group if it is time. others answered after the look before, and are trusted. Errors: as Store.Save and
// Options.Disk; the process must end.
func (f *Founder) Look(now time.Time, others []Candidate) error {
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
			if p != f.self && slices.ContainsFunc(others, func(c Candidate) bool { return c.Peer == p }) {
				f.visible++
			}
		}
		if f.visible < f.Network.Quorum() {
			return nil
		}
		return f.learn(f.Network.Membership())
	}
	if f.Expect > 1 {
		return f.expect(others)
	}
	switch lower := slices.ContainsFunc(others, func(c Candidate) bool { return c.Peer < f.self }); {
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

// expect lets the lowest of Expect peers found alone, once the others gave it their word. A word is on the disk before others hear of it,
// and ends when the peer that it was given to names another group or none: that peer then founds the first one never. So two groups
// need twice Expect peers. f.mu is held.
func (f *Founder) expect(others []Candidate) error {
	if f.word != nil && f.word.founder() != f.self {
		i := slices.IndexFunc(others, func(c Candidate) bool { return c.Peer == f.word.founder() })
		if i < 0 || bytes.Equal(others[i].Word, f.word.Encode()) {
			return nil
		}
		if err := f.give(nil); err != nil {
			return err
		}
	}
	if f.word != nil && f.word.Voters[0].RaftID != f.Disk.Member() { // the disk of that member is lost
		if err := f.give(nil); err != nil {
			return err
		}
	}
	given, free, lowest, first := 1, 1, f.self, f.word // first is the word of the lowest peer that wants to found
	for _, c := range others {
		if len(c.Word) == 0 {
			free, lowest = free+1, min(lowest, c.Peer)
			continue
		}
		word, err := f.Network.Recognize(c.Word)
		switch {
		case err != nil || word.Listed():
		case f.word != nil && word.GroupID() == f.word.GroupID():
			given++
		case word.founder() == c.Peer && (first == nil || c.Peer < first.founder()):
			first = &word
		}
	}
	f.visible = max(given, free)
	switch {
	case f.word != nil && given >= f.Expect:
		return f.learn(*f.word)
	case first != nil:
		return f.give(first)
	case free < f.Expect || lowest != f.self:
		return nil
	}
	alone := f.Network.Alone(Voter{Peer: f.self, RaftID: f.Disk.Member()})
	return f.give(&alone)
}

// give makes a word durable; nil: none. f.mu is held.
func (f *Founder) give(word *Membership) error {
	if f.word == word {
		return nil
	}
	state := f.Store.State()
	state.Word = word
	if err := f.Store.Save(state); err != nil {
		return err
	}
	f.word = word
	return nil
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
	state.Group, state.Word = &m, nil
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
	} else if f.Expect > 1 {
		text = fmt.Sprintf("the group is not founded: %d of %d expected peers with the key in sight", f.visible, f.Expect)
	}
	if f.word != nil && f.word.founder() != f.self {
		text += fmt.Sprintf("; this peer lets %s found it: start that one, or start this one with another data directory", f.word.founder())
	}
	if why := f.Abstains(); why != "" {
		text += "; this one founds nothing: " + why
	}
	return text
}
