package replica

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzMembers(f *testing.F) {
	f.Add(encodeMembers([]Member{{ID: 1, Peer: "one"}, {ID: 1 << 63, Peer: "two"}}))
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		members, err := decodeMembers(b)
		if err != nil {
			return
		}
		again, err := decodeMembers(encodeMembers(members))
		require.NoError(t, err)
		require.Equal(t, members, again)
	})
}

func TestMembersHaveOneOrder(t *testing.T) {
	a, b := Member{ID: 1, Peer: "one"}, Member{ID: 2, Peer: "two"}
	require.True(t, bytes.Equal(encodeMembers([]Member{a, b}), encodeMembers([]Member{b, a})))
	_, err := decodeMembers(append(encodeMembers([]Member{b}), encodeMembers([]Member{a})...))
	require.Error(t, err)
}
