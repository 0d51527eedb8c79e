package discovery

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/witness"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// society is a number of peers that share findings about the endpoint of one offer. The first Witnesses of them are its witnesses.
type society struct {
	t      *testing.T
	offer  *records.Record
	moved  *records.Record // its next version, with another endpoint
	peers  []*member
	mu     sync.Mutex // guards the fields below
	alive  bool
	gone   bool // the offer is withdrawn
	probes []time.Time
}

type member struct {
	*society
	*endpoints
	key     crypto.PrivKey
	id      peer.ID
	network netip.Prefix
	pool    *witness.Pool
	lies    records.Reachability // as a measurer it says this, always
}

func newSociety(t *testing.T, n int) *society {
	s := &society{t: t, alive: true}
	provider, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	sign := func(sequence uint64, endpoint string) *records.Record {
		r, err := records.Sign("test", provider, records.Offer{ID: "a", Metadata: records.Metadata{Type: "relay", Endpoints: []string{endpoint}}},
			records.Stamp{Sequence: sequence, Issued: now, Expires: now.Add(24 * time.Hour)})
		require.NoError(t, err)
		return r
	}
	s.offer, s.moved = sign(1, "https://a.net"), sign(2, "https://b.net")
	for i := range n {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		id, err := peer.IDFromPrivateKey(key)
		require.NoError(t, err)
		m := &member{society: s, key: key, id: id, network: netip.MustParsePrefix(fmt.Sprintf("203.0.%d.0/24", i)), pool: witness.NewPool(id)}
		m.endpoints = newEndpoints(m, time.Now, func(*records.Record) bool { return false }, func(*records.Record) {}, &EndpointSharing{
			Network: "test", Key: key, Self: id, Witness: m.exchange,
			Records: s.kept,
			OwnWitnesses: func(peer.ID) []peer.ID {
				if ids := s.witnesses(); slices.Contains(ids, id) {
					return ids
				}
				return nil
			},
		})
		s.peers = append(s.peers, m)
	}
	return s
}

func (s *society) kept() iter.Seq[*records.Record] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return slices.Values([]*records.Record(nil))
	}
	return slices.Values([]*records.Record{s.offer})
}

func (s *society) witnesses() (ids []peer.ID) {
	for _, m := range s.peers[:min(ask.Witnesses, len(s.peers))] {
		ids = append(ids, m.id)
	}
	return ids
}

// Probe is the truth, which a member may not tell.
func (m *member) Probe(context.Context, probe.Target) (probe.Outcome, bool) {
	m.mu2().Lock()
	defer m.mu2().Unlock()
	m.probes = append(m.probes, time.Now())
	if m.lies != "" {
		return probe.Outcome{State: probe.State(m.lies)}, true
	}
	if m.alive {
		return probe.Outcome{State: probe.Answers, RoundTrip: time.Millisecond}, true
	}
	return probe.Outcome{State: probe.Silent}, true
}

func (m *member) mu2() *sync.Mutex { return &m.society.mu }

// exchange is ask.Findings.Witness without a network: what a keeper does is ask.Findings.Serve.
func (m *member) exchange(_ context.Context, _ peer.ID, ids []string, own []byte) (out []ask.Delivered) {
	for _, w := range m.peers[:min(ask.Witnesses, len(m.peers))] {
		if len(own) > 0 {
			st, err := witness.Open("test", own, time.Now())
			require.NoError(m.t, err)
			w.pool.Put(st, m.network, time.Now())
			if w != m {
				w.hear(st, m.network)
			}
		}
		for _, id := range ids {
			if w != m {
				w.interestIn(records.Name{Provider: m.offer.Name().Provider, ID: id})
			}
			for _, data := range w.pool.About([]string{witness.Key(m.offer.Name().Provider, id)}, m.id, time.Now()) {
				st, err := witness.Open("test", data, time.Now())
				require.NoError(m.t, err)
				d := ask.Delivered{Statement: st}
				if st.By == w.id {
					d.From = w.network
				}
				out = append(out, d)
			}
		}
	}
	return out
}

// live runs all members, and has the last asking of them ask every five seconds.
func (s *society) live(asking int, play func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	for i, m := range s.peers {
		all.Go(func() { m.run(ctx) })
		if i < len(s.peers)-asking {
			continue
		}
		all.Go(func() {
			for ctx.Err() == nil {
				m.want([]*records.Record{s.offer})
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
		if _, dead := m.dead(s.offer); dead {
			n++
		}
	}
	return n
}

// Many consumers of one offer cost it one check a minute; its death is known to all within 75 s, and its return within 75 s more.
func TestOneCheckServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 45)
		consumers := s.peers[ask.Witnesses:]
		s.live(len(consumers), func() {
			time.Sleep(5 * time.Minute) // each measures once or twice before it hears of others
			s.set(true)
			time.Sleep(20 * time.Minute)
			t.Logf("%d consumers: %d checks in 20 minutes", len(consumers), s.probed())
			require.LessOrEqual(t, s.probed(), 20+3)
			require.GreaterOrEqual(t, s.probed(), 12)
			require.Zero(t, s.hidden(s.peers))
			for _, m := range consumers {
				e := m.endpoints
				r := e.of(s.offer, &query.Evidence{})
				require.Equal(t, records.Answers, r.State)
				require.GreaterOrEqual(t, r.Peers, 1)
			}
			s.set(false)
			time.Sleep(75*time.Second + fetchEvery)
			require.Equal(t, len(consumers), s.hidden(consumers))
			s.set(true)
			time.Sleep(75*time.Second + fetchEvery)
			require.Zero(t, s.hidden(consumers))
		})
	})
}

// Nobody asks: a few checks an hour.
func TestIdleOffersAreSeldomChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 20)
		s.live(0, func() {
			time.Sleep(4 * time.Hour)
			require.InDelta(t, 16, s.probed(), 2)
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

// What others found at an earlier endpoint hides no new one.
func TestMovedOfferIsNotHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 4)
		asker := s.peers[3]
		asker.want([]*records.Record{s.offer})
		at := time.Now()
		say := func() {
			for _, m := range s.peers[:3] {
				asker.hear(witness.Statement{By: m.id, Findings: []witness.Finding{{Provider: s.offer.Name().Provider, Record: "a", State: records.Silent, CheckedAt: at}}}, m.network)
			}
		}
		say()
		require.Equal(t, 1, s.hidden(s.peers[3:]))
		time.Sleep(time.Minute)
		asker.want([]*records.Record{s.moved})
		say()
		_, dead := asker.dead(s.moved)
		require.False(t, dead)
		at = time.Now()
		say()
		_, dead = asker.dead(s.moved)
		require.True(t, dead)
	})
}

// Two of five witnesses that always lie hide no living endpoint, and keep no dead one alive.
func TestMinorityDecidesNothing(t *testing.T) {
	for _, lie := range []records.Reachability{records.Silent, records.Answers} {
		synctest.Test(t, func(t *testing.T) {
			s := newSociety(t, 12)
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
}

// Three keys behind one address are one measurer's voice: the quorum counts the networks of measurers, not of those who deliver.
func TestQuorumCountsNetworksOfMeasurers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSociety(t, 8)
		asker := s.peers[7]
		asker.want([]*records.Record{s.offer})
		say := func(by *member, from netip.Prefix) {
			st := witness.Statement{By: by.id, Findings: []witness.Finding{{Provider: s.offer.Name().Provider, Record: "a", State: records.Silent, CheckedAt: time.Now()}}}
			asker.hear(st, from)
		}
		for _, m := range s.peers[:4] {
			say(m, s.peers[0].network)
		}
		require.Zero(t, s.hidden(s.peers[7:]))
		say(s.peers[4], s.peers[4].network)
		require.Zero(t, s.hidden(s.peers[7:]))
		say(s.peers[5], s.peers[5].network)
		require.Equal(t, 1, s.hidden(s.peers[7:]))
		forwarded := witness.Statement{By: s.peers[6].id, Findings: []witness.Finding{{Provider: s.offer.Name().Provider, Record: "a", State: records.Answers, CheckedAt: time.Now().Add(time.Second)}}}
		asker.hear(forwarded, netip.Prefix{})
		require.Zero(t, s.hidden(s.peers[7:]), "one later answer speaks against all of them")
	})
}
