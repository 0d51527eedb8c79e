package bootstrap

import (
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Phase says how far a founding is, as seen by one peer.
type Phase string

const (
	// Searching is the phase of a peer that takes no part and looks for a certificate.
	Searching Phase = "searching"
	// Gathering is waiting for a quorum to be visible.
	Gathering Phase = "gathering"
	// Settling is waiting, a quorum in sight, to propose or to be proposed to.
	Settling Phase = "settling"
	// Proposing is having a ballot of one's own under way.
	Proposing Phase = "proposing"
	// Done is knowing the certificate.
	Done Phase = "founded"
)

// Status describes a founding for people: what is there and what is missing.
type Status struct {
	Phase    Phase
	Network  NetworkID
	Group    GroupID // zero before Done
	Eligible int     // E
	Quorum   int
	Visible  []peer.ID // eligible peers in sight, this one included if it votes; of no meaning once Done
	Abstains string    // why this peer does not vote; "" when it does
	Promised Ballot    // highest
	Refused  uint64    // messages that no honest peer of this network sends, since the start
}

// Status describes the founding now.
func (f *Founder) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Visible = slices.Clone(s.Visible)
	return s
}

func (f *Founder) setStatus() {
	s := statusOf(f.machine)
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Refused = f.status.Refused
	f.status = s
}

func statusOf(m *machine) Status {
	s := Status{
		Phase:    phaseOf(m),
		Network:  m.id,
		Eligible: m.network.Size(),
		Quorum:   m.network.Quorum(),
		Visible:  m.peers.visible(),
		Abstains: m.abstains,
		Promised: m.state.Promised,
	}
	if m.abstains != "" {
		s.Visible = m.peers.others(s.Visible)
	}
	if c := m.state.Certificate; c != nil {
		s.Group = c.GroupID()
	}
	return s
}

func phaseOf(m *machine) Phase {
	switch {
	case m.state.Certificate != nil:
		return Done
	case m.abstains != "":
		return Searching
	case m.try != nil:
		return Proposing
	case !m.patience.since.IsZero():
		return Settling
	}
	return Gathering
}
