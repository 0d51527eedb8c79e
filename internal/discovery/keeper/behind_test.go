package keeper

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// missing is a light network in which keepers miss changes. Every complete answer must have exactly the live records.
type missing struct {
	*lightCluster
	random *rand.Rand
	plan   *queries.Plan
	owner  keepertest.Provider
	live   map[string]*records.Record

	asked, complete int
}

func newMissing(t *testing.T, seed uint64) *missing {
	random := rand.New(rand.NewPCG(seed, 7))
	m := &missing{
		lightCluster: newLimitedCluster(t, 4+random.IntN(27), protocol.Limits{}), random: random, owner: keepertest.NewProvider(t),
		plan: keepertest.Compile(t, query.Query{Limit: 100, Explain: true}), live: make(map[string]*records.Record),
	}
	for _, n := range m.nodes {
		n.sync.Table()
		n.sync.Know.SetInformed(true, time.Now())
	}
	m.dht.edit(func() {
		m.dht.clients = []peer.ID{m.nodes[0].Self}
		m.dht.fire()
	})
	settled := 15 * time.Second
	if seed%5 == 0 {
		settled = 25 * time.Minute // of a large network
	}
	time.Sleep(settled)
	return m
}

// announce stores a change through a node while some messages are lost, and returns the receipt.
func (m *missing) announce(from *lightNode, r *records.Record, lost func(from, to peer.ID) bool) records.Stored {
	m.hosts.lose(lost)
	o := from.Store(m.t.Context(), []*records.Record{r})[0]
	require.NoError(m.t, o.Err)
	if r.Withdrawn() {
		delete(m.live, r.Name().ID)
	} else {
		m.live[r.Name().ID] = r
	}
	return o.Stored
}

// change registers, updates or withdraws a service.
func (m *missing) change(step int) *records.Record {
	for id, r := range m.live {
		switch m.random.IntN(4) {
		case 0:
			return m.owner.Withdraw(m.t, r, time.Now())
		case 1:
			return m.owner.Sign(m.t, keepertest.Offer(id, keepertest.Nowhere, keepertest.Priced(m.random.Float64())), r.Sequence()+1, time.Now())
		}
	}
	return m.owner.Sign(m.t, keepertest.Offer(fmt.Sprint("r", step), keepertest.Nowhere), 1, time.Now())
}

func (m *missing) pose(n *lightNode) {
	found, err := n.Query(m.t.Context(), m.plan)
	m.asked++
	if err != nil || !found.Complete {
		return
	}
	m.complete++
	got := make(map[string]uint64)
	for _, r := range found.Records {
		got[r.Name().ID] = r.Sequence()
	}
	want := make(map[string]uint64)
	for id, r := range m.live {
		want[id] = r.Sequence()
	}
	require.Equal(m.t, want, got, "%d peers, asked %s, notes %v", len(m.nodes), n.Self, found.Notes)
}

func (m *missing) some() *lightNode { return m.nodes[1+m.random.IntN(len(m.nodes)-1)] }

// One keeper gets no message of the publisher. As soon as the announcement ends, complete answers lack nothing: at that
// keeper, at another one, and at a peer that is none.
func TestKeeperThatMissesAChange(t *testing.T) {
	atSize(t)
	seeds := 15
	if os.Getenv("TEST_LONG") != "" {
		seeds = 1000
	}
	asked, complete := 0, 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			m := newMissing(t, seed)
			defer m.close()
			for step := range 6 {
				r := m.change(step)
				from, deaf := m.some(), m.some()
				for from == deaf {
					from = m.some()
				}
				s := m.announce(from, r, func(a, b peer.ID) bool { return a == from.Self && b == deaf.Self })
				require.Equal(t, s.Of, s.On)
				for _, n := range []*lightNode{deaf, m.nodes[0], m.some(), deaf, m.nodes[0], m.some()} {
					m.pose(n)
				}
				time.Sleep(time.Duration(m.random.IntN(10_000)) * time.Millisecond)
			}
			m.requireTrust()
			asked, complete = asked+m.asked, complete+m.complete
		})
	}
	t.Logf("%d of %d answers were complete, and none of them lacked a change", complete, asked)
	require.Greater(t, complete, asked*9/10)
}

// Each keeper missed another change: a registration, an update or a withdrawal. Complete answers lack nothing, and return
// nothing that was withdrawn.
func TestAnswersOfKeepersThatAreBehind(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 9))
			w := newLightCluster(t, 3+random.IntN(12))
			defer w.close()
			p, now := keepertest.NewProvider(t), time.Now()
			var want []string
			for i := range 1 + random.IntN(2*len(w.nodes)) {
				id := fmt.Sprintf("r%02d", i)
				last := p.Sign(t, keepertest.Offer(id, keepertest.Nowhere), 1, now)
				versions := []*records.Record{last}
				switch i % 3 {
				case 1:
					last = p.Sign(t, keepertest.Offer(id, keepertest.Nowhere, keepertest.Priced(7)), 2, now)
					versions = append(versions, last)
				case 2:
					last = p.Withdraw(t, last, now)
					versions = append(versions, last)
				}
				if !last.Withdrawn() {
					want = append(want, fmt.Sprint(id, last.Sequence()))
				}
				late := random.IntN(len(w.nodes))
				for j, n := range w.nodes {
					for _, r := range versions {
						if j != late || r != last {
							_, err := n.Index.Put(r, now)
							require.NoError(t, err)
						}
					}
				}
			}
			slices.Sort(want)
			plan := keepertest.Compile(t, query.Query{Limit: 100, Explain: true})
			for _, n := range w.nodes {
				found, err := n.Asker.Find(t.Context(), plan, plan.Cells(coverCells))
				require.NoError(t, err)
				require.True(t, found.Complete, found.Reason)
				got := make([]string, 0, len(found.Records))
				for _, r := range found.Records {
					got = append(got, fmt.Sprint(r.Name().ID, r.Sequence()))
				}
				slices.Sort(got)
				require.Equal(t, want, got, found.Notes)
			}
			w.requireTrust()
		})
	}
}

// A keeper that hears of a new record before the record arrives has missed nothing. If the record does not arrive, the keeper has, and
// compares: a provider that changes an offer each second would otherwise keep it from ever answering.
func TestChangeOnItsWay(t *testing.T) {
	for name, arrives := range map[string]bool{"arrives": true, "is lost": false} {
		synctest.Test(t, func(t *testing.T) {
			w := newLimitedCluster(t, 12, protocol.Limits{Sync: time.Hour})
			defer w.close()
			time.Sleep(5 * time.Minute)
			late, owner := w.nodes[3], keepertest.NewProvider(t)
			plan := keepertest.Compile(t, query.Query{Limit: 100})
			r := owner.Sign(t, keepertest.Offer("r", keepertest.Nowhere), 1, time.Now())
			for _, n := range w.nodes {
				if n != late {
					_, err := n.Index.Put(r, time.Now())
					require.NoError(t, err)
				}
			}
			found, err := late.Asker.Find(t.Context(), plan, plan.Cells(coverCells))
			require.NoError(t, err)
			require.Len(t, found.Records, 1)
			require.True(t, found.Complete, found.Reason)
			require.False(t, late.authority.Know.Late.Load(), name)
			if arrives {
				require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
			}
			missed := false
			for range 60 {
				time.Sleep(time.Second)
				missed = missed || late.authority.Know.Late.Load()
			}
			require.Equal(t, !arrives, missed, name)
			require.False(t, late.authority.Know.Late.Load(), "it has compared")
		})
	}
}

// A keeper that alone lists new records, of a provider that reaches nobody else or of its own, makes no other one doubt its records: answers
// have what it lists, and are complete.
func TestOneListerIsNoEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLimitedCluster(t, 12, protocol.Limits{})
		defer w.close()
		time.Sleep(5 * time.Minute)
		asker := w.nodes[3]
		lister := w.node(asker.askingOrder(keep.NewSet(w.dht.peers, nil))[1])
		plan := keepertest.Compile(t, query.Query{Limit: 100})
		for i := range 20 {
			r := keepertest.NewProvider(t).Sign(t, keepertest.Offer(fmt.Sprint("r", i), keepertest.Nowhere), 1, time.Now())
			_, err := lister.Index.Put(r, time.Now())
			require.NoError(t, err)
			found, err := asker.Asker.Find(t.Context(), plan, plan.Cells(coverCells))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Len(t, found.Records, i+1)
			for range 20 { // until the lister is asked again, which contradicted the others
				time.Sleep(time.Second)
				for _, n := range w.nodes {
					require.False(t, n.authority.Know.Late.Load())
				}
			}
		}
		w.requireTrust()
	})
}

// A keeper whose limit keeps a record out is not behind: its answer stays full.
func TestRecordKeptOutByALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 5, never, func(i int, c *protocol.Config) {
			if i > 0 {
				c.Index = index.New(index.Config{MaxPerProvider: 1})
			}
		})
		p := keepertest.NewProvider(t)
		for _, o := range w.nodes[1].Store(t.Context(), keepertest.Batch(t, p, 2, time.Now())) {
			require.NoError(t, o.Err)
		}
		a := w.nodes[0]
		asked, plan := a.counts.Operations("ask"), keepertest.Compile(t, query.Query{Explain: true})
		found, err := a.Asker.Find(t.Context(), plan, plan.Cells(coverCells))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Len(t, found.Records, 2)
		require.Equal(t, 6, a.counts.Operations("ask")-asked, "three others, as the totals differ, and a probe of each")
		for _, note := range found.Notes {
			require.NotContains(t, note, "is not full")
		}
	})
}

// A keeper with a full index says so, and others answer.
func TestKeeperWithAFullIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		w := newCluster(t, 5, never, func(i int, c *protocol.Config) {
			if i == 1 {
				c.Index = index.New(index.Config{MaxBytes: 8 << 10})
			}
		})
		for _, o := range w.nodes[0].Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), n, time.Now())) {
			require.NoError(t, o.Err)
		}
		full := w.nodes[1]
		require.True(t, full.Index.Crowded(time.Now()))
		require.Less(t, full.Index.Len(), n)
		plan := keepertest.Compile(t, query.Query{Limit: n})
		for i := range w.nodes {
			found, err := w.nodes[i].Asker.Find(t.Context(), plan, plan.Cells(coverCells))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Len(t, found.Records, n)
		}
		own := full.answerHere(cellQuery{plan: plan, cells: plan.Cells(coverCells)})
		require.False(t, own.full)
		require.Equal(t, "its index is full and may lack some", own.doubt)
		w.requireTrust()
	})
}

// A keeper dies without a word. Answers of the others stay right, also about changes that come later, or say why they
// may not be.
func TestSilentLoss(t *testing.T) {
	atSize(t)
	asked, complete := 0, 0
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			m := newMissing(t, seed)
			defer m.close()
			all := func(peer.ID, peer.ID) bool { return false }
			for step := range 3 {
				m.announce(m.some(), m.change(step), all)
			}
			dead := m.some()
			gone := func(a, b peer.ID) bool { return a == dead.Self || b == dead.Self }
			m.hosts.lose(gone)
			for step := range 5 {
				from := m.some()
				for from == dead {
					from = m.some()
				}
				for range 4 {
					if n := m.nodes[m.random.IntN(len(m.nodes))]; n != dead {
						m.pose(n)
					}
				}
				if s := m.announce(from, m.change(3+step), gone); len(m.nodes) <= keep.Network {
					require.Less(t, s.On, s.Of)
				}
			}
			m.requireTrust()
			asked, complete = asked+m.asked, complete+m.complete
		})
	}
	t.Logf("%d of %d answers were complete, and none of them lacked a change", complete, asked)
	require.Positive(t, complete)
}

// A keeper that is too busy to take a change knows that it lacks one: its answers say so until it has compared.
func TestBusyKeeperKnowsThatItLacksAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3)
		a, busy := w.nodes[0], w.nodes[1]
		time.Sleep(time.Minute)
		plan := keepertest.Compile(t, query.Query{})
		_, ok := busy.Local(plan)
		require.True(t, ok)
		leave := busy.server.turns.occupy(t)
		r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one", keepertest.Nowhere), 1, time.Now())
		require.Equal(t, records.Stored{On: 2, Of: 3}, a.Store(t.Context(), []*records.Record{r})[0].Stored)
		leave()
		_, ok = busy.Local(plan)
		require.False(t, ok)
		require.Equal(t, "it lacks changes that other keepers have", busy.sync.Doubt(plan.Cells(1)[0]))
		found, err := busy.Query(t.Context(), plan)
		require.NoError(t, err)
		require.Len(t, found.Records, 1)
		time.Sleep(15 * time.Second)
		found, ok = busy.Local(plan)
		require.True(t, ok)
		require.Len(t, found.Records, 1)
	})
}

// A keeper forwards only records that it holds, to peers that it knows.
func TestForwardServesOnlyKeepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLightCluster(t, 4)
		defer w.close()
		p := keepertest.NewProvider(t)
		held, other := p.Sign(t, keepertest.Offer("held"), 1, time.Now()), p.Sign(t, keepertest.Offer("other"), 1, time.Now())
		by, to := w.nodes[1], w.nodes[2]
		_, err := by.Index.Put(held, time.Now())
		require.NoError(t, err)
		for _, tc := range []struct {
			name string
			to   peer.ID
			r    *records.Record
			want error
		}{
			{"held", to.Self, held, nil},
			{"not held", to.Self, other, fault.NotFound},
			{"to a stranger", p.Id, held, fault.Forbidden},
			{"to the publisher", w.nodes[0].Self, held, fault.Forbidden},
		} {
			req := &pb.ForwardRequest{To: []byte(tc.to), Items: []*pb.StoreItem{item(tc.r)}}
			resp, _, err := w.nodes[0].client.Call(t.Context(), by.Self, &pb.Request{Op: &pb.Request_Forward{Forward: req}})
			require.ErrorIs(t, err, tc.want, tc.name)
			if tc.want == nil {
				require.Len(t, resp.GetForward().GetResults(), 1)
				require.Nil(t, resp.GetForward().GetResults()[0].GetRefusal())
			}
		}
		_, ok := to.Index.Get(held.Name())
		require.True(t, ok)
		require.Zero(t, w.nodes[0].Index.Len())

		defer by.server.turns.occupy(t)()
		resp := by.server.respond(protocol.Source{Peer: w.nodes[0].Self}, &pb.Request{Op: &pb.Request_Forward{Forward: &pb.ForwardRequest{
			To: []byte(to.Self), Items: []*pb.StoreItem{item(held)},
		}}}, nil)
		require.EqualValues(t, fault.Unavailable, resp.GetRefusal().GetCode(), "to verify needs a turn")
	})
}
