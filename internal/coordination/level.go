package coordination

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	maxClients  = 4096             // whose levels are kept
	remembering = time.Minute      // of a client's levels after its last question; clients ask every 5 s
	levelQuiet  = 15 * time.Second // of leadership before the level rises: every client has asked by then
	warning     = time.Minute      // between two warnings about one peer
)

// levels knows the feature levels that the clients of the group announce in their questions, and raises the level
// of the group while this peer leads. Members announce theirs in handshakes.
type levels struct {
	plane *Plane

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

func newLevels(p *Plane) *levels {
	return &levels{plane: p, clients: map[peer.ID]announced{}, warned: map[peer.ID]time.Time{}}
}

// own returns the levels that this program supports.
func (v *levels) own() coord.Levels { return v.plane.config.Replica.Levels() }

// group returns the feature level of the group as applied here; 0 without a member.
func (v *levels) group() uint32 {
	if l := v.plane.here.Load(); l != nil {
		return l.level()
	}
	return 0
}

// level returns the feature level of the group as applied here; 0 before this member has a state.
func (l *local) level() uint32 {
	if l.member == nil {
		return 0
	}
	return l.member.Status().Level
}

// hear notes the levels of a peer that asks about the group, if the peer called before or may call.
func (v *levels) hear(from peer.ID, said coord.Levels) {
	named := v.plane.config.Access.names(v.plane.config.Network, from)
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.clients[from]; known || named {
		v.note(from, said)
	}
}

// note keeps the levels of a client. Call it with mu held.
func (v *levels) note(from peer.ID, said coord.Levels) {
	if _, known := v.clients[from]; known || len(v.clients) < maxClients {
		v.clients[from] = announced{said, time.Now()}
		return
	}
	v.full = true
}

// read checks the level of the group that a member describes.
func (v *levels) read(group uint32) {
	if group == 0 {
		return
	}
	if own := v.own(); !own.Supports(group) {
		v.plane.config.Conditions.Raise(condition.FeatureLevel,
			"the coordination group is at feature level %d, this program supports %v: run another version of it", group, own)
		return
	}
	v.plane.config.Conditions.Clear(condition.FeatureLevel)
}

// refused warns about a peer that does not fit the level of the group, once in a while for each.
func (v *levels) refused(with peer.ID, why error) {
	v.mu.Lock()
	last := v.warned[with]
	again := time.Since(last) > warning && (len(v.warned) < maxClients || !last.IsZero())
	if again {
		v.warned[with] = time.Now()
	}
	v.mu.Unlock()
	if again {
		v.plane.config.Logger.Warn("a peer and the coordination group do not fit", "peer", with, "error", why)
	}
}

// raise proposes a higher level of the group, if every member and client announced it. led is the time since this
// peer's election.
func (v *levels) raise(l *local, s replica.Status, led time.Duration) {
	level, held := membership.Level(s.Level, v.own(), v.others(l, s))
	v.mu.Lock()
	v.held = held
	full := v.full
	v.mu.Unlock()
	if level == s.Level || full || led < levelQuiet {
		return
	}
	ctx, cancel := context.WithTimeout(v.plane.life, askTime)
	defer cancel()
	if err := l.Apply(ctx, &coord.SetLevel{Level: level}); err != nil {
		v.plane.config.Logger.Warn("the feature level of the group was not raised", "level", level, "error", err)
		return
	}
	v.plane.config.Logger.Info("raised the feature level of the group", "level", level)
}

// others returns the other members and the recent clients.
func (v *levels) others(l *local, s replica.Status) (all []membership.Announced) {
	members := map[string]bool{v.plane.name: true}
	for _, m := range s.Members {
		members[m.Peer] = true
		if m.ID != s.Header.Member {
			one := membership.Announced{Name: m.Peer}
			if m.Active { // a silent one may return with another program
				one.Levels = l.wire.Levels(m.ID)
			}
			all = append(all, one)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for p, said := range v.clients {
		if time.Since(said.at) > remembering {
			delete(v.clients, p)
			v.full = false
		} else if name := p.String(); !members[name] {
			all = append(all, membership.Announced{Name: name, Levels: said.levels})
		}
	}
	return all
}

// heldBack returns the peers that keep the level down, in the eyes of the leader here.
func (v *levels) heldBack() []coord.HeldBack {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held
}

// explain adds the peers that keep the level down to the refusal of a command above it.
func (v *levels) explain(err error) error {
	if err == nil || fault.KindOf(err) != fault.Unsupported || fault.FieldOf(err) != "level" {
		return err
	}
	held := v.heldBack()
	if len(held) == 0 {
		return err
	}
	const most = 5
	var names []string
	for _, h := range held[:min(len(held), most)] {
		if h.Levels.Valid() {
			names = append(names, fmt.Sprintf("%s (supports %v)", h.Peer, h.Levels))
		} else {
			names = append(names, h.Peer+" (never connected)")
		}
	}
	if more := len(held) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fault.Refused(fault.Unsupported, "level", "%s; kept down by %s", fault.Message(err), strings.Join(names, ", "))
}

// levelsKey is the gRPC metadata with the levels that a calling peer supports, as MIN-MAX.
const levelsKey = "blackhole-levels"

// announceLevels returns the metadata of this program.
func announceLevels() string {
	own := machine.Current().Levels
	return fmt.Sprintf("%d-%d", own.Min, own.Max)
}

// admit notes the levels of a calling peer, and refuses it without the level of the group.
func (v *levels) admit(from peer.ID, said []string) error {
	var theirs coord.Levels
	if len(said) == 1 {
		low, high, _ := strings.Cut(said[0], "-")
		least, _ := strconv.ParseUint(low, 10, 32) // a failure leaves an invalid range
		most, _ := strconv.ParseUint(high, 10, 32)
		theirs = coord.Levels{Min: uint32(least), Max: uint32(most)}
	}
	v.mu.Lock()
	v.note(from, theirs)
	v.mu.Unlock()
	group := v.group()
	if group == 0 {
		return nil
	}
	if !theirs.Valid() || !theirs.Supports(group) {
		return fault.Refused(fault.Unsupported, "level",
			"the group is at feature level %d, the calling peer supports %v: run another version there", group, theirs)
	}
	return nil
}
