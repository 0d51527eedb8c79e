package witness

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// The weight of others' findings.
const (
	Quorum      = 3 // measurers, and their address prefixes, that hide a provider or an offer
	SpareInARow = 2 // measurements of this peer that others' findings replace, one after the other

	maxSubjects = 1024 // providers with findings of others
	maxHeard    = 8    // findings about one provider
)

// Heard is a finding of another peer.
type Heard struct {
	Finding
	By   peer.ID
	From netip.Prefix // of the measurer, if it delivered the finding itself; zero: unknown
}

// Renew keeps the newer finding of a measurer in a list, and the network that its own connection showed. It reports false, and changes
// nothing, if the list has none of that measurer.
func Renew(list []Heard, h Heard) bool {
	i := slices.IndexFunc(list, func(x Heard) bool { return x.By == h.By })
	if i < 0 {
		return false
	}
	if !h.From.IsValid() {
		h.From = list[i].From
	}
	if !h.CheckedAt.After(list[i].CheckedAt) {
		h.Finding = list[i].Finding
	}
	list[i] = h
	return true
}

// Agree reports whether the measurers of a list are a quorum: at least Quorum known networks.
func Agree(list []Heard) bool { return Networks(list) >= Quorum }

// Networks counts the known networks of the measurers of a list.
func Networks(list []Heard) int {
	var networks []netip.Prefix
	for _, h := range list {
		if h.From.IsValid() && !slices.Contains(networks, h.From) {
			networks = append(networks, h.From)
		}
	}
	return len(networks)
}

// subject is a provider with findings of others.
type subject struct {
	heard  []Heard // one of each measurer
	spared int     // measurements of this peer replaced since its last own one
	hidden bool    // as of the last look
}

// Opinions are the findings of others that this peer received. It is safe for concurrent use.
type Opinions struct {
	epoch atomic.Uint64 // grows with each change of the hidden providers

	mu       sync.Mutex // guards the fields below
	subjects *simplelru.LRU[peer.ID, *subject]
	hidden   int // number of hidden providers
}

// NewOpinions returns Opinions without a finding.
func NewOpinions() *Opinions {
	o := &Opinions{}
	subjects, err := simplelru.NewLRU(maxSubjects, func(_ peer.ID, s *subject) {
		o.setHidden(s, false)
	})
	if err != nil {
		panic("witness: " + err.Error()) // impossible: the size is a positive constant
	}
	o.subjects = subjects
	return o
}

// Hear records a statement. from is the network of its measurer, if that delivered it; zero: unknown.
func (o *Opinions) Hear(st Statement, from netip.Prefix, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range st.Findings {
		if f.Record != "" {
			continue // about an endpoint
		}
		s, ok := o.subjects.Get(f.Provider)
		if !ok {
			s = &subject{}
			o.subjects.Add(f.Provider, s)
		}
		s.add(Heard{Finding: f, By: st.By, From: from}, now)
		o.look(s, now)
	}
}

// add keeps the newest finding of each measurer.
func (s *subject) add(h Heard, now time.Time) {
	s.heard = slices.DeleteFunc(s.heard, func(x Heard) bool { return !x.current(now) })
	if !Renew(s.heard, h) && len(s.heard) < maxHeard {
		s.heard = append(s.heard, h)
	}
}

// look updates whether a provider is hidden.
func (o *Opinions) look(s *subject, now time.Time) {
	_, hidden := s.finding(now)
	o.setHidden(s, hidden)
}

func (o *Opinions) setHidden(s *subject, hidden bool) {
	if hidden == s.hidden {
		return
	}
	s.hidden = hidden
	o.epoch.Add(1)
	if hidden {
		o.hidden++
	} else {
		o.hidden--
	}
}

// finding returns the newest finding of others that the provider lives, or that it is unreachable if it is hidden.
func (s *subject) finding(now time.Time) (m records.Measured, hidden bool) {
	var dead []Heard
	for _, h := range s.heard {
		switch {
		case !h.current(now):
		case h.State == records.Unreachable:
			dead = append(dead, h)
		default:
			m.Peers++
			if h.CheckedAt.After(m.CheckedAt) {
				m.State, m.RoundTrip, m.CheckedAt = h.State, h.RoundTrip, h.CheckedAt
			}
		}
	}
	if m.Peers == 0 && Agree(dead) {
		return s.gone(now), true
	}
	return m, false
}

// gone is the common finding of all measurers that the provider is unreachable.
func (s *subject) gone(now time.Time) records.Measured {
	m := records.Measured{State: records.Unreachable}
	for _, h := range s.heard {
		if !h.current(now) {
			continue
		}
		m.Peers++
		if h.CheckedAt.After(m.CheckedAt) {
			m.CheckedAt = h.CheckedAt
		}
		if m.Since.IsZero() || h.CheckedAt.Before(m.Since) {
			m.Since = h.CheckedAt
		}
	}
	return m
}

// Measured returns the opinion of others about a provider, false without one. An own finding wins: ask for it
// first.
func (o *Opinions) Measured(id peer.ID, now time.Time) (records.Measured, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, ok := o.subjects.Peek(id)
	if !ok {
		return records.Measured{}, false
	}
	m, _ := s.finding(now)
	return m, m.State != ""
}

// Spare reports whether others' findings replace a measurement of this peer, and counts it.
func (o *Opinions) Spare(id peer.ID, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, ok := o.subjects.Peek(id)
	if !ok {
		return false
	}
	m, _ := s.finding(now)
	if m.State != records.Reachable && m.State != records.Busy || s.spared >= SpareInARow {
		s.spared = 0 // this peer measures now
		return false
	}
	s.spared++
	return true
}

// Hidden returns the providers that others found unreachable, sorted.
func (o *Opinions) Hidden(now time.Time) []peer.ID {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hidden == 0 {
		return nil
	}
	var ids []peer.ID
	for _, id := range o.subjects.Keys() {
		s, _ := o.subjects.Peek(id)
		if o.look(s, now); s.hidden {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Epoch grows with each change of the hidden providers.
func (o *Opinions) Epoch() uint64 {
	return o.epoch.Load()
}
