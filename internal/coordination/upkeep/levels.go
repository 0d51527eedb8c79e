package upkeep

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	maxClients = 4096             // whose levels are kept
	clientAge  = time.Minute      // of a client's levels; clients ask every 5 s
	levelQuiet = 15 * time.Second // of leadership before the level rises: every client has asked by then
	warning    = time.Minute      // between two warnings about one peer
	maxNamed   = 5                // peers in an error
)

// Levels knows the feature levels that the clients of the group announce at one member. Members announce theirs in handshakes.
// It is safe for concurrent use.
type Levels struct {
	Logger *slog.Logger

	mu      sync.Mutex
	clients map[peer.ID]announced
	full    bool // a client was not noted: the level must not rise
	held    []coord.HeldBack
	warned  map[peer.ID]time.Time
}

type announced struct {
	levels coord.Levels
	at     time.Time
}

// Asked notes the levels of a peer that asks about the group, if the peer called before or may call.
func (v *Levels) Asked(from peer.ID, theirs coord.Levels, mayCall bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.clients[from]; known || mayCall {
		v.note(from, theirs)
	}
}

// note keeps the levels of a client. Call it with mu held.
func (v *Levels) note(from peer.ID, theirs coord.Levels) {
	if _, known := v.clients[from]; known || len(v.clients) < maxClients {
		if v.clients == nil {
			v.clients = map[peer.ID]announced{}
		}
		v.clients[from] = announced{theirs, time.Now()}
		return
	}
	v.full = true
}

// Called notes the levels of a calling peer. Errors: Unsupported, field "level", if it lacks the one of the group; 0: unknown.
func (v *Levels) Called(from peer.ID, theirs coord.Levels, group uint32) error {
	v.mu.Lock()
	v.note(from, theirs)
	v.mu.Unlock()
	if group != 0 && (!theirs.Valid() || !theirs.Supports(group)) {
		return fault.Refused(fault.Unsupported, "level",
			"the group is at feature level %d, the calling peer supports %v: run another version there", group, theirs)
	}
	return nil
}

// Refused warns about a peer that does not fit the level of the group, once in a while for each.
func (v *Levels) Refused(with peer.ID, why error) {
	v.mu.Lock()
	last, known := v.warned[with]
	again := time.Since(last) > warning && (known || len(v.warned) < maxClients)
	if again {
		if v.warned == nil {
			v.warned = map[peer.ID]time.Time{}
		}
		v.warned[with] = time.Now()
	}
	v.mu.Unlock()
	if again {
		v.Logger.Warn("a peer and the coordination group do not fit", "peer", with, "error", why)
	}
}

// next returns the level to propose at the leader, or the present one. It may rise once every member and client announced the
// higher one. ofMember returns the levels of another member; led is the time since the election.
func (v *Levels) next(s replica.Status, own coord.Levels, ofMember func(id uint64) coord.Levels, led time.Duration) uint32 {
	var others []membership.Announced
	members := map[string]bool{}
	for _, m := range s.Members {
		members[m.Peer] = true
		if m.ID != s.Header.Member {
			one := membership.Announced{Name: m.Peer}
			if m.Active { // a silent one may return with another program
				one.Levels = ofMember(m.ID)
			}
			others = append(others, one)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for p, said := range v.clients {
		if time.Since(said.at) > clientAge {
			delete(v.clients, p)
			v.full = false
		} else if name := p.String(); !members[name] {
			others = append(others, membership.Announced{Name: name, Levels: said.levels})
		}
	}
	var level uint32
	if level, v.held = membership.Level(s.Level, own, others); v.full || led < levelQuiet {
		return s.Level
	}
	return level
}

// HeldBack returns the peers that keep the level down, as seen by the leader here.
func (v *Levels) HeldBack() []coord.HeldBack {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held
}

// Explain adds the peers that keep the level down to the refusal of a command above it.
func (v *Levels) Explain(err error) error {
	if err == nil || fault.KindOf(err) != fault.Unsupported || fault.FieldOf(err) != "level" {
		return err
	}
	held := v.HeldBack()
	if len(held) == 0 {
		return err
	}
	var names []string
	for _, h := range held[:min(len(held), maxNamed)] {
		if h.Levels.Valid() {
			names = append(names, fmt.Sprintf("%s (supports %v)", h.Peer, h.Levels))
		} else {
			names = append(names, h.Peer+" (not heard by this leader)")
		}
	}
	if more := len(held) - maxNamed; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fault.Refused(fault.Unsupported, "level", "%s; kept down by %s", fault.Message(err), strings.Join(names, ", "))
}
