package witness

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// The weight of others' findings.
const (
	Quorum      = 3 // measurers, and their address prefixes, that hide a provider or an offer at one of them
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

// Networks counts the known networks of the measurers of a list.
func Networks(list []Heard) int {
	var room [maxHeard]netip.Prefix
	networks := room[:0]
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
}

// Opinions are the findings of others that this peer received. It is safe for concurrent use.
type Opinions struct {
	mu       sync.Mutex // guards subjects
	subjects *simplelru.LRU[peer.ID, *subject]
}

// NewOpinions returns Opinions without a finding.
func NewOpinions() *Opinions {
	subjects, err := simplelru.NewLRU[peer.ID, *subject](maxSubjects, nil)
	if err != nil {
		panic("witness: " + err.Error()) // impossible: the size is a positive constant
	}
	return &Opinions{subjects: subjects}
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
	}
}

// add keeps the newest finding of each measurer. A new measurer takes the place of the one heard first.
func (s *subject) add(h Heard, now time.Time) {
	s.heard = slices.DeleteFunc(s.heard, func(x Heard) bool { return !x.current(now) })
	if !Renew(s.heard, h) {
		s.heard = append(s.heard[max(0, len(s.heard)+1-maxHeard):], h)
	}
}

// finding returns the newest finding of others that the provider lives, and those who got no answer since.
func (s *subject) finding(now time.Time) (m records.Measured, gone []Heard) {
	for _, h := range s.heard {
		if h.current(now) && h.State != records.Unreachable {
			m.Peers++
			if h.CheckedAt.After(m.CheckedAt) {
				m.State, m.RoundTrip, m.CheckedAt = h.State, h.RoundTrip, h.CheckedAt
			}
		}
	}
	for _, h := range s.heard {
		if h.current(now) && h.State == records.Unreachable && h.CheckedAt.After(m.CheckedAt) {
			gone = append(gone, h)
		}
	}
	return m, gone
}

// Gone returns who got no answer of a provider since anybody did.
func (o *Opinions) Gone(id peer.ID, now time.Time) []Heard {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, ok := o.subjects.Peek(id)
	if !ok {
		return nil
	}
	_, gone := s.finding(now)
	return gone
}

// Measured returns the newest finding of others that a provider lives, false without one. An own finding wins: ask for it
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
