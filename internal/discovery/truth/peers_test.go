package truth

import (
	"context"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	reach "github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// fakePeer is the peer of a provider.
type fakePeer struct {
	mu     sync.Mutex // guards the fields below
	ends   reach.Outcome
	checks int
	during func() // happens in a check
	follow func(peer.ID, reach.Change)
}

func (p *fakePeer) Check(ctx context.Context, _ peer.ID) reach.Outcome {
	p.mu.Lock()
	p.checks++
	o, during := p.ends, p.during
	p.mu.Unlock()
	if during != nil {
		during()
	}
	pass(ctx, time.Millisecond)
	return o
}

func (p *fakePeer) Follow(f func(peer.ID, reach.Change)) { p.follow = f }

func (p *fakePeer) set(o reach.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends, p.checks = o, 0
}

func (p *fakePeer) checked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checks
}

// lonely is one peer that sees some offers of one provider, and changed counts what it was told of each.
type lonely struct {
	*Checks
	*fakePeer
	offers   []*records.Record
	provider peer.ID
	changed  map[records.Name]int
}

func alone(t *testing.T, play func(t *testing.T, x *lonely)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 1)
		x := &lonely{
			fakePeer: &fakePeer{}, offers: append(s.unnamed, s.offer), provider: s.offer.Name().Provider, changed: make(map[records.Name]int),
		}
		x.set(answering())
		x.Checks = New(Config{
			Prober: s.peers[0], Peers: x.fakePeer, Now: time.Now, Own: func(*records.Record) bool { return false },
			Offers: func(peer.ID) []*records.Record { return x.offers }, Changed: func(r *records.Record) { x.changed[r.Name()]++ },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); x.Run(ctx) }()
		defer func() { cancel(); <-done }()
		x.Want(x.offers)
		time.Sleep(time.Second)
		play(t, x)
	})
}

func answering() reach.Outcome {
	return reach.Outcome{State: records.Reachable, RoundTrip: 3 * time.Millisecond, Dialed: true}
}

func (x *lonely) dead() bool { _, dead := x.Dead(x.offers[0]); return dead }

// until waits until the verdict is so, and returns how long that took; a negative time if it never was.
func (x *lonely) until(dead bool) time.Duration {
	for began := time.Now(); time.Since(began) < 20*time.Minute; time.Sleep(100 * time.Millisecond) {
		x.Want(x.offers)
		if x.dead() == dead {
			return time.Since(began)
		}
	}
	return -1
}

// TestPeerOfAllOffers: one check is about all offers of a provider, with an endpoint or without.
func TestPeerOfAllOffers(t *testing.T) {
	alone(t, func(t *testing.T, x *lonely) {
		require.Equal(t, 1, x.checked())
		var v queries.Evidence
		row := x.Of(x.offers[0], &v)
		require.Equal(t, records.Reachable, row.Peer.State)
		require.Equal(t, 3*time.Millisecond, row.Peer.RoundTrip)
		require.Equal(t, 3*time.Millisecond, v.RoundTrip)
		require.Nil(t, row.Endpoint)
		require.Equal(t, records.Answers, x.Of(x.offers[2], &v).Endpoint.State)
		require.Equal(t, 2*oneWay, v.RoundTrip, "of the endpoint")

		epoch := x.Epoch()
		x.set(reach.Outcome{State: records.Unreachable, Refused: true, Dialed: true})
		require.Positive(t, x.until(true))
		require.Greater(t, x.Epoch(), epoch)
		for _, r := range x.offers {
			d, dead := x.Dead(r)
			require.True(t, dead)
			require.Equal(t, PeerOf(x.provider), d.Name)
			require.Equal(t, "no answer at any of its addresses", d.Reason())
			require.False(t, d.Since.IsZero())
			require.NotZero(t, x.changed[r.Name()])
			v = queries.Evidence{}
			x.Of(r, &v)
			require.True(t, v.Failed)
		}
		require.Contains(t, x.Buried(), PeerOf(x.provider))
		x.set(answering())
		require.Positive(t, x.until(false))
		require.Empty(t, x.Buried())
	})
}

// TestQuestionsBringNothingDeadBack: a caller that asks for more offers than there is room for makes the living give way.
func TestQuestionsBringNothingDeadBack(t *testing.T) {
	alone(t, func(t *testing.T, x *lonely) {
		x.set(reach.Outcome{State: records.Unreachable, Refused: true, Dialed: true})
		require.Positive(t, x.until(true))
		now := x.Now()
		x.Checks.mu.Lock()
		for n := range 2 * maxEndpoints {
			x.entry(PeerOf(peer.ID(strconv.Itoa(n))), x.offers[0], now)
		}
		require.Equal(t, maxEndpoints, x.known.Len())
		for n, e := range x.known.Values() { // a flood of the dead has half of the room
			if n%2 == 0 {
				x.note(e, true)
			}
		}
		for n := range maxEndpoints {
			x.note(x.entry(PeerOf(peer.ID("d"+strconv.Itoa(n))), x.offers[0], now), true)
		}
		require.Equal(t, maxEndpoints, x.known.Len())
		dead := 0
		for _, e := range x.known.Values() {
			if e.dead {
				dead++
			}
		}
		require.Equal(t, dead, x.deaths)
		x.Checks.mu.Unlock()
	})
	alone(t, func(t *testing.T, x *lonely) {
		x.set(reach.Outcome{State: records.Unreachable, Refused: true, Dialed: true})
		require.Positive(t, x.until(true))
		x.Checks.mu.Lock()
		for n := range 2 * maxEndpoints {
			x.entry(PeerOf(peer.ID(strconv.Itoa(n))), x.offers[0], x.Now())
		}
		x.Checks.mu.Unlock()
		require.True(t, x.dead())
	})
}

// TestTwoFailuresDecide: two refusals ten seconds apart, two silences two minutes apart; busy is alive, and what
// nobody could tell is no evidence.
func TestTwoFailuresDecide(t *testing.T) {
	refused, silent := reach.Outcome{State: records.Unreachable, Refused: true, Dialed: true}, reach.Outcome{State: records.Unreachable, Dialed: true}
	for name, c := range map[string]struct {
		first, then reach.Outcome
		least, most time.Duration
	}{
		"refused":              {refused, refused, endpointAgain, endpointAgain + 2*time.Second},
		"silent":               {silent, silent, 2 * time.Minute, 2*time.Minute + 2*time.Second},
		"refused, then silent": {refused, silent, 2 * time.Minute, 2*time.Minute + 2*time.Second},
		"silent, then refused": {silent, refused, 2 * time.Minute, 2*time.Minute + 2*time.Second},
		"busy":                 {reach.Outcome{State: records.Busy, Dialed: true}, reach.Outcome{State: records.Busy, Dialed: true}, -1, -1},
		"undecided":            {reach.Outcome{Dialed: true}, reach.Outcome{Dialed: true}, -1, -1},
		"address unknown":      {reach.Outcome{Unknown: true, Dialed: true}, reach.Outcome{Unknown: true, Dialed: true}, -1, -1},
		"failed once":          {silent, answering(), -1, -1},
		"address lost":         {silent, reach.Outcome{Unknown: true, Dialed: true}, 2 * time.Minute, 2*time.Minute + 2*time.Second},
	} {
		alone(t, func(t *testing.T, x *lonely) {
			x.set(c.first)
			for x.checked() == 0 {
				x.Want(x.offers)
				time.Sleep(100 * time.Millisecond)
			}
			x.set(c.then)
			took := x.until(true)
			require.GreaterOrEqual(t, took, c.least-200*time.Millisecond, name)
			require.LessOrEqual(t, took, c.most, name)
			if c.then.State == records.Busy {
				require.Equal(t, records.Busy, x.Of(x.offers[0], &queries.Evidence{}).Peer.State)
			}
		})
	}
}

// TestDeathOutlivesItsAddresses: soon nobody knows an address of a dead peer, which does not bring it back.
func TestDeathOutlivesItsAddresses(t *testing.T) {
	alone(t, func(t *testing.T, x *lonely) {
		x.set(reach.Outcome{State: records.Unreachable, Dialed: true})
		require.Positive(t, x.until(true))
		x.set(reach.Outcome{Unknown: true, Dialed: true})
		require.Negative(t, x.until(false))
		require.NotZero(t, x.checked())
	})
}

// TestNobodyKnowsASeller: a provider of which nobody knows an address is gone if all its offers lead to its peer, and not if one has an
// endpoint of its own, or while another peer reaches it.
func TestNobodyKnowsASeller(t *testing.T) {
	nobody := reach.Outcome{Unknown: true, Dialed: true}
	alone(t, func(t *testing.T, x *lonely) {
		x.set(nobody)
		require.Negative(t, x.until(true))
		x.Checks.mu.Lock()
		x.offers = x.offers[:2] // without an endpoint
		x.Checks.mu.Unlock()
		took := x.until(true)
		require.Greater(t, took, 2*time.Minute-time.Second)
		require.Less(t, took, 4*time.Minute)
		x.set(answering())
		require.Positive(t, x.until(false))
	})
	alone(t, func(t *testing.T, x *lonely) {
		x.Checks.mu.Lock()
		x.offers = x.offers[:2]
		x.Checks.mu.Unlock()
		x.set(nobody)
		for began := time.Now(); time.Since(began) < 20*time.Minute; time.Sleep(time.Second) {
			x.Want(x.offers)
			x.Hear(protocol.Statement{By: "another", Findings: []protocol.Finding{
				{Provider: x.provider, State: records.Reachable, CheckedAt: time.Now()},
			}}, netip.MustParsePrefix("203.0.113.0/24"))
			require.False(t, x.dead())
		}
	})
}

// TestConnectionsAreEvidence: one that opens is an answer. The loss of one has the peer checked at once, but not each
// minute that a crowded peer ends one; a loss during a check has it repeated.
func TestConnectionsAreEvidence(t *testing.T) {
	alone(t, func(t *testing.T, x *lonely) {
		lose := func() int {
			before := x.checked()
			x.follow(x.provider, reach.Closed)
			time.Sleep(100 * time.Millisecond)
			return x.checked() - before
		}
		require.Zero(t, lose(), "a check dialed it just now")
		x.set(reach.Outcome{State: records.Reachable}) // over an open connection
		time.Sleep(2 * time.Minute)
		require.Equal(t, 1, lose())
		require.Equal(t, 1, lose())
		x.Checks.mu.Lock()
		e, _ := x.known.Peek(PeerOf(x.provider))
		e.asked = time.Time{}
		x.Checks.mu.Unlock()
		require.Zero(t, lose(), "nobody asks for it")
		x.Want(x.offers)

		x.fakePeer.mu.Lock()
		x.during = sync.OnceFunc(func() { x.follow(x.provider, reach.Closed) })
		x.fakePeer.mu.Unlock()
		x.set(reach.Outcome{State: records.Reachable})
		require.Equal(t, 2, lose(), "the answer may precede the loss")

		x.set(reach.Outcome{State: records.Unreachable, Refused: true, Dialed: true})
		lose()
		require.NotZero(t, x.until(true))
		x.follow(x.provider, reach.Opened)
		require.False(t, x.dead())
		require.Equal(t, records.Reachable, x.Of(x.offers[0], &queries.Evidence{}).Peer.State)
		x.follow("a stranger", reach.Opened)
		x.follow("a stranger", reach.Missed)
	})
}

// TestMissedProviderIsChecked though nobody was shown its offers lately: they may be in answers.
func TestMissedProviderIsChecked(t *testing.T) {
	alone(t, func(t *testing.T, x *lonely) {
		x.Checks.mu.Lock()
		x.known.Purge()
		x.Checks.mu.Unlock()
		x.set(reach.Outcome{State: records.Unreachable, Refused: true, Dialed: true})
		x.follow(x.provider, reach.Closed)
		time.Sleep(time.Minute)
		require.Zero(t, x.checked(), "this host ended the connection")
		x.follow(x.provider, reach.Missed)
		time.Sleep(endpointAgain + 2*endpointTick)
		require.True(t, x.dead())
		require.Equal(t, 2, x.checked())
	})
}

// TestPeersShareTheirDeaths: after the connections of all broke, everybody who shows an offer leaves it out as soon as
// it got no answer itself. In a closed network the measurers count, whatever their addresses.
func TestPeersShareTheirDeaths(t *testing.T) {
	for death, most := range map[probe.State]time.Duration{probe.Refuses: time.Second, probe.Silent: 11 * time.Second} {
		for _, closed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := ofPeers(t, 20)
				s.death = death
				for _, m := range s.peers {
					if m.Sharing.Closed = closed; closed {
						m.network = s.peers[0].network
					}
				}
				s.live(15, func() {
					time.Sleep(5 * time.Minute)
					require.Zero(t, s.hidden(s.peers))
					s.set(false)
					time.Sleep(10 * time.Millisecond)
					for _, m := range s.peers {
						m.connected(s.offer.Name().Provider, reach.Closed)
					}
					after := s.until(s.peers, len(s.peers))
					t.Logf("%s, closed %v: out of all answers after %v", death, closed, after[len(after)-1])
					require.LessOrEqual(t, after[len(after)-1], most)
				})
			})
		}
	}
}

// TestOthersHideNoPeer: however many say that it is gone, an own answer beats them. With an own failure two of them in
// two networks decide, of which each speaks for itself; an address that this peer cannot find counts as one then.
func TestOthersHideNoPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ofPeers(t, 8)
		asker := s.peers[7]
		asker.Want([]*records.Record{s.offer})
		for _, m := range s.peers[:7] {
			s.tell(asker, m, m.network, records.Silent, time.Now())
		}
		require.Zero(t, s.hidden(s.peers[7:]))
		asker.act()
		require.Equal(t, 1, s.probed(), "it measures at once")
		require.Zero(t, s.hidden(s.peers[7:]))
		require.Equal(t, records.Reachable, asker.Of(s.offer, &queries.Evidence{}).Peer.State)

		time.Sleep(endpointEvery)
		s.mu.Lock()
		s.says = &probe.Outcome{}
		s.mu.Unlock()
		asker.Peers = unknownAddress{}
		for _, m := range s.peers[:2] {
			s.tell(asker, m, s.peers[0].network, records.Silent, time.Now())
		}
		asker.act()
		require.Zero(t, s.hidden(s.peers[7:]), "one network")
		f := protocol.Finding{Provider: s.offer.Name().Provider, State: records.Unreachable, CheckedAt: time.Now()}
		asker.Hear(protocol.Statement{By: "quoted", Findings: []protocol.Finding{f}}, netip.Prefix{})
		require.Zero(t, s.hidden(s.peers[7:]), "told by another one")
		asker.Hear(protocol.Statement{By: "quoted", Findings: []protocol.Finding{f}}, s.peers[2].network)
		require.Equal(t, 1, s.hidden(s.peers[7:]))
		d, _ := asker.Dead(s.offer)
		require.Equal(t, "3 peers got no answer at any of its addresses", d.Reason())
		s.tell(asker, s.peers[3], s.peers[3].network, records.Answers, time.Now())
		for _, m := range s.peers[:3] {
			s.tell(asker, m, m.network, records.Answers, time.Now())
		}
		require.Zero(t, s.hidden(s.peers[7:]))
	})
}

type unknownAddress struct{}

func (unknownAddress) Check(context.Context, peer.ID) reach.Outcome {
	return reach.Outcome{Unknown: true}
}
func (unknownAddress) Follow(func(peer.ID, reach.Change)) {}

// TestHeardKeepsItsAge: what others found has its age by the monotonic clock, so that a step of this peer's clock makes it neither old nor
// new.
func TestHeardKeepsItsAge(t *testing.T) {
	s := newSociety(t, 1) // in real time: virtual time has no monotonic clock
	x := New(Config{
		Peers: &fakePeer{}, Now: time.Now, Own: func(*records.Record) bool { return false },
		Offers: func(peer.ID) []*records.Record { return nil }, Changed: func(*records.Record) {},
	})
	x.Want([]*records.Record{s.offer})
	provider, at := s.offer.Name().Provider, time.Now().Add(time.Second).Round(0) // as it comes from the wire
	x.Hear(protocol.Statement{By: "another", Findings: []protocol.Finding{
		{Provider: provider, State: records.Reachable, CheckedAt: at},
	}}, netip.MustParsePrefix("203.0.113.0/24"))
	e, _ := x.known.Peek(PeerOf(provider))
	require.Len(t, e.heard, 1)
	require.True(t, at.Equal(e.heard[0].CheckedAt))
	require.Contains(t, e.heard[0].CheckedAt.String(), "m=")
}
