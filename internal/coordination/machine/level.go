package machine

import (
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Features is the knowledge of one version of the program. A new kind of command, or a new format of
// snapshots, comes with a new highest level and, for a command, a row in Since. The last two versions
// must work in one group: the lowest level rises one version after the highest.
type Features struct {
	// Levels of groups that the program supports.
	Levels coord.Levels
	// Since gives the level that introduced a kind of command, by the request's field in
	// blackhole.coord.v1.Command. A kind without a row is of the first level.
	Since map[string]uint32
}

// Current returns the features of this program.
func Current() Features {
	return Features{Levels: coord.Levels{Min: coord.FirstLevel, Max: coord.FirstLevel}}
}

// levelOf returns the level that introduced a request; 0 for a message without one.
func (f Features) levelOf(m *coordv1.Command) uint32 {
	switch m.GetRequest().(type) {
	case nil, *coordv1.Command_KeepAlive: // no entry of the log
		return 0
	}
	if len(f.Since) > 0 {
		r := m.ProtoReflect()
		field := r.WhichOneof(r.Descriptor().Oneofs().ByName("request"))
		if since := f.Since[string(field.Name())]; since > 0 {
			return since
		}
	}
	return coord.FirstLevel
}

// check refuses a log entry that a group at a level cannot hold, or that this program cannot apply.
func (f Features) check(m *coordv1.Command, group uint32) error {
	needs := f.levelOf(m)
	switch {
	case m.GetLevel() > f.Levels.Max || needs > f.Levels.Max:
		return fault.Refused(fault.Unsupported, "level", "a log entry needs feature level %d, this program supports %v", max(m.GetLevel(), needs), f.Levels)
	case needs == 0:
		return fault.Invalidf("op", nil, "is missing, or not known at feature level %d", m.GetLevel())
	case m.GetLevel() != needs:
		return fault.Invalidf("level", m.GetLevel(), "the request belongs to feature level %d", needs)
	case needs > group:
		return fault.Invalidf("level", needs, "the group is at feature level %d", group)
	}
	if raise := m.GetSetLevel().GetLevel(); raise > f.Levels.Max {
		return fault.Refused(fault.Unsupported, "level", "the group goes to feature level %d, this program supports %v", raise, f.Levels)
	}
	return nil
}

func setLevel(m *Machine, r *coordv1.SetLevel) error {
	if r.GetLevel() <= m.level {
		return fault.Refused(fault.Conflict, "level", "the present one is %d", m.level)
	}
	m.level = r.GetLevel()
	return nil
}
