package truth

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/records"
)

// goods are many offers of many providers, with the truth about each endpoint.
type goods struct {
	offers    []*records.Record
	witnesses map[peer.ID][]*member
	dies      map[string]time.Time   // by host; none: it lives
	back      map[string]time.Time   // by host; none: it stays dead
	how       map[string]probe.State // it dies
	bytes     atomic.Int64           // of statements
}

const (
	ofProvider = 25 // offers
	likely     = 10 // shown
	reserve    = 5  // in their place
)

func (s *society) sell(n int, peers []*member, metadata func(n int) records.Metadata) {
	g := &goods{
		witnesses: make(map[peer.ID][]*member), dies: make(map[string]time.Time), back: make(map[string]time.Time), how: make(map[string]probe.State),
	}
	var key crypto.PrivKey
	var err error
	for i := range n {
		if i%ofProvider == 0 {
			key, _, err = crypto.GenerateEd25519Key(rand.Reader)
			require.NoError(s.t, err)
		}
		now := time.Now()
		r, err := records.Sign("test", key, records.Offer{ID: fmt.Sprintf("o%05d", i), Metadata: metadata(i)},
			records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(24 * time.Hour)})
		require.NoError(s.t, err)
		g.offers = append(g.offers, r)
		p := r.Name().Provider
		if g.witnesses[p] == nil {
			place := func(m *member) uint64 {
				h := fnv.New64a()
				_, _ = h.Write([]byte(p + m.id))
				return h.Sum64()
			}
			near := slices.SortedFunc(slices.Values(peers), func(a, b *member) int { return cmp.Compare(place(a), place(b)) })
			g.witnesses[p] = near[:ask.Witnesses]
		}
	}
	s.goods = g
}

// fate is what an endpoint does now.
func (g *goods) fate(host string) (death probe.State, alive bool) {
	at, dies := g.dies[host]
	back, returns := g.back[host]
	now := time.Now()
	return g.how[host], !dies || now.Before(at) || returns && now.After(back)
}

func hostOf(r *records.Record) string {
	t, _ := targetOf(r)
	return t.Host
}

// browse has a consumer show ten offers, with a reserve in the place of those that it knows to be dead, again every five seconds.
func (m *member) browse(ctx context.Context, seed *mathrand.Rand, shown *[]*records.Record) {
	for ctx.Err() == nil {
		var living, dead []*records.Record
		for _, r := range *shown {
			if _, is := m.Dead(r); is {
				dead = append(dead, r)
			} else {
				living = append(living, r)
			}
		}
		for len(living) < likely+reserve {
			r := m.goods.offers[seed.IntN(len(m.goods.offers))]
			if _, is := m.Dead(r); !is && !slices.Contains(living, r) {
				living = append(living, r)
			}
		}
		m.mu2().Lock()
		*shown = living
		m.mu2().Unlock()
		m.Want(living)
		m.Want(dead)
		pass(ctx, 5*time.Second)
	}
}

// hides counts the living endpoints that a member leaves out. One that came back within a minute does not count: it waits for its check.
func (m *member) hides() (n int) {
	for _, r := range m.Buried() {
		if _, alive := m.goods.fate(hostOf(r)); alive && time.Since(m.goods.back[hostOf(r)]) > time.Minute {
			n++
			if *realEndpoints && n < 3 {
				e, _ := m.known.Peek(r.Name())
				m.t.Logf("hidden %v: own %s %s %v ago, %d fails, heard %v", r.Service().GetMetadata().GetEndpoints(), e.last.State, e.last.Detail, time.Since(e.last.CheckedAt), e.fails, len(e.heard))
			}
		}
	}
	return n
}

// Of many offers 60 % refuse, fall silent or answer wrongly within a minute. A minute later nearly all that consumers are shown serve. The
// network checks each offer once a minute meanwhile, however many consumers show it, and tells nobody of the checks while nobody asks.
func TestWhatIsShownServes(t *testing.T) {
	if testing.Short() {
		t.Skip("plays at size what shorter tests play")
	}
	offers := *market
	peers, consumers, minute, run := min(40, offers/10), offers/10, time.Minute, synctest.Test
	if *realEndpoints {
		consumers, minute, run = min(100, consumers), 12*time.Second, func(t *testing.T, f func(*testing.T)) { f(t) }
	}
	run(t, func(t *testing.T) {
		s := newSociety(t, peers+consumers)
		if *realEndpoints {
			s.listen(offers, peers)
		} else {
			s.sell(offers, s.peers[:peers], func(n int) records.Metadata {
				return records.Metadata{Type: "relay", Endpoints: []string{fmt.Sprintf("https://o%05d.net", n)}}
			})
		}
		seed := mathrand.New(mathrand.NewPCG(5, 6))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, m := range s.peers {
			all.Go(func() { m.Run(ctx) })
		}
		time.Sleep(5 * minute)
		s.set(true)
		s.goods.bytes.Store(0)
		time.Sleep(4 * minute)
		t.Logf("idle: %.2f checks of an offer a minute, %.0f bytes of statements a minute and peer", float64(s.probed())/(4*minute).Minutes()/float64(offers),
			float64(s.goods.bytes.Load())/(4*minute).Minutes()/float64(peers))
		if !*realEndpoints {
			require.Zero(t, s.goods.bytes.Load())
		}

		shown := make([][]*records.Record, consumers)
		for i, m := range s.peers[peers:] {
			own := mathrand.New(mathrand.NewPCG(7, uint64(i)))
			all.Go(func() {
				pass(ctx, time.Duration(own.Int64N(int64(5*time.Second))))
				m.browse(ctx, own, &shown[i])
			})
		}
		time.Sleep(5 * minute)
		s.set(true)
		s.mu.Lock()
		s.targets = nil
		s.mu.Unlock()
		s.goods.bytes.Store(0)
		time.Sleep(5 * minute)
		s.mu.Lock()
		count, most := make(map[string]int), 0
		for _, host := range s.targets {
			count[host]++
			most = max(most, count[host])
		}
		seen := make(map[string]bool)
		total := 0
		for _, list := range shown {
			for _, r := range list[:likely] {
				if !seen[hostOf(r)] {
					seen[hostOf(r)] = true
					total += count[hostOf(r)]
				}
			}
		}
		s.mu.Unlock()
		mean := float64(total) / (5 * minute).Minutes() / float64(len(seen))
		t.Logf("%d consumers show %d offers: %.2f checks of one a minute, most %.1f; %.0f bytes of statements a minute and peer", consumers, len(seen), mean, float64(most)/(5*minute).Minutes(),
			float64(s.goods.bytes.Load())/(5*minute).Minutes()/float64(peers+consumers))
		if !*realEndpoints { // otherwise colluders cause checks
			require.LessOrEqual(t, mean, 1.05)
		}

		s.mu.Lock()
		for _, r := range s.goods.offers {
			if _, dead := s.goods.dies[hostOf(r)]; !dead && seed.IntN(10) < 6 {
				s.goods.dies[hostOf(r)] = time.Now().Add(time.Duration(seed.Int64N(int64(time.Minute))))
				s.goods.how[hostOf(r)] = []probe.State{probe.Refuses, probe.Silent, probe.Wrong}[seed.IntN(3)]
			}
		}
		s.mu.Unlock()
		if *realEndpoints {
			s.restarts(peers)
		}
		share := 0.0
		for _, after := range []time.Duration{time.Minute, 30 * time.Second, 30 * time.Second, 30 * time.Second} {
			time.Sleep(after)
			serve, results, hidden, fooled := 0, 0, 0, 0
			s.mu.Lock()
			now := slices.Clone(shown) // a consumer replaces its list
			s.mu.Unlock()
			for i, list := range now {
				n := 0
				for _, r := range list {
					if _, dead := s.peers[peers+i].Dead(r); dead || n == likely {
						continue // an answer now would leave it out
					}
					n++
					switch how, alive := s.goods.fate(hostOf(r)); {
					case alive:
						serve++
					case how == toWitnesses:
						fooled++
					}
				}
				results += n
				hidden += s.peers[peers+i].hides()
			}
			t.Logf("%v later: %d of %d results serve, %.2f %%; %d answer none but witnesses; %d times a consumer hides a living one", after, serve, results,
				100*float64(serve)/float64(results), fooled, hidden)
			share = float64(serve) / float64(results)
		}
		if !*realEndpoints {
			require.GreaterOrEqual(t, share, 0.98)
		}
		cancel()
		all.Wait()
	})
}
