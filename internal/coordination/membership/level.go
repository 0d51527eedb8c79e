package membership

import "github.com/blackhole/blackhole/internal/contract/coord"

// Announced is a peer with the feature levels that it announced; zero while it has announced none.
type Announced struct {
	Name   string
	Levels coord.Levels
}

// Level decides on the feature level of a group at its leader, which supports the levels own. It returns the
// level to propose, or the present one, and the peers that keep it below the leader's highest. A silent member
// counts as one that supports no higher level, because it may return with an old program.
func Level(present uint32, own coord.Levels, others []Announced) (level uint32, held []coord.HeldBack) {
	if present >= own.Max {
		return present, nil
	}
	level = own.Max
	for _, o := range others {
		if o.Levels.Valid() && o.Levels.Max >= own.Max {
			continue
		}
		level = min(level, o.Levels.Max)
		held = append(held, coord.HeldBack{Peer: o.Name, Levels: o.Levels})
	}
	level = max(level, present)
	for _, o := range others {
		if level > present && !o.Levels.Supports(level) { // older members cannot run at its minimum level
			level = present
		}
	}
	return level, held
}
