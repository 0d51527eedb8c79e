package transport

import (
	"maps"
	"slices"
	"sync"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// memberLevels is the part of a handshake about feature levels. It is safe for concurrent use.
type memberLevels struct {
	// here returns the levels that this member supports, and the level of the group; see Config.Levels.
	here func() (supported coord.Levels, group uint32)

	mu        sync.Mutex
	announced map[uint64]coord.Levels // by members, in their last handshake
}

// maxAnnounced bounds the members whose levels are kept, former ones included until Recheck.
const maxAnnounced = 256

// own returns this member's side of a handshake.
func (l *memberLevels) own() (*groupv1.Levels, uint32) {
	supported, group := l.here()
	return &groupv1.Levels{Min: supported.Min, Max: supported.Max}, group
}

// LevelsOf converts the feature levels that a peer announced; zero without any.
func LevelsOf(m *groupv1.Levels) coord.Levels { return coord.Levels{Min: m.GetMin(), Max: m.GetMax()} }

// side is the other side's message of a handshake.
type side interface {
	GetLevels() *groupv1.Levels
	GetLevel() uint32
}

// fits checks whether the other side of a handshake supports the group's feature level as known here, and the
// other way round. A side without the state of the group says 0 and fits any level.
func (l *memberLevels) fits(m side) error {
	supported, group := l.here()
	theirs := LevelsOf(m.GetLevels())
	switch {
	case !theirs.Valid():
		return fault.New("", fault.Unsupported, "the member announces no feature levels: upgrade it")
	case group != 0 && !theirs.Supports(group):
		return fault.New("", fault.Unsupported, "the group is at feature level %d, the member supports %v: give it a program of another version", group, theirs)
	case m.GetLevel() != 0 && !supported.Supports(m.GetLevel()):
		return fault.New("", fault.Unsupported, "the group is at feature level %d, this member supports %v: give it a program of another version", m.GetLevel(), supported)
	}
	return nil
}

// note keeps the levels of a member.
func (l *memberLevels) note(member uint64, m *groupv1.Levels) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.announced[member]; known || len(l.announced) < maxAnnounced {
		l.announced[member] = LevelsOf(m)
	}
}

// of returns the levels of a member; zero before its first handshake.
func (l *memberLevels) of(member uint64) coord.Levels {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.announced[member]
}

// keep drops former members. Its question runs without the lock, because it may take others.
func (l *memberLevels) keep(present func(member uint64) bool) {
	l.mu.Lock()
	members := slices.Collect(maps.Keys(l.announced))
	l.mu.Unlock()
	for _, member := range members {
		if !present(member) {
			l.mu.Lock()
			delete(l.announced, member)
			l.mu.Unlock()
		}
	}
}

// Levels returns the feature levels that a member announced in its last handshake, in either direction; zero
// before the first.
func (t *Transport) Levels(member uint64) coord.Levels { return t.levels.of(member) }
