package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/membership"
)

func TestLevel(t *testing.T) {
	all := func(levels ...coord.Levels) (others []membership.Announced) {
		for i, l := range levels {
			others = append(others, membership.Announced{Name: string(rune('a' + i)), Levels: l})
		}
		return others
	}
	old, mid, new := coord.Levels{Min: 1, Max: 1}, coord.Levels{Min: 1, Max: 2}, coord.Levels{Min: 2, Max: 3}
	for _, c := range []struct {
		name    string
		present uint32
		own     coord.Levels
		others  []membership.Announced
		level   uint32
		held    int
	}{
		{"alone", 1, mid, nil, 2, 0},
		{"all are new", 1, mid, all(mid, mid), 2, 0},
		{"one is old", 1, mid, all(mid, old), 1, 1},
		{"one is silent", 1, mid, all(mid, coord.Levels{}), 1, 1},
		{"a silent one of a group that rose", 2, mid, all(coord.Levels{}), 2, 0},
		{"the leader is old", 1, old, all(mid, mid), 1, 0},
		{"three versions", 1, new, all(mid, old), 1, 2},
		{"the last two", 2, new, all(mid, new), 2, 1},
		{"one left the lower level", 1, mid, all(new), 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			level, held := membership.Level(c.present, c.own, c.others)
			require.Equal(t, c.level, level)
			require.Len(t, held, c.held)
		})
	}
}

// The level never falls, and rises only to a level that everybody supports.
func TestLevelIsSupported(t *testing.T) {
	levels := rapid.Custom(func(t *rapid.T) coord.Levels {
		low := rapid.Uint32Range(0, 4).Draw(t, "min")
		return coord.Levels{Min: low, Max: low + rapid.Uint32Range(0, 2).Draw(t, "more")}
	})
	rapid.Check(t, func(t *rapid.T) {
		own, present := levels.Draw(t, "own"), rapid.Uint32Range(1, 4).Draw(t, "present")
		var others []membership.Announced
		for range rapid.IntRange(0, 5).Draw(t, "others") {
			others = append(others, membership.Announced{Levels: levels.Draw(t, "levels")})
		}
		level, _ := membership.Level(present, own, others)
		require.GreaterOrEqual(t, level, present)
		for _, o := range others {
			require.True(t, level == present || o.Levels.Supports(level), "%v at %d", o.Levels, level)
		}
	})
}
