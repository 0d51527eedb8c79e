package machine_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// next returns the features of a later version, in which the removal of requirements is new.
func next() machine.Features {
	return machine.Features{
		Levels: coord.Levels{Min: 1, Max: 2}, Since: map[string]uint32{"delete_requirement": 2},
	}
}

// former returns the features of the version before next, which does not know its command.
func former() machine.Features {
	return machine.Features{Levels: coord.Levels{Min: 1, Max: 1}, Since: map[string]uint32{"delete_requirement": 2}}
}

// An entry states the level of its command. A member stops at an entry that its version cannot read, and at
// one that the group cannot hold.
func TestEntriesHaveLevels(t *testing.T) {
	later, level, err := next().Encode(coordtest.Command(alice, &apiv1.DeleteRequirementRequest{Name: "r"}), 0)
	require.NoError(t, err)
	require.EqualValues(t, 2, level)
	raise, level, err := next().Encode(coordtest.Command("", &coordv1.SetLevel{Level: 2}), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, level, "the old must be able to read it")
	first, level, err := next().Encode(coordtest.Command(alice, write(put("a", "b", 0))), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, level)
	for _, c := range []struct {
		name  string
		who   machine.Features
		entry []byte
		group uint32
		kind  fault.Kind
		ok    bool
	}{
		{"a command of the first level", former(), first, 1, 0, true},
		{"the same at a later level", next(), first, 2, 0, true},
		{"a command of the level", next(), later, 2, 0, true},
		{"a command above the group's level", next(), later, 1, fault.Invalid, false},
		{"a command of a later version", former(), later, 2, fault.Unsupported, false},
		{"a level of a later version", former(), raise, 1, fault.Unsupported, false},
		{"a level of this version", next(), raise, 1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.who.Decode(c.entry, c.group)
			if c.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.kind)
			require.Equal(t, "level", fault.FieldOf(err), "%v", err)
		})
	}
}

// The level never falls, lives in snapshots and decides who can read them.
func TestLevelRises(t *testing.T) {
	l := newLog()
	require.EqualValues(t, 1, l.Level())
	old := l.Snapshot()
	before := l.StateHash()
	l.refused(t, fault.Conflict, "level", &coordv1.SetLevel{Level: 1})
	l.must(t, &coordv1.SetLevel{Level: 2})
	require.Equal(t, coord.FirstRevision, l.Revision())
	require.NotEqual(t, before, l.StateHash())
	l.refused(t, fault.Conflict, "level", &coordv1.SetLevel{Level: 2})
	l.refused(t, fault.Conflict, "level", &coordv1.SetLevel{})

	m, err := next().RestoreFrom(bytes.NewReader(l.Snapshot()))
	require.NoError(t, err)
	require.EqualValues(t, 2, m.Level())
	require.Equal(t, l.StateHash(), m.StateHash())
	_, err = former().RestoreFrom(bytes.NewReader(l.Snapshot()))
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "the snapshot has feature level 2, this program supports 1")
	m, err = next().RestoreFrom(bytes.NewReader(old))
	require.NoError(t, err)
	require.EqualValues(t, 1, m.Level(), "a later version keeps the level of the group")
	require.Equal(t, old, m.Snapshot(), "and writes its format")
}

// TestAddresses: the addresses of the members are part of the state and of its hash, and no revision: applications do
// not see them. Too many, or too long ones, change nothing.
func TestAddresses(t *testing.T) {
	l := newLog()
	before := l.StateHash()
	full := slices.Repeat([][]byte{bytes.Repeat([]byte{7}, 256)}, 256)
	l.must(t, &coordv1.SetAddresses{Multiaddrs: full})
	require.Equal(t, coord.FirstRevision, l.Revision())
	require.NotEqual(t, before, l.StateHash())
	l.refused(t, fault.Invalid, "multiaddrs", &coordv1.SetAddresses{Multiaddrs: append(full, []byte{1})})
	l.refused(t, fault.Invalid, "multiaddrs", &coordv1.SetAddresses{Multiaddrs: [][]byte{make([]byte, 257)}})
	m, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, full, m.Addresses())
	require.Equal(t, l.StateHash(), m.StateHash())
}
