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
	Quorum      = 3 // measurers, and prefixes of delivering keepers, that hide a provider
	SpareInARow = 2 // measurements of this peer that others' findings replace, one after the other

	maxSubjects = 1024 // providers with findings of others
	maxHeard    = 8    // findings about one provider
)

// heard is a finding of another peer.
type heard struct {
	Finding
	by  peer.ID
	via netip.Prefix // of the keeper that delivered it; zero: unknown
}

// subject is a provider with findings of others.
type subject struct {
	heard  []heard // one of each measurer
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

// Hear records a statement that a keeper with an address in via delivered.
func (o *Opinions) Hear(st Statement, via netip.Prefix, now time.Time) {
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
		s.add(heard{Finding: f, by: st.By, via: via}, now)
		o.look(s, now)
	}
}

// add keeps the newest finding of each measurer, and the first keeper that delivered it.
func (s *subject) add(h heard, now time.Time) {
	s.heard = slices.DeleteFunc(s.heard, func(x heard) bool { return !x.current(now) })
	if i := slices.IndexFunc(s.heard, func(x heard) bool { return x.by == h.by }); i >= 0 {
		if h.CheckedAt.After(s.heard[i].CheckedAt) {
			s.heard[i] = h
		}
		return
	}
	if len(s.heard) < maxHeard {
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
	var via []netip.Prefix
	dead := 0
	for _, h := range s.heard {
		switch {
		case !h.current(now):
		case h.State == records.Unreachable:
			if dead++; h.via.IsValid() && !slices.Contains(via, h.via) {
				via = append(via, h.via)
			}
		default:
			m.Peers++
			if h.CheckedAt.After(m.CheckedAt) {
				m.State, m.RoundTrip, m.CheckedAt = h.State, h.RoundTrip, h.CheckedAt
			}
		}
	}
	if m.Peers == 0 && dead >= Quorum && len(via) >= Quorum {
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
