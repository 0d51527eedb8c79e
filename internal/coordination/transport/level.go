package transport

import (
	"maps"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// maxAnnounced bounds the members whose levels are kept, former ones included until Recheck.
const maxAnnounced = 256

// ownLevels returns this member's side of a handshake.
func (t *Transport) ownLevels() (*groupv1.Levels, uint32) {
	supported, group := t.config.Levels()
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
func (t *Transport) fits(m side) error {
	supported, group := t.config.Levels()
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
func (t *Transport) note(member uint64, m *groupv1.Levels) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.announced[member]; known || len(t.announced) < maxAnnounced {
		t.announced[member] = LevelsOf(m)
	}
}

// forgetLevels drops the levels of former members.
func (t *Transport) forgetLevels() {
	t.mu.Lock()
	announced := maps.Clone(t.announced)
	t.mu.Unlock()
	for member := range announced {
		if _, ok := t.config.Lookup(member); !ok { // without the lock, because Lookup may take others
			t.mu.Lock()
			delete(t.announced, member)
			t.mu.Unlock()
		}
	}
}

// Levels returns the feature levels that a member announced in its last handshake, in either direction; zero
// before the first.
func (t *Transport) Levels(member uint64) coord.Levels {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.announced[member]
}
