package replica

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestLeadersDiffer(t *testing.T) {
	for _, test := range []struct {
		name        string
		mine, later leaders
		differ      uint64 // the term of the contradiction; 0: none
	}{
		{"nothing applied here", nil, leaders{{3, 7, 20}}, 0},
		{"the same", leaders{{2, 7, 9}, {3, 8, 20}}, leaders{{2, 7, 9}, {3, 8, 20}}, 0},
		{"later in the same term", leaders{{2, 7, 9}}, leaders{{2, 7, 12}, {3, 8, 20}}, 0},
		{"a later term", leaders{{2, 7, 9}}, leaders{{2, 7, 9}, {3, 8, 20}}, 0},
		{"the leader was put back", leaders{{2, 7, 9}}, leaders{{2, 6, 76}}, 2},
		{"an older term goes on there", leaders{{2, 7, 9}, {6, 8, 27}}, leaders{{2, 7, 9}, {5, 8, 112}}, 6},
		{"another leader", leaders{{2, 7, 9}}, leaders{{2, 8, 9}}, 2},
		{"a term is missing there", leaders{{2, 7, 9}, {3, 7, 20}}, leaders{{2, 7, 9}, {4, 8, 30}}, 3},
		{"a term is missing here", leaders{{2, 7, 9}, {4, 8, 20}}, leaders{{2, 7, 9}, {3, 7, 11}, {4, 8, 30}}, 3},
		{"the term ended there before", leaders{{2, 7, 17}}, leaders{{2, 7, 7}, {3, 8, 30}}, 2},
		{"the term ended here before", leaders{{2, 7, 7}, {3, 8, 9}}, leaders{{2, 7, 17}, {3, 8, 30}}, 3},
		{"nothing applied there", leaders{{2, 7, 9}}, nil, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			one, differ := test.mine.differs(test.later)
			require.Equal(t, test.differ, one.term)
			require.Equal(t, test.differ != 0, differ)
		})
	}
}

// The oldest terms are dropped on one side or on both, and compared no more.
func TestLeadersAreBounded(t *testing.T) {
	var early, late leaders
	for term := uint64(1); term <= 2*maxLeaders; term++ {
		if term <= maxLeaders {
			require.NoError(t, early.note(leadership{term, 7, 10 * term}))
		}
		require.NoError(t, late.note(leadership{term, 7, 10 * term}))
	}
	require.Len(t, late, maxLeaders)
	_, differ := early.differs(late)
	require.False(t, differ)
	decoded, rest, err := decodeLeaders(snapshotData(late, []Member{{ID: 1, Peer: "one"}}))
	require.NoError(t, err)
	require.Equal(t, late, decoded)
	members, err := decodeMembers(rest)
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.ErrorIs(t, late.note(leadership{2 * maxLeaders, 8, 5000}), fault.Internal)
	for _, wrong := range []leaders{{{3, 7, 20}, {3, 8, 30}}, {{3, 7, 20}, {2, 8, 30}}, {{3, 7, 20}, {4, 8, 20}}} {
		_, _, err := decodeLeaders(wrong.appendAll(nil))
		require.ErrorIs(t, err, fault.Invalid)
	}
}

func FuzzDecodeLeaders(f *testing.F) {
	f.Add(leaders{{1, 2, 3}, {4, 5, 6}}.appendAll(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, _, err := decodeLeaders(b)
		if err != nil {
			require.ErrorIs(t, err, fault.Invalid)
			return
		}
		again, rest, err := decodeLeaders(l.appendAll(nil))
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, l, again)
	})
}
