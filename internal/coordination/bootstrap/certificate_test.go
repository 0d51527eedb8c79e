package bootstrap

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// court holds keys and a membership, and makes good and bad certificates.
type court struct {
	network Network
	keys    []crypto.PrivKey
	ids     []peer.ID
	charter Membership
	ballot  Ballot
}

// newCourt has e eligible peers and one ineligible peer.
func newCourt(t testing.TB, e int) court {
	keys, ids := keyring(t, e+1)
	c := court{network: Network{Name: "test", Mode: Listed, Founders: ids[:e]}, keys: keys, ids: ids}
	c.charter = Membership{
		Network: c.network.ID(), Eligible: e, Nonce: [16]byte{1, 2, 3}, Proposer: ids[0], Founders: c.network.founders(),
	}
	for i, p := range ids[:min(e, 3)] {
		c.charter.Voters = append(c.charter.Voters, Voter{Peer: p, RaftID: uint64(100 + i)})
	}
	c.ballot = Ballot{Round: 2, Peer: ids[0]}
	return c
}

func (c court) sign(t testing.TB, i int) Signature {
	b, err := c.keys[i].Sign(c.network.digest(c.ballot, c.charter.Network, c.charter.ID()))
	require.NoError(t, err)
	return Signature{Peer: c.ids[i], Bytes: b}
}

func (c court) certificate(t testing.TB, signers ...int) Certificate {
	cert := Certificate{Membership: c.charter, Ballot: c.ballot}
	for _, i := range signers {
		cert.Signatures = append(cert.Signatures, c.sign(t, i))
	}
	return cert
}

func TestCertificateProves(t *testing.T) {
	c := newCourt(t, 5)
	for _, signers := range [][]int{{0, 1, 2}, {2, 3, 4}, {0, 1, 2, 3, 4}} {
		cert := c.certificate(t, signers...)
		opened, err := c.network.Open(cert.Encode())
		require.NoError(t, err)
		require.Equal(t, cert, opened)
		require.Equal(t, c.charter.ID(), opened.GroupID(), "whoever signed, the group is one")
	}
	v, ok := c.charter.Voter(c.ids[1])
	require.True(t, ok)
	require.EqualValues(t, 101, v.RaftID)
	_, ok = c.charter.Voter(c.ids[5])
	require.False(t, ok)
}

func TestCertificateRefused(t *testing.T) {
	c := newCourt(t, 5)
	other := c
	other.ballot.Round++
	altered := c
	altered.charter.Nonce[0]++
	tests := []struct {
		name  string
		field string
		spoil func(*Certificate)
	}{
		{"too few", "signatures", func(x *Certificate) { x.Signatures = x.Signatures[:2] }},
		{"none", "signatures", func(x *Certificate) { x.Signatures = nil }},
		{"one signer twice", "signatures", func(x *Certificate) { x.Signatures[2] = x.Signatures[1] }},
		{"a signer more than there are", "signatures", func(x *Certificate) {
			x.Signatures = append(x.Signatures, c.sign(t, 3), c.sign(t, 4), c.sign(t, 5))
		}},
		{"order", "signatures", func(x *Certificate) { slices.Reverse(x.Signatures) }},
		{"not eligible", "signatures", func(x *Certificate) { x.Signatures[2] = c.sign(t, 5) }},
		{"another's name", "signatures", func(x *Certificate) { x.Signatures[2].Peer = c.ids[3] }},
		{"signed at another ballot", "signatures", func(x *Certificate) { x.Signatures[1] = other.sign(t, 1) }},
		{"ballot altered", "signatures", func(x *Certificate) { x.Ballot.Round++ }},
		{"ballot of another", "signatures", func(x *Certificate) { x.Ballot.Peer = c.ids[1] }},
		{"signed another membership", "signatures", func(x *Certificate) { x.Signatures[1] = altered.sign(t, 1) }},
		{"membership altered", "signatures", func(x *Certificate) { x.Membership.Nonce[0]++ }},
		{"voter altered", "signatures", func(x *Certificate) {
			x.Membership.Voters = slices.Clone(x.Membership.Voters)
			x.Membership.Voters[0].RaftID += 1000
		}},
		{"signature cut", "signatures", func(x *Certificate) { x.Signatures[0].Bytes = x.Signatures[0].Bytes[:63] }},
		{"no round", "ballot", func(x *Certificate) { x.Ballot.Round = 0 }},
		{"ballot of a stranger", "ballot", func(x *Certificate) { x.Ballot.Peer = c.ids[5] }},
		{"another network", "membership.network", func(x *Certificate) { x.Membership.Network[0]++ }},
		{"a founder more", "membership.founders", func(x *Certificate) {
			x.Membership.Founders = slices.Sorted(slices.Values(append(slices.Clone(x.Membership.Founders), c.ids[5])))
		}},
		{"another E", "membership.eligible", func(x *Certificate) { x.Membership.Eligible = 3 }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cert := c.certificate(t, 0, 1, 2)
			test.spoil(&cert)
			err := c.network.Verify(cert)
			require.Equal(t, test.field, fault.FieldOf(err))
			want := fault.Invalid
			if test.field == "signatures" {
				want = fault.Unauthentic
			}
			require.Equal(t, want, fault.KindOf(err))
			_, err = c.network.Open(cert.Encode())
			require.Error(t, err)
		})
	}
}

// TestRecognize: a peer with other founders, or none, can check a certificate by itself, but none of another network.
func TestRecognize(t *testing.T) {
	c := newCourt(t, 5)
	cert := c.certificate(t, 0, 1, 2)
	for name, mine := range map[string]Network{
		"a founder more": {Name: "test", Mode: Listed, Founders: c.ids},
		"one less":       {Name: "test", Mode: Listed, Founders: c.ids[1:4]},
		"no founders":    {Name: "test", Mode: Unlisted, Expect: 1},
	} {
		_, err := mine.Open(cert.Encode())
		require.ErrorIs(t, err, fault.Invalid, name)
		seen, err := mine.Recognize(cert.Encode())
		require.NoError(t, err, name)
		require.Equal(t, cert, seen)

		forged := cert
		forged.Signatures = cert.Signatures[:2]
		_, err = mine.Recognize(forged.Encode())
		require.ErrorIs(t, err, fault.Unauthentic, "%s: two of five", name)

		mine.Name = "other"
		_, err = mine.Recognize(cert.Encode())
		require.ErrorIs(t, err, fault.Invalid, "%s: another network", name)
	}
}

func TestCharterRefused(t *testing.T) {
	c := newCourt(t, 3)
	stranger := c.ids[3]
	tests := []struct {
		name  string
		field string
		spoil func(*Membership)
	}{
		{"no voters", "membership.voters", func(x *Membership) { x.Voters = nil }},
		{"more voters than peers", "membership.voters", func(x *Membership) { x.Voters = append(x.Voters, Voter{stranger, 9}) }},
		{"voter not eligible", "membership.voters", func(x *Membership) { x.Voters[0].Peer = stranger }},
		{"voter twice", "membership.voters", func(x *Membership) { x.Voters[1].Peer = x.Voters[0].Peer }},
		{"order", "membership.voters", func(x *Membership) { slices.Reverse(x.Voters) }},
		{"no raft id", "membership.voters", func(x *Membership) { x.Voters[1].RaftID = 0 }},
		{"raft id twice", "membership.voters", func(x *Membership) { x.Voters[1].RaftID = x.Voters[0].RaftID }},
		{"proposer", "membership.proposer", func(x *Membership) { x.Proposer = stranger }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			charter := c.charter
			charter.Voters = slices.Clone(charter.Voters)
			require.NoError(t, c.network.checkMembership(charter))
			test.spoil(&charter)
			require.Equal(t, test.field, fault.FieldOf(c.network.checkMembership(charter)))
		})
	}
}

// TestOneEncoding changes certificates in ways that a lenient protobuf decoder overlooks.
func TestOneEncoding(t *testing.T) {
	c := newCourt(t, 3)
	good := c.certificate(t, 0, 1).Encode()
	_, err := c.network.Open(good)
	require.NoError(t, err)

	parsed := new(groupv1.Certificate)
	require.NoError(t, proto.Unmarshal(good, parsed))
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
	require.NoError(t, err)
	require.Equal(t, good, again, "the schema and the encoding agree")

	for name, bad := range map[string][]byte{
		"unknown field":  append(bytes.Clone(good), 0x78, 1),
		"field repeated": append(bytes.Clone(good), good...),
		"cut":            good[:len(good)-1],
		"empty":          nil,
		"too large":      make([]byte, MaxCertificateBytes+1),
	} {
		_, err := c.network.Open(bad)
		require.Error(t, err, name)
	}
}

func TestRivals(t *testing.T) {
	c := newCourt(t, 3)
	second := c
	second.charter.Nonce[5] = 9
	second.ballot.Round = 7
	ours, theirs := c.certificate(t, 0, 1), second.certificate(t, 1, 2)

	r, ok := c.network.Compare(ours, theirs)
	require.True(t, ok)
	require.Equal(t, []peer.ID{c.ids[1]}, r.Suspects())

	_, ok = c.network.Compare(ours, c.certificate(t, 1, 2))
	require.False(t, ok, "one group, proven twice")
	theirs.Signatures = theirs.Signatures[:1]
	_, ok = c.network.Compare(ours, theirs)
	require.False(t, ok, "what proves nothing is no rival")
}

func TestNetworkID(t *testing.T) {
	_, ids := keyring(t, 5)
	n := Network{Name: "a", Mode: Listed, Founders: ids[:3]}
	require.Equal(t, n.ID(), Network{Name: "a", Mode: Listed, Founders: []peer.ID{ids[2], ids[0], ids[1]}, Expect: 3}.ID())
	seen := map[NetworkID]bool{}
	for _, n := range []Network{
		n, {Name: "b", Founders: ids[:3]}, {Name: "a", Founders: ids[1:4]}, {Name: "a", Founders: ids[:4]},
		{Mode: Unlisted, Name: "a", Expect: 3}, {Mode: Unlisted, Name: "b", Expect: 3}, {Mode: Unlisted, Name: "a", Expect: 4},
	} {
		require.NoError(t, n.Validate())
		require.False(t, seen[n.ID()])
		seen[n.ID()] = true
	}
	require.Equal(t, 2, n.Quorum())
	require.Equal(t, 3, home(4).Quorum())
}

func TestNetworkRefused(t *testing.T) {
	_, ids := keyring(t, 3)
	for _, test := range []struct {
		field string
		n     Network
	}{
		{"mode", Network{Name: "x", Mode: 7}},
		{"founders", Network{Name: "x"}},
		{"founders", Network{Name: "x", Founders: []peer.ID{ids[0], ids[0]}}},
		{"founders", Network{Name: "x", Founders: []peer.ID{"somebody"}}},
		{"founders", Network{Name: "x", Founders: make([]peer.ID, MaxEligible+1)}},
		{"expect", Network{Name: "x", Founders: ids, Expect: 2}},
		{"name", Network{Founders: ids}},
		{"name", Network{Founders: ids, Name: "X"}},
		{"founders", Network{Mode: Unlisted, Founders: ids, Name: "x", Expect: 3}},
		{"name", Network{Mode: Unlisted, Expect: 3}},
		{"expect", Network{Mode: Unlisted, Name: "x"}},
		{"expect", Network{Mode: Unlisted, Name: "x", Expect: MaxEligible + 1}},
	} {
		err := test.n.Validate()
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, test.field, fault.FieldOf(err), "%+v", test.n)
	}
}

// TestMessagesSurviveTheWire draws messages of every kind.
func TestMessagesSurviveTheWire(t *testing.T) {
	c := newCourt(t, 3)
	id := c.network.ID()
	cert := c.certificate(t, 0, 1)
	rapid.Check(t, func(t *rapid.T) {
		b := Ballot{Round: rapid.Uint64Min(1).Draw(t, "round"), Peer: rapid.SampledFrom(c.ids).Draw(t, "peer")}
		m := rapid.SampledFrom([]message{
			hello{}, hello{raftID: b.Round, group: cert.GroupID()}, prepare{b}, promise{ballot: b},
			promise{ballot: b, accepted: c.ballot, membership: &c.charter}, refuse{b, c.ballot}, accept{b, c.charter},
			accepted{b, cert.GroupID(), cert.Signatures[0].Bytes}, announce{cert},
		}).Draw(t, "message")
		raw, err := proto.Marshal(encode(id, m))
		require.NoError(t, err)
		require.LessOrEqual(t, len(raw), MaxMessageBytes)
		w := new(groupv1.BootstrapMessage)
		require.NoError(t, proto.Unmarshal(raw, w))
		back, err := decode(id, w)
		require.NoError(t, err)
		require.Equal(t, m, back)

		_, err = decode(NetworkID{1}, w)
		require.ErrorIs(t, err, fault.Conflict)
	})
}

// TestLargestCertificate has the maximum of signatures and voters.
func TestLargestCertificate(t *testing.T) {
	c := newCourt(t, MaxEligible)
	c.charter.Voters = nil
	for i := range MaxVoters {
		c.charter.Voters = append(c.charter.Voters, Voter{Peer: c.ids[i], RaftID: rand.New(rand.NewPCG(1, uint64(i))).Uint64()})
	}
	all := make([]int, MaxEligible)
	for i := range all {
		all[i] = i
	}
	cert := c.certificate(t, all...)
	_, err := c.network.Open(cert.Encode())
	require.NoError(t, err)
	require.LessOrEqual(t, len(c.charter.Encode()), maxMembershipBytes)
}

func FuzzCertificate(f *testing.F) {
	c := newCourt(f, 3)
	f.Add(c.certificate(f, 0, 1).Encode())
	f.Add(c.certificate(f).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		cert, err := decodeCertificate(b)
		if err != nil {
			return
		}
		require.Equal(t, b, cert.Encode())
		_, _ = c.network.Open(b)
	})
}

func FuzzCharter(f *testing.F) {
	c := newCourt(f, 3)
	f.Add(c.charter.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if charter, err := decodeMembership(b); err == nil {
			require.Equal(t, b, charter.Encode())
			_ = c.network.checkMembership(charter)
		}
	})
}

// FuzzMessage passes a stranger's bytes to a machine, which must neither panic nor promise.
func FuzzMessage(f *testing.F) {
	c := newCourt(f, 3)
	id := c.network.ID()
	for _, m := range []message{
		hello{raftID: 1}, prepare{c.ballot}, promise{ballot: c.ballot, accepted: c.ballot, membership: &c.charter},
		refuse{c.ballot, c.ballot}, accept{c.ballot, c.charter}, announce{c.certificate(f, 0)},
		accepted{c.ballot, c.charter.ID(), c.sign(f, 1).Bytes},
	} {
		raw, err := proto.Marshal(encode(id, m))
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		w := new(groupv1.BootstrapMessage)
		if proto.Unmarshal(raw, w) != nil {
			return
		}
		m, err := decode(id, w)
		if err != nil {
			return
		}
		p := newPeer(t, c, 1)
		p.machine.receive(received{from: c.ids[3], message: m})
		require.True(t, p.machine.state.Promised.IsZero(), "a stranger was promised something")
		p.machine.receive(received{from: c.ids[0], message: m})
	})
}
