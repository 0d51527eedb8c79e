package bootstrap

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

// subject is a machine driven by hand.
type subject struct {
	*testing.T
	court   court
	now     time.Time
	machine *machine
}

// newPeer returns the i-th peer, without promises.
func newPeer(t *testing.T, c court, i int) *subject {
	return &subject{T: t, court: c, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), machine: newMachine(setup{
		network: c.network, key: c.keys[i], self: c.ids[i], raftID: uint64(100 + i), voters: 3,
		rand: rand.New(rand.NewPCG(1, 1)), timing: Timing{}.orDefaults(),
	}, State{})}
}

// says passes a message to the machine and returns its actions without hellos.
func (s *subject) says(from int, m message) []action {
	return s.filter(s.machine.step(s.now, received{from: s.court.ids[from], message: m}))
}

// wait lets time pass and returns the actions without hellos.
func (s *subject) wait(d time.Duration) (all []action) {
	end := s.now.Add(d)
	for w := s.machine.wake(); !w.After(end); w = s.machine.wake() {
		if w.After(s.now) {
			s.now = w
		}
		all = append(all, s.machine.step(s.now, tick{})...)
	}
	s.now = end
	return s.filter(all)
}

func (s *subject) filter(all []action) (kept []action) {
	for _, a := range all {
		if sent, ok := a.(send); ok {
			if _, ok := sent.message.(hello); ok {
				continue
			}
		}
		kept = append(kept, a)
	}
	return kept
}

// answer returns the only message among the actions, after its saves.
func (s *subject) answer(all []action) message {
	s.Helper()
	var found message
	for _, a := range all {
		switch a := a.(type) {
		case send:
			require.Nil(s, found, "one answer")
			found = a.message
		case save:
			require.Nil(s, found, "saved before it was told")
		}
	}
	return found
}

func (s *subject) refuses(all []action) {
	s.Helper()
	require.Len(s, all, 1)
	require.IsType(s, malformed{}, all[0])
}

func TestAcceptorPromises(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 1)
	low, high := Ballot{Round: 1, Peer: c.ids[0]}, Ballot{Round: 1, Peer: c.ids[2]}

	actions := p.says(2, prepare{high})
	require.Equal(t, save{State{Promised: high}}, actions[0])
	require.Equal(t, promise{ballot: high}, p.answer(actions))

	require.Equal(t, refuse{ballot: low, promised: high}, p.answer(p.says(0, prepare{low})))
	require.Equal(t, refuse{ballot: low, promised: high}, p.answer(p.says(0, accept{low, c.charter})))

	again := p.says(2, prepare{high})
	require.Len(t, again, 1, "a repeated question costs no write")
	require.Equal(t, promise{ballot: high}, p.answer(again))
}

func TestAcceptorAccepts(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 1)
	b := Ballot{Round: 3, Peer: c.ids[0]}

	actions := p.says(0, accept{b, c.charter})
	require.Equal(t, save{State{Promised: b, Accepted: b, Membership: &c.charter}}, actions[0])
	a := p.answer(actions).(accepted)
	require.True(t, c.network.signed(Signature{Peer: c.ids[1], Bytes: a.signature}, c.network.digest(b, c.network.ID(), c.charter.ID())))
	require.Equal(t, a, p.answer(p.says(0, accept{b, c.charter})), "the same question, the same signature")

	second := c.charter
	second.Nonce[0]++
	p.refuses(p.says(0, accept{b, second}))

	higher := Ballot{Round: 4, Peer: c.ids[2]}
	require.Equal(t, promise{ballot: higher, accepted: b, membership: &c.charter}, p.answer(p.says(2, prepare{higher})))
}

func TestAcceptorRefusesNonsense(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 1)
	bad := c.charter
	bad.Eligible = 1
	p.refuses(p.says(3, prepare{Ballot{Round: 1, Peer: c.ids[3]}}))
	p.refuses(p.says(0, prepare{Ballot{Round: 1, Peer: c.ids[2]}}))
	p.refuses(p.says(0, prepare{Ballot{Round: maxLeap + 1, Peer: c.ids[0]}}))
	p.refuses(p.says(0, accept{Ballot{Round: 1, Peer: c.ids[0]}, bad}))
	require.Equal(t, State{}, p.machine.state)
}

func TestSilentPeerOnlyLearns(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 1)
	p.machine.abstains = "it forgot"
	b := Ballot{Round: 1, Peer: c.ids[0]}
	require.Empty(t, p.says(0, prepare{b}))
	require.Empty(t, p.says(0, accept{b, c.charter}))
	p.says(0, hello{raftID: 1})
	p.says(2, hello{raftID: 2})
	require.Empty(t, p.wait(time.Minute))

	cert := c.certificate(t, 0, 2)
	require.Equal(t, []action{save{State{Certificate: &cert}}, founded{cert}}, p.says(2, announce{cert}))
}

func TestCertificateEndsFounding(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 1)
	cert := c.certificate(t, 0, 2)
	p.says(2, announce{cert})
	b := Ballot{Round: 9, Peer: c.ids[0]}
	for _, m := range []message{prepare{b}, accept{b, c.charter}, hello{raftID: 1}} {
		require.Equal(t, []action{send{c.ids[0], announce{cert}}}, p.says(0, m))
	}
	require.Equal(t, []action{send{c.ids[3], announce{cert}}}, p.says(3, hello{}), "strangers are told too")
	require.Empty(t, p.says(0, hello{raftID: 1, group: cert.GroupID()}))
	require.Empty(t, p.says(2, announce{c.certificate(t, 0, 1)}), "another proof of the same group")
	require.Empty(t, p.wait(time.Hour))
}

func TestFalseCertificateIsRefused(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 1)
	p.refuses(p.says(0, announce{c.certificate(t, 0)}))
	require.Nil(t, p.machine.state.Certificate)
}

func TestConflictIsReportedOnce(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 1)
	second := c
	second.charter.Nonce[5] = 9
	ours, theirs := c.certificate(t, 0, 1), second.certificate(t, 1, 2)
	p.says(2, announce{ours})
	require.Equal(t, []action{
		save{State{Certificate: &ours, Conflicting: &theirs}}, conflicted{Conflict{ours, theirs}}, send{c.ids[2], announce{ours}},
	}, p.says(2, announce{theirs}))
	require.Empty(t, p.says(2, announce{theirs}))
}

// propose shows other peers and waits for the peer's proposal.
func (s *subject) propose(others ...int) Ballot {
	s.Helper()
	for range 10 {
		for _, i := range others {
			s.says(i, hello{raftID: uint64(100 + i)})
		}
		for _, a := range s.wait(time.Second) {
			if sent, ok := a.(send); ok {
				return sent.message.(prepare).ballot
			}
		}
	}
	require.FailNow(s, "no proposal")
	return Ballot{}
}

func TestProposerAdoptsHighestAccepted(t *testing.T) {
	c := newCourt(t, 5)
	p := newPeer(t, c, 0)
	b := p.propose(1, 2, 3)
	older, newer := c.charter, c.charter
	older.Nonce[0], newer.Nonce[0] = 1, 2
	b1, b2 := Ballot{Round: 0, Peer: c.ids[4]}, Ballot{Round: 0, Peer: c.ids[4]}
	b1.Round, b2.Round = 1, 2
	p.machine.try.ballot.Round, p.machine.state.Promised.Round = 5, 5 // as after earlier hellos
	b.Round = 5

	require.Empty(t, p.says(1, promise{ballot: b, accepted: b2, membership: &newer}))
	require.Empty(t, p.says(1, promise{ballot: b}), "one promise for each peer")
	actions := p.says(2, promise{ballot: b, accepted: b1, membership: &older})
	require.Equal(t, newer.ID(), actions[0].(save).state.Membership.ID())
	for _, a := range actions[1:] {
		require.Equal(t, accept{b, newer}, a.(send).message)
	}
	require.Len(t, actions, 5, "all are asked, seen or not")
}

func TestProposerCountsSignersOnce(t *testing.T) {
	c := newCourt(t, 5)
	p := newPeer(t, c, 0)
	b := p.propose(1, 2, 3)
	p.says(1, promise{ballot: b})
	p.says(2, promise{ballot: b})
	c.ballot, c.charter = b, *p.machine.try.membership
	require.Len(t, c.charter.Voters, 3)

	reply := func(i int) accepted { return accepted{b, c.charter.ID(), c.sign(t, i).Bytes} }
	require.Empty(t, p.says(1, reply(1)))
	require.Empty(t, p.says(1, reply(1)))
	p.refuses(p.says(2, reply(1)))
	p.refuses(p.says(2, accepted{b, GroupID{}, reply(2).signature}))
	require.Empty(t, p.says(5, reply(5)), "not eligible")
	actions := p.says(2, reply(2))
	require.IsType(t, save{}, actions[0])
	cert := actions[1].(founded).certificate
	require.NoError(t, c.network.Verify(cert))
	require.Equal(t, []peer.ID{c.ids[0], c.ids[1], c.ids[2]}, []peer.ID{
		cert.Signatures[0].Peer, cert.Signatures[1].Peer, cert.Signatures[2].Peer,
	})
}

func TestProposerYields(t *testing.T) {
	c := newCourt(t, 3)
	p := newPeer(t, c, 0)
	b := p.propose(1, 2)
	require.Empty(t, p.says(1, refuse{ballot: b, promised: Ballot{Round: b.Round + maxLeap + 1, Peer: c.ids[1]}})[1:])
	require.NotNil(t, p.machine.try, "nobody pushes the round to its end")
	p.says(1, refuse{ballot: b, promised: Ballot{Round: 41, Peer: c.ids[1]}})
	require.Nil(t, p.machine.try)
	next := p.propose(1, 2)
	require.EqualValues(t, 42, next.Round)

	higher := Ballot{Round: 50, Peer: c.ids[2]}
	require.Equal(t, promise{ballot: higher}, p.answer(p.says(2, prepare{higher})))
	require.Nil(t, p.machine.try, "whoever promises more gives up its own")
}

func TestWaitsForQuorumForEver(t *testing.T) {
	c := newCourt(t, 5)
	p := newPeer(t, c, 0)
	for range 600 {
		p.says(1, hello{raftID: 101})
		require.Empty(t, p.wait(time.Second))
	}
	require.Equal(t, Gathering, phaseOf(p.machine))
}

func TestFoundsAloneAtOnce(t *testing.T) {
	c := newCourt(t, 1)
	p := newPeer(t, c, 0)
	p.wait(0)
	require.Equal(t, Done, phaseOf(p.machine))
	require.NoError(t, c.network.Verify(*p.machine.state.Certificate))
}

// TestFirstOfNetwork: without founders a peer waits for neighbours that may found too. The lowest one founds.
func TestFirstOfNetwork(t *testing.T) {
	c := newCourt(t, 3)
	c.network = home(1)
	low, high := newPeer(t, c, 0), newPeer(t, c, 1)
	low.says(1, hello{raftID: 101})
	for range 4 {
		high.says(0, hello{raftID: 100})
		require.Equal(t, Gathering, phaseOf(high.machine), "the lower one founds")
		high.wait(time.Second)
	}
	low.wait(1500 * time.Millisecond)
	require.Equal(t, Settling, phaseOf(low.machine))
	low.wait(1500 * time.Millisecond)
	require.Equal(t, Done, phaseOf(low.machine))

	high.says(0, announce{*low.machine.state.Certificate})
	require.Equal(t, Done, phaseOf(high.machine))
	require.Equal(t, low.machine.state.Certificate, high.machine.state.Certificate)
}

// TestInitialVoters: as many as wanted and visible, but no even number above two.
func TestInitialVoters(t *testing.T) {
	for _, test := range []struct{ e, visible, wanted, voters int }{
		{1, 1, 3, 1}, {2, 2, 3, 2}, {2, 2, 1, 1}, {3, 2, 3, 2}, {3, 3, 3, 3}, {5, 5, 3, 3}, {5, 5, 5, 5}, {5, 4, 5, 3}, {7, 7, 1, 1},
	} {
		c := newCourt(t, test.e)
		p := newPeer(t, c, test.e-1)
		p.machine.voters = test.wanted
		for i := range test.visible - 1 {
			p.says(i, hello{raftID: uint64(100 + i)})
		}
		draft := *draft(p.machine)
		require.NoError(t, c.network.checkMembership(draft))
		require.Len(t, draft.Voters, test.voters, "%+v", test)
		_, ok := draft.Voter(c.ids[test.e-1])
		require.True(t, ok)
	}
}

func TestCrowdAtHome(t *testing.T) {
	c := newCourt(t, 3)
	c.network = home(3)
	p := newPeer(t, c, 3)
	for i := range 3 {
		p.says(i, hello{raftID: uint64(100 + i)})
	}
	require.Empty(t, p.wait(3500*time.Millisecond), "the fourth of three has no say")
	p.refuses(p.says(0, prepare{Ballot{Round: 1, Peer: c.ids[0]}}))
}

// TestMemoryIsBounded: strangers in the mode Unlisted use bounded memory.
func TestMemoryIsBounded(t *testing.T) {
	keys, ids := keyring(t, 3*maxSeen)
	c := court{network: home(3), keys: keys, ids: ids}
	p := newPeer(t, c, 0)
	for i := range ids[1:] {
		p.says(i+1, hello{raftID: uint64(i + 1)})
	}
	require.LessOrEqual(t, len(p.machine.peers.seen), maxSeen)
	p.now = p.now.Add(time.Minute)
	p.says(3*maxSeen-1, hello{raftID: 7})
	require.Len(t, p.machine.peers.visible(), 2, "those gone make room")
}
