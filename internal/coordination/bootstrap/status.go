package bootstrap

import (
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Phase is the progress of a group bootstrap from one peer's view.
type Phase string

const (
	// Searching: the peer takes no part and looks for a certificate.
	Searching Phase = "searching"
	// Gathering: the peer waits for a visible quorum.
	Gathering Phase = "gathering"
	// Settling: a quorum is visible, and the peer waits to propose, or for another proposal.
	Settling Phase = "settling"
	// Proposing: a ballot of this peer is under way.
	Proposing Phase = "proposing"
	// Done: the certificate is known.
	Done Phase = "founded"
)

// Status describes a group bootstrap to operators: what is visible and what is missing.
type Status struct {
	Phase    Phase
	Network  NetworkID
	Group    GroupID // zero before Done
	Eligible int     // E
	Quorum   int
	Visible  []peer.ID // visible eligible peers, this one included if it votes; meaningless once Done
	Abstains string    // the reason for not voting; empty if this peer votes
	Promised Ballot    // highest
	Refused  uint64    // messages of dishonest or wrongly configured peers, since the start
}

// Status describes the bootstrap now.
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
