package bootstrap

import (
	"crypto/rand"
	"slices"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blackhole/blackhole/pkg/fault"
)

// keyring makes n keys, ascending by peer id.
func keyring(t testing.TB, n int) (keys []crypto.PrivKey, ids []peer.ID) {
	byID := map[peer.ID]crypto.PrivKey{}
	for range n {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		id, err := peer.IDFromPrivateKey(key)
		require.NoError(t, err)
		byID[id], ids = key, append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		keys = append(keys, byID[id])
	}
	return keys, ids
}

func listed(ids ...peer.ID) Network { return Network{Name: "test", Founders: ids} }

func unlisted() Network { return Network{Name: "test"} }

// TestListedFoundersAgree: all founders derive one membership, in whatever order they list each other.
func TestListedFoundersAgree(t *testing.T) {
	_, ids := keyring(t, 4)
	m := listed(ids[:3]...).Membership()
	require.Equal(t, m, listed(ids[2], ids[0], ids[1]).Membership())
	require.True(t, m.Listed())
	require.Equal(t, ids[:3], m.Founders())
	raft := map[uint64]bool{}
	for _, v := range m.Voters {
		raft[v.RaftID] = true
		require.NotZero(t, v.RaftID)
	}
	require.Len(t, raft, 3)
	other := listed(ids[1:]...).Membership()
	require.NotEqual(t, m.GroupID(), other.GroupID())
	for _, v := range other.Voters {
		require.False(t, raft[v.RaftID], "another group, another id: an old disk is no member of it")
	}
	renamed := listed(ids[:3]...)
	renamed.Name = "another"
	require.NotEqual(t, m.GroupID(), renamed.Membership().GroupID())
	opened, err := listed(ids[:3]...).Open(m.Encode())
	require.NoError(t, err)
	require.Equal(t, m, opened)
	largest, ninth := keyring(t, MaxFounders)
	require.Len(t, largest, MaxFounders)
	require.LessOrEqual(t, len(listed(ninth...).Membership().Encode()), MaxMembershipBytes)
}

// TestAloneIsUnique: a peer that founds alone again founds another group.
func TestAloneIsUnique(t *testing.T) {
	_, ids := keyring(t, 1)
	a, b := unlisted().Alone(Voter{ids[0], 7}), unlisted().Alone(Voter{ids[0], 7})
	require.NotEqual(t, a.GroupID(), b.GroupID())
	require.False(t, a.Listed())
	got, err := unlisted().Recognize(a.Encode())
	require.NoError(t, err)
	require.Equal(t, a, got)
	got, err = listed(ids...).Recognize(a.Encode())
	require.NoError(t, err, "whatever founders this peer lists")
	require.Equal(t, a, got)
}

// TestRecognize: nobody's word makes a membership that its founders do not derive, or one of another network.
func TestRecognize(t *testing.T) {
	_, ids := keyring(t, 3)
	n := listed(ids...)
	good, alone := n.Membership(), unlisted().Alone(Voter{ids[0], 7})
	for name, spoil := range map[string]func() Membership{
		"another raft id":      func() Membership { m := good; m.Voters = slices.Clone(m.Voters); m.Voters[1].RaftID++; return m },
		"a founder less":       func() Membership { m := good; m.Voters = m.Voters[1:]; return m },
		"not ascending":        func() Membership { m := good; m.Voters = []Voter{m.Voters[1], m.Voters[0], m.Voters[2]}; return m },
		"no voter":             func() Membership { m := good; m.Voters = nil; return m },
		"no voter, no list":    func() Membership { return Membership{Network: unlisted().ID()} },
		"another network":      func() Membership { m := n; m.Name = "another"; return m.Membership() },
		"alone, other network": func() Membership { return Network{Name: "another"}.Alone(alone.Voters[0]) },
		"alone, short nonce":   func() Membership { m := alone; m.Nonce = m.Nonce[1:]; return m },
		"alone, two voters":    func() Membership { m := alone; m.Voters = good.Voters[:2]; return m },
		"alone, no raft id":    func() Membership { m := alone; m.Voters = []Voter{{Peer: ids[0]}}; return m },
		"alone, no key":        func() Membership { m := alone; m.Voters = []Voter{{Peer: "x", RaftID: 1}}; return m },
	} {
		_, err := n.Recognize(spoil().Encode())
		require.ErrorIs(t, err, fault.Invalid, name)
	}
	other := listed(ids[1:]...)
	_, err := other.Recognize(good.Encode())
	require.NoError(t, err)
	_, err = other.Open(good.Encode())
	require.ErrorIs(t, err, fault.Unauthentic, "of other founders, and nobody vouches")
	_, err = unlisted().Open(alone.Encode())
	require.ErrorIs(t, err, fault.Unauthentic, "anybody can found alone")
	_, err = n.Recognize(make([]byte, MaxMembershipBytes+1))
	require.ErrorIs(t, err, fault.TooLarge)
}

// TestOneEncoding: every peer encodes a membership alike, so all derive one hash from it.
func TestOneEncoding(t *testing.T) {
	_, ids := keyring(t, 2)
	b := listed(ids...).Membership().Encode()
	for name, bad := range map[string][]byte{
		"cut":           b[:len(b)-1],
		"unknown field": protowire.AppendVarint(protowire.AppendTag(slices.Clone(b), 9, protowire.VarintType), 1),
		"doubled":       append(slices.Clone(b), b...),
		"nothing":       nil,
	} {
		_, err := DecodeMembership(bad)
		require.ErrorIs(t, err, fault.Invalid, name)
	}
}

func FuzzMembership(f *testing.F) {
	_, ids := keyring(f, 2)
	f.Add(listed(ids...).Membership().Encode())
	f.Add(unlisted().Alone(Voter{ids[0], 7}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := DecodeMembership(b); err == nil {
			require.Equal(t, b, m.Encode())
		}
	})
}

func TestNetworkID(t *testing.T) {
	_, ids := keyring(t, 3)
	seen := map[NetworkID]string{}
	for name, n := range map[string]Network{
		"listed": listed(ids...), "fewer": listed(ids[:2]...), "unlisted": unlisted(),
		"renamed": {Name: "another"}, "renamed, listed": {Name: "another", Founders: ids},
	} {
		require.NoError(t, n.Validate())
		require.Empty(t, seen[n.ID()], name)
		seen[n.ID()] = name
	}
	require.Equal(t, listed(ids...).ID(), listed(ids[2], ids[1], ids[0]).ID())
}

func TestNetworkRefused(t *testing.T) {
	_, ids := keyring(t, MaxFounders+1)
	require.Equal(t, "name", fault.FieldOf(Network{}.Validate()))
	for _, n := range []Network{listed(ids...), listed(ids[0], ids[0]), listed("x")} {
		require.Equal(t, "founders", fault.FieldOf(n.Validate()))
	}
}
