package truth

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"iter"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	reach "github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

var manyDeaths = flag.Bool("deaths", false, "play a hundred deaths, for figures")

// society is a number of peers that share findings about the endpoint of one offer. The first Witnesses of them are its witnesses.
type society struct {
	t      *testing.T
	offer  *records.Record
	moved  *records.Record // its next version, with another endpoint
	peers  []*member
	mu     sync.Mutex // guards the fields below
	alive  bool
	named  bool           // the domain of the offers names their provider
	death  probe.State    // what a dead endpoint does
	says   *probe.Outcome // of each check; nil: the fields around it decide
	gone   bool           // the offer is withdrawn
	probes []time.Time

	unnamed []*records.Record // without an endpoint
	claims  *records.Record   // without one, with a domain
	targets []string          // hosts of the probes

	byPeer bool                                   // the offer has no endpoint, and the fields above are about its provider's peer
	goods  *goods                                 // nil: the offer alone
	opened *lru.Cache[string, protocol.Statement] // by its bytes
}

type member struct {
	*society
	*Checks
	key     crypto.PrivKey
	id      peer.ID
	network netip.Prefix
	pool    *ask.Pool
	lies    records.Reachability // as a measurer it says this, always
	inverts bool                 // as a measurer it says the opposite
	real    Prober               // nil: the society's truth
}

func newSociety(t *testing.T, n int) *society {
	opened, err := lru.New[string, protocol.Statement](100_000)
	require.NoError(t, err)
	s := &society{t: t, alive: true, death: probe.Refuses, opened: opened}
	provider, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	domain := ""
	sign := func(id string, sequence uint64, endpoints ...string) *records.Record {
		r, err := records.Sign("test", provider, records.Offer{ID: id, Metadata: records.Metadata{Type: "relay", Endpoints: endpoints, Domain: domain}},
			records.Stamp{Sequence: sequence, Issued: now, Expires: now.Add(24 * time.Hour)})
		require.NoError(t, err)
		return r
	}
	s.offer, s.moved = sign("a", 1, "https://a.net"), sign("a", 2, "https://b.net")
	s.unnamed = []*records.Record{sign("b", 1), sign("c", 1)}
	domain = "shop.nowhere.net"
	s.claims = sign("d", 1)
	for i := range n {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		id, err := peer.IDFromPrivateKey(key)
		require.NoError(t, err)
		m := &member{society: s, key: key, id: id, network: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), 0}), 24), pool: ask.NewPool(id)}
		m.Checks = New(Config{Prober: m, Now: time.Now, Own: func(*records.Record) bool { return false }, Changed: func(*records.Record) {}, Sharing: &Sharing{
			Network: "test", Key: key, Self: id, Witness: m.exchange, Tell: m.say, Hand: m.hand,
			Records: s.kept,
			OwnWitnesses: func(provider peer.ID) []peer.ID {
				if ids := s.witnesses(provider); slices.Contains(ids, id) {
					return ids
				}
				return nil
			},
		}})
		s.peers = append(s.peers, m)
	}
	return s
}

// ofPeers makes a society that checks the peer of a provider, by an offer without an endpoint.
func ofPeers(t *testing.T, n int) *society {
	s := newSociety(t, n)
	s.byPeer, s.offer = true, s.unnamed[0]
	for _, m := range s.peers {
		m.Peers, m.Offers = m, func(peer.ID) []*records.Record { return s.unnamed }
	}
	return s
}

// ofAccess makes a society that checks what an offer sells through its provider's peer.
func ofAccess(t *testing.T, n int) *society {
	s := newSociety(t, n)
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	s.offer = served(t, key)
	for _, m := range s.peers {
		m.Dial = func(ctx context.Context, _ peer.ID, _ string) (net.Conn, error) {
			pass(ctx, 2*oneWay)
			conn, other := net.Pipe()
			return conn, other.Close()
		}
	}
	return s
}

// both are the societies of an endpoint and of a peer, and of a service behind one: what holds of one holds of the others.
func both() map[string]func(*testing.T, int) *society {
	return map[string]func(*testing.T, int) *society{"endpoint": newSociety, "peer": ofPeers, "access": ofAccess}
}

// Check is the truth about the peer, in the words of its checks.
func (m *member) Check(ctx context.Context, _ peer.ID) reach.Outcome {
	o, measured := m.Probe(ctx, probe.Target{})
	return outcomeOf(o, measured)
}

func outcomeOf(o probe.Outcome, measured bool) reach.Outcome {
	switch {
	case !measured:
		return reach.Outcome{}
	case o.State == probe.Answers:
		return reach.Outcome{State: records.Reachable, RoundTrip: o.RoundTrip}
	}
	return reach.Outcome{State: records.Unreachable, Refused: o.State == probe.Refuses, Dialed: true}
}

// Follow has nothing to tell: tests call connected.
func (m *member) Follow(func(peer.ID, reach.Change)) {}

// about is what the members check, and said is a state in its words.
func (s *society) about() records.Name {
	if s.byPeer {
		return PeerOf(s.offer.Name().Provider)
	}
	return s.offer.Name()
}

func (s *society) said(state records.Reachability) records.Reachability {
	if s.byPeer {
		return outcomeOf(probe.Outcome{State: probe.State(state)}, true).State
	}
	return state
}

func (s *society) kept() iter.Seq[*records.Record] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return slices.Values([]*records.Record(nil))
	}
	if s.goods != nil {
		return slices.Values(s.goods.offers)
	}
	return slices.Values([]*records.Record{s.offer})
}

func (s *society) witnesses(provider peer.ID) (ids []peer.ID) {
	for _, m := range s.near(provider) {
		ids = append(ids, m.id)
	}
	return ids
}

// near returns the witnesses of a provider.
func (s *society) near(provider peer.ID) []*member {
	if s.goods != nil {
		return s.goods.witnesses[provider]
	}
	return s.peers[:min(ask.Witnesses, len(s.peers))]
}

// Probe is the truth, which a member may not tell.
func (m *member) Probe(ctx context.Context, to probe.Target) (probe.Outcome, bool) {
	m.mu2().Lock()
	m.targets = append(m.targets, to.Host)
	m.probes = append(m.probes, time.Now())
	lies, alive, death, says := m.lies, m.alive, m.death, m.says
	if m.real != nil {
		m.mu2().Unlock()
		return m.speak(ctx, to)
	}
	switch {
	case to.Kind == "domain":
		alive, death = m.named, probe.Refuses
	case m.goods != nil:
		death, alive = m.goods.fate(to.Host)
	}
	if death == toWitnesses {
		alive, death = alive || slices.Contains(m.near(m.offer.Name().Provider), m), probe.Refuses
	}
	m.mu2().Unlock()
	switch {
	case lies != "":
		return probe.Outcome{State: probe.State(lies)}, true
	case says != nil:
		pass(ctx, 2*oneWay)
		return *says, says.State != ""
	case alive:
		pass(ctx, 2*oneWay)
		return probe.Outcome{State: probe.Answers, RoundTrip: 2 * oneWay}, ctx.Err() == nil
	case death == probe.Silent && m.byPeer:
		pass(ctx, 2*probe.Timeout) // a check of a peer lasts for two
		return probe.Outcome{State: probe.Silent}, !errors.Is(ctx.Err(), context.Canceled)
	case death == probe.Silent:
		pass(ctx, probe.Timeout)
		return probe.Outcome{State: probe.Silent}, !errors.Is(ctx.Err(), context.Canceled)
	default:
		pass(ctx, 2*oneWay)
		return probe.Outcome{State: death}, ctx.Err() == nil
	}
}

// speak speaks to an endpoint that listens.
func (m *member) speak(ctx context.Context, to probe.Target) (probe.Outcome, bool) {
	o, measured := m.real.Probe(ctx, to)
	if m.inverts && o.State == probe.Answers {
		return probe.Outcome{State: probe.Silent}, measured
	}
	if m.inverts {
		return probe.Outcome{State: probe.Answers, RoundTrip: time.Millisecond}, measured
	}
	return o, measured
}

// restart has a member forget what it knows.
func (m *member) restart() {
	m.Checks.mu.Lock()
	defer m.Checks.mu.Unlock()
	m.known.Purge()
	m.askers.Purge()
	m.doubts.Purge()
}

func (m *member) mu2() *sync.Mutex { return &m.society.mu }

// oneWay is the time of a message.
const oneWay = 40 * time.Millisecond

// exchange is ask.Findings.Witness without a network: what a keeper does is ask.Findings.Serve.
func (m *member) exchange(ctx context.Context, provider peer.ID, ids []string, own []byte) (out []ask.Delivered) {
	all := m.near(provider)
	m.deliver(all, own)
	for _, w := range all {
		for _, id := range ids {
			if w != m {
				w.Interest(records.Name{Provider: provider, ID: id}, m.id)
			}
			for _, data := range w.pool.About([]records.Name{records.Name{Provider: provider, ID: id}}, m.id, time.Now()) {
				st := m.open(data, w != m)
				d := ask.Delivered{Statement: st}
				if st.By == w.id {
					d.From = w.network
				}
				out = append(out, d)
			}
		}
	}
	pass(ctx, oneWay)
	return out
}

// say is ask.Findings.Tell without a network.
func (m *member) say(_ context.Context, ids []peer.ID, own []byte) {
	var to []*member
	for _, w := range m.peers {
		if slices.Contains(ids, w.id) {
			to = append(to, w)
		}
	}
	m.deliver(to, own)
}

// hand is ask.Findings.Hand without a network.
func (m *member) hand(ctx context.Context, to peer.ID, n records.Name) {
	pass(ctx, oneWay)
	for _, w := range m.peers {
		if w.id == to {
			w.Interest(n, m.id)
		}
	}
}

func (m *member) deliver(to []*member, own []byte) {
	pass(m.t.Context(), oneWay)
	for _, w := range to {
		if len(own) > 0 {
			st := m.open(own, w != m)
			w.pool.Put(st, m.network, time.Now())
			if w != m {
				w.Hear(st, m.network)
			}
		}
	}
}

// open verifies a statement, once for all members, and counts it.
func (s *society) open(data []byte, travels bool) protocol.Statement {
	if s.goods != nil && travels {
		s.goods.bytes.Add(int64(len(data)))
	}
	if st, ok := s.opened.Get(string(data)); ok {
		return st
	}
	st, err := protocol.OpenFindings("test", data, time.Now())
	require.NoError(s.t, err)
	s.opened.Add(string(data), st)
	return st
}

// pass lets time pass, at most until the end of ctx.
func pass(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// live runs all members, and has the last asking of them ask every five seconds.
func (s *society) live(asking int, play func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	for i, m := range s.peers {
		all.Go(func() { m.Run(ctx) })
		if i < len(s.peers)-asking {
			continue
		}
		all.Go(func() {
			for ctx.Err() == nil {
				m.Want([]*records.Record{s.offer})
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Second):
				}
			}
		})
	}
	play()
	cancel()
	all.Wait()
}

func (s *society) set(alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive, s.probes = alive, nil
}

func (s *society) probed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.probes)
}

// hidden counts the members of a part that leave the offer out.
func (s *society) hidden(part []*member) (n int) {
	for _, m := range part {
		if _, dead := m.Dead(s.offer); dead {
			n++
		}
	}
	return n
}

// Many consumers of one offer cost it one check a minute.
func TestOneCheckServesAll(t *testing.T) {
	if testing.Short() {
		t.Skip("plays at size what shorter tests play")
	}
	for kind, society := range both() {
		synctest.Test(t, func(t *testing.T) {
			s := society(t, 45)
			consumers := s.peers[ask.Witnesses:]
			s.live(len(consumers), func() {
				time.Sleep(10 * time.Minute) // each measures once or twice before it hears of others
				s.set(true)
				time.Sleep(20 * time.Minute)
				t.Logf("%d consumers: %d checks of the %s in 20 minutes", len(consumers), s.probed(), kind)
				require.LessOrEqual(t, s.probed(), 20+1)
				require.GreaterOrEqual(t, s.probed(), 19)
				require.Zero(t, s.hidden(s.peers))
				own := 0
				for _, m := range consumers {
					row := m.Of(s.offer, &queries.Evidence{})
					r := cmp.Or(row.Endpoint, row.Peer)
					require.True(t, r.State.Alive())
					if r.Peers == 0 {
						own++
					}
				}
				require.LessOrEqual(t, own, 1, "the guest")
			})
		})
	}
}

// A death is in nobody's answer a minute after the last check, and the time that it takes to tell silence. A return is seen as soon.
func TestDeathIsKnownToAll(t *testing.T) {
	rounds := 8
	switch {
	case testing.Short():
		rounds = 1
	case *manyDeaths:
		rounds = 100
	}
	play := func(kind string, society func(*testing.T, int) *society, death probe.State, most time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s := society(t, 40)
			s.death = death
			consumers := s.peers[ask.Witnesses:]
			seed := mathrand.New(mathrand.NewPCG(1, 2))
			var died, back []time.Duration
			checks := 0
			s.live(len(consumers), func() {
				time.Sleep(10 * time.Minute)
				for range rounds {
					time.Sleep(time.Duration(seed.Int64N(int64(5 * time.Minute))))
					s.set(false)
					died = append(died, s.until(consumers, len(consumers))...)
					checks += s.probed()
					time.Sleep(time.Duration(seed.Int64N(int64(5 * time.Minute))))
					s.set(true)
					back = append(back, s.until(consumers, 0)...)
				}
			})
			slices.Sort(died)
			slices.Sort(back)
			at := func(list []time.Duration, part float64) time.Duration {
				return list[int(part*float64(len(list)-1))].Round(time.Millisecond)
			}
			t.Logf("%s %s: out of an answer after p50 %v, p99 %v, most %v; back after p50 %v, p99 %v; %d checks of a death", kind, death,
				at(died, 0.5), at(died, 0.99), at(died, 1), at(back, 0.5), at(back, 0.99), checks/rounds)
			require.LessOrEqual(t, at(died, 1), most)
			require.LessOrEqual(t, at(back, 1), most)
		})
	}
	for kind, society := range both() {
		play(kind, society, probe.Refuses, time.Minute+time.Second)
		silent := time.Minute + 9*time.Second
		if kind == "peer" {
			silent += probe.Timeout
		}
		play(kind, society, probe.Silent, silent)
	}
}

// Most outages are short. Who found a silent endpoint dead by itself looks again after 20 s and 40 s, whatever the witnesses do.
func TestShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 40)
		s.death = probe.Refuses
		consumers := s.peers[ask.Witnesses:]
		seed := mathrand.New(mathrand.NewPCG(3, 4))
		hid := 0
		s.live(len(consumers), func() {
			time.Sleep(10 * time.Minute)
			for range 10 {
				time.Sleep(time.Duration(seed.Int64N(int64(5 * time.Minute))))
				s.set(false)
				time.Sleep(40 * time.Second)
				hid += s.hidden(consumers)
				s.set(true)
				back := s.until(consumers, 0)
				require.LessOrEqual(t, slices.Max(append(back, 0)), 42*time.Second)
			}
		})
		require.Positive(t, hid)
	})
}

// until waits until so many of a part hide the offer, and returns when each of them changed its mind.
func (s *society) until(part []*member, n int) (after []time.Duration) {
	began := time.Now()
	changed := make(map[*member]bool)
	for len(changed) < len(part) {
		require.Less(s.t, time.Since(began), 5*time.Minute)
		for _, m := range part {
			if !changed[m] && (s.hidden([]*member{m}) == 1) == (n > 0) {
				changed[m] = true
				after = append(after, time.Since(began))
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return after
}

// Nobody asks: a few checks an hour.
func TestIdleOffersAreSeldomChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 20)
		s.live(0, func() {
			time.Sleep(4 * time.Hour)
			require.InDelta(t, 60, s.probed(), 2)
		})
	})
}

// A witness checks no offer that is gone.
func TestDutiesEndWithTheOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 20)
		s.live(0, func() {
			time.Sleep(time.Hour)
			require.NotZero(t, s.probed())
			s.mu.Lock()
			s.gone = true
			s.mu.Unlock()
			time.Sleep(dutyRenewal + dutySlot)
			s.set(true)
			time.Sleep(4 * time.Hour)
			require.Zero(t, s.probed())
		})
	})
}

// act has a member do what is due now.
func (m *member) act() {
	for _, do := range m.work(endpointWidth) {
		do(m.t.Context())
	}
}

// say hands a member the finding of another one.
func (s *society) tell(to, by *member, from netip.Prefix, state records.Reachability, at time.Time) {
	f := protocol.Finding{Provider: s.offer.Name().Provider, Record: s.about().ID, State: s.said(state), CheckedAt: at}
	to.Hear(protocol.Statement{By: by.id, Findings: []protocol.Finding{f}}, from)
}

// Before a peer checks what it shows, it asks the witnesses of each provider once. What cannot be measured is not.
func TestQuestionsComeBeforeChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 7)
		asker, asked := s.peers[6], 0
		exchange := asker.Sharing.Witness
		asker.Sharing.Witness = func(ctx context.Context, id peer.ID, ids []string, own []byte) []ask.Delivered {
			asked += len(ids)
			return exchange(ctx, id, ids, own)
		}
		shown := []*records.Record{s.offer, s.unnamed[0], s.unnamed[1]}
		asker.Want(shown)
		asker.act()
		require.Equal(t, len(shown), asked)
		require.Zero(t, s.probed())
		for range 5 {
			time.Sleep(endpointEvery)
			asker.Want(shown)
			asker.act()
			time.Sleep(2 * endpointTick)
			asker.act()
		}
		require.NotZero(t, s.probed())
		require.NotContains(t, s.targets, "", "an offer without an endpoint")
	})
}

// The word of a quorum replaces all checks of what a peer shows but the first.
func TestFirstCheckIsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 7)
		asker := s.peers[6]
		for range 30 {
			asker.Want([]*records.Record{s.offer})
			for _, m := range s.peers[:ask.Witnesses] {
				s.tell(asker, m, m.network, records.Answers, time.Now())
			}
			for range 12 {
				asker.Want([]*records.Record{s.offer})
				asker.act()
				time.Sleep(5 * time.Second)
			}
			require.Equal(t, 1, s.probed())
		}
		time.Sleep(endpointStands)
		asker.Want([]*records.Record{s.offer})
		for range 3 {
			asker.act()
			time.Sleep(5 * time.Second)
		}
		require.Equal(t, 2, s.probed(), "it begins to show it again")
	})
}

// A peer that looks for its duties forgets no check that others' failed ones caused.
func TestDutiesDropNoCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 7)
		s.set(false)
		asker := s.peers[6]
		asker.Want([]*records.Record{s.offer})
		asker.act() // the question
		for _, m := range s.peers[:3] {
			s.tell(asker, m, m.network, records.Refuses, time.Now())
		}
		asker.assume(t.Context())
		asker.act()
		require.Equal(t, 1, s.probed())
		require.Equal(t, 1, s.hidden(s.peers[6:]))
	})
}

// What others found at an earlier endpoint hides no new one.
func TestMovedOfferIsNotHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 4)
		s.set(false)
		asker := s.peers[3]
		asker.Want([]*records.Record{s.offer})
		at := time.Now()
		say := func() {
			for _, m := range s.peers[:3] {
				s.tell(asker, m, m.network, records.Silent, at)
			}
		}
		say()
		time.Sleep(endpointAgain)
		asker.act()
		require.Equal(t, 1, s.hidden(s.peers[3:]))
		time.Sleep(time.Minute)
		asker.Want([]*records.Record{s.moved})
		say()
		asker.act() // the question
		time.Sleep(2 * endpointTick)
		asker.act() // the first check
		_, dead := asker.Dead(s.moved)
		require.False(t, dead)
		at = time.Now()
		say()
		_, dead = asker.Dead(s.moved)
		require.True(t, dead)
	})
}

// Two of five witnesses that always lie hide no living endpoint, and keep no dead one alive.
func TestMinorityDecidesNothing(t *testing.T) {
	play := func(society func(*testing.T, int) *society, lie records.Reachability) {
		synctest.Test(t, func(t *testing.T) {
			s := society(t, 12)
			honest := s.peers[ask.Witnesses:]
			for _, m := range s.peers[:2] {
				m.lies = lie
			}
			s.live(len(honest), func() {
				for range 60 {
					time.Sleep(30 * time.Second)
					require.Zero(t, s.hidden(honest), "%s", lie)
				}
				s.set(false)
				time.Sleep(6 * time.Minute)
				require.Equal(t, len(honest), s.hidden(honest), "%s", lie)
			})
		})
	}
	for _, society := range both() {
		play(society, records.Silent)
		play(society, records.Answers)
	}
}

// Three keys behind one address are one measurer's voice: the quorum counts the networks of measurers, not of those who deliver. An own
// check beats all of them.
func TestQuorumCountsNetworksOfMeasurers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 8)
		asker := s.peers[7]
		asker.Want([]*records.Record{s.offer})
		say := func(by *member, from netip.Prefix, state records.Reachability) {
			s.tell(asker, by, from, state, time.Now())
		}
		for _, m := range s.peers[:5] {
			say(m, m.network, records.Silent)
		}
		require.Zero(t, s.hidden(s.peers[7:]), "nothing is dead by the word of others alone")
		time.Sleep(endpointAgain)
		asker.act()
		require.Zero(t, s.hidden(s.peers[7:]), "an answer beats them")

		time.Sleep(endpointEvery)
		s.set(false)
		for _, m := range s.peers[:4] {
			say(m, s.peers[0].network, records.Silent)
		}
		asker.act()
		require.Equal(t, 1, s.probed())
		require.Zero(t, s.hidden(s.peers[7:]))
		say(s.peers[4], s.peers[4].network, records.Answers)
		say(s.peers[5], s.peers[5].network, records.Silent)
		require.Equal(t, 1, s.hidden(s.peers[7:]))
		for _, m := range s.peers[:6] {
			say(m, m.network, records.Answers)
		}
		require.Zero(t, s.hidden(s.peers[7:]))
	})
}

// Every fifth of a hundred peers lies about every endpoint: it calls the living dead and the dead living. No living endpoint is hidden,
// although in 6 % of the verdicts three or more of the five witnesses lie. Each liar causes few checks before nobody listens to it.
func TestColludersHideNothing(t *testing.T) {
	verdicts := 11_000
	if *manyDeaths {
		verdicts = 110_000
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 101)
		asker, others := s.peers[100], s.peers[:100]
		seed := mathrand.New(mathrand.NewPCG(3, 4))
		r := s.offer
		majorities, dead, found := 0, 0, 0
		for i := range verdicts {
			s.set(i%11 > 0)
			asker.known.Purge()
			rounds := 1
			if !s.alive {
				rounds, dead = 6, dead+1
			}
			asker.Want([]*records.Record{r})
			for range rounds { // of a dead one six are played
				liars := 0
				for n, at := range seed.Perm(100)[:ask.Witnesses] {
					state := records.Answers
					if lies := at%5 == 0; lies == s.alive { // the truth of a dead one, or a lie about a living one
						state = records.Silent
					}
					if at%5 == 0 {
						liars++
					}
					s.tell(asker, others[at], others[at].network, state, time.Now().Add(time.Duration(n)*time.Millisecond))
				}
				if s.alive && liars >= quorum {
					majorities++
				}
				asker.Want([]*records.Record{r})
				asker.act()
				time.Sleep(endpointAgain + time.Second)
				asker.act()
				if s.hidden(s.peers[100:]) > 0 {
					break
				}
			}
			if hidden := s.hidden(s.peers[100:]); s.alive {
				require.Zero(t, hidden)
			} else {
				found += hidden
			}
		}
		t.Logf("%d verdicts about living endpoints, %d of them with a majority of liars: none hidden; %d of %d dead ones found", verdicts-dead, majorities, found, dead)
		require.NotZero(t, majorities)
		require.Equal(t, dead, found)
	})
}

// An endpoint that answers its witnesses alone is left out by all who show it: soon after they begin, or soon after it began. A peer that
// gets no answer asks seldom.
func TestAnswersForWitnessesAloneDeceiveNobody(t *testing.T) {
	for _, later := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSociety(t, 25)
			s.alive, s.death = later, toWitnesses
			consumers := s.peers[ask.Witnesses:]
			s.live(len(consumers), func() {
				most := 30 * time.Second
				if later {
					time.Sleep(10 * time.Minute)
					require.Zero(t, s.hidden(consumers))
					s.set(false)
					most = 6 * time.Minute
				}
				after := s.until(consumers, len(consumers))
				t.Logf("later %v: the first of %d consumers leaves it out after %v, the last after %v", later, len(after), after[0], after[len(after)-1])
				require.LessOrEqual(t, after[len(after)-1], most)
				time.Sleep(15 * time.Minute)
				s.set(false)
				time.Sleep(15 * time.Minute)
				require.Equal(t, len(consumers), s.hidden(consumers))
				t.Logf("%.2f checks a minute while %d do without it", float64(s.probed())/15, len(consumers))
				require.LessOrEqual(t, s.probed()/15, len(consumers)/2)
				s.set(true)
				time.Sleep(7 * time.Minute)
				require.Zero(t, s.hidden(consumers))
			})
		})
	}
}
