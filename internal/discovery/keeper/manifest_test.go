package keeper

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/registry"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// listedOffers is a large network with the five offers of one provider and its manifest.
type listedOffers struct {
	*lightCluster
	owner    keepertest.Provider
	offers   []*records.Record
	manifest *records.Record
	plan     *query.Plan
	keepers  []*lightNode // of the provider's cell
}

func newListedOffers(t *testing.T) *listedOffers {
	w := &listedOffers{lightCluster: newLightCluster(t, 60), owner: keepertest.NewProvider(t)}
	for i := range 5 {
		o := keepertest.Offer(fmt.Sprint("o", i), keepertest.Nowhere, keepertest.Priced(float64(i)))
		w.offers = append(w.offers, w.owner.Sign(t, o, uint64(i+1), time.Now()))
	}
	w.manifest = w.list(w.offers...)
	w.plan = keepertest.Compile(t, query.Query{ProviderID: w.owner.Id.String(), Explain: true})
	w.keepers = w.keepersOf(records.ProviderCell(w.owner.Id))
	w.store(append(slices.Clone(w.offers), w.manifest)...)
	return w
}

func (w *listedOffers) store(list ...*records.Record) {
	for _, o := range w.nodes[0].Store(w.t.Context(), list) {
		require.NoError(w.t, o.Err)
	}
}

// put gives one peer a record.
func (w *listedOffers) put(n *lightNode, r *records.Record) {
	_, err := n.Index.Put(r, time.Now())
	require.NoError(w.t, err)
}

// list signs the manifest of some offers.
func (w *listedOffers) list(offers ...*records.Record) *records.Record {
	st := records.Stamp{Sequence: offers[len(offers)-1].Sequence() + 1, Issued: time.Now(), Expires: time.Now().Add(time.Hour)}
	m, err := records.SignManifest("test", w.owner.Key, offers, nil, st)
	require.NoError(w.t, err)
	return m
}

// hide makes some keepers leave records out.
func (w *listedOffers) hide(from []*lightNode, list ...*records.Record) {
	for _, n := range from {
		for _, r := range list {
			n.Index.Remove(r.Name())
		}
	}
}

// askers are the peers that keep nothing of the provider.
func (w *listedOffers) askers() (list []*lightNode) {
	for _, n := range w.nodes {
		if len(n.Index.OfProvider(w.owner.Id)) == 0 {
			list = append(list, n)
		}
	}
	require.NotEmpty(w.t, list)
	return list
}

func (w *listedOffers) query(n *lightNode, p *query.Plan) query.Found {
	found, err := n.Query(w.t.Context(), p)
	require.NoError(w.t, err)
	return found
}

// The manifest proves an answer, with filters too, at little cost. It is no offer.
func TestManifestProves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newListedOffers(t)
		defer w.close()
		for i, n := range w.askers() {
			most, q := 1.5, w.plan.Query()
			switch i % 3 {
			case 1:
				q.MaxPrice, q.Currency, q.PriceUnit = &most, "USDC", "per-hour"
			case 2:
				q.Limit = 2
			}
			before := w.asks()
			found := w.query(n, keepertest.Compile(t, q))
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, w.manifest.Issued(), found.Proved)
			require.LessOrEqual(t, w.asks()-before, 3+2*(i%3), "what filters leave out comes from the keepers that answered")
			if i%3 == 1 {
				require.Len(t, found.Records, 2)
			}
			before = w.asks()
			require.Equal(t, w.manifest.Issued(), w.query(n, keepertest.Compile(t, q)).Proved)
			require.LessOrEqual(t, w.asks()-before, 3, "it knows the others now")
		}
		for _, n := range w.nodes {
			p := keepertest.Compile(t, query.Query{Type: "manifest"})
			found := w.query(n, p)
			require.Empty(t, found.Records)
			require.Nil(t, found.Beyond)
		}
		w.requireTrust()
	})
}

// Keepers that leave an offer out, those that answer or all, are noticed. One honest keeper among those that are asked further heals
// the answer.
func TestManifestTellsWhatKeepersHide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newListedOffers(t)
		defer w.close()
		askers := w.askers()
		w.hide(w.keepers[:8], w.offers[2])
		for _, n := range askers[:len(askers)/2] {
			found := w.query(n, w.plan)
			healed := len(found.Records) == len(w.offers)
			require.Equal(t, healed, found.Complete, found.Reason)
			require.Equal(t, healed, !found.Proved.IsZero())
			if !healed {
				require.Contains(t, found.Reason, "1 of 5 offers that the provider itself lists are missing")
			}
		}
		w.hide(w.keepers[:3], w.offers[2])
		w.store(w.offers[2])
		w.hide(w.keepers[:2], w.offers[2])
		for _, n := range askers {
			found := w.query(n, w.plan)
			require.True(t, found.Complete, found.Reason)
			require.Len(t, found.Records, len(w.offers), found.Notes)
			require.Equal(t, w.manifest.Issued(), found.Proved)
		}
		w.hide(w.nodes, w.offers[2])
		for _, n := range append(askers, w.keepers...) {
			found := w.query(n, w.plan)
			require.False(t, found.Complete)
			require.Contains(t, found.Reason, "1 of 5 offers that the provider itself lists are missing")
			require.True(t, found.Proved.IsZero())
		}
		w.requireTrust()
	})
}

// Without a manifest an answer has no proof. An older one proves what it lists: it cannot tell that an offer came later, unless a
// keeper shows that offer.
func TestReplayedManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newListedOffers(t)
		defer w.close()
		askers, old := w.askers(), w.manifest
		w.hide(w.nodes, old)
		found := w.query(askers[0], w.plan)
		require.True(t, found.Complete, found.Reason)
		require.True(t, found.Proved.IsZero())

		time.Sleep(time.Minute)
		later := w.owner.Sign(t, keepertest.Offer("later", keepertest.Nowhere), old.Sequence()+1, time.Now())
		w.store(old) // and nobody has the newer one, nor the offer
		found = w.query(askers[1], w.plan)
		require.Equal(t, old.Issued(), found.Proved, "its time is all that tells")

		w.put(w.keepers[0], later)
		seen := 0
		for _, n := range askers {
			found := w.query(n, w.plan)
			if len(found.Records) > len(w.offers) {
				seen++
				require.True(t, found.Proved.IsZero(), "a list without it is old")
			}
		}
		require.Positive(t, seen)

		newer := w.list(append(slices.Clone(w.offers), later)...)
		w.put(w.keepers[9], newer)
		noticed := 0
		for _, n := range askers {
			found := w.query(n, w.plan)
			if !found.Complete {
				noticed++
				require.Contains(t, found.Reason, "1 of 6 offers")
			} else if len(found.Records) > len(w.offers) && !found.Proved.IsZero() {
				require.Equal(t, newer.Issued(), found.Proved)
			}
		}
		t.Logf("%d of %d askers met the newer list, and not the offer", noticed, len(askers))
	})
}

// A provider registers, updates, pauses and withdraws while others ask, messages take their time, some keepers miss some, and
// live updates overtake the stores: no answer ever says that a listed offer is missing.
func TestManifestUnderChurn(t *testing.T) {
	seeds := 4
	if os.Getenv("BLACKHOLE_LONG") != "" {
		seeds = 400
	}
	answers, proofs := 0, 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 11))
			w := newLimitedCluster(t, 4+random.IntN(24), wire.Limits{})
			defer w.close()
			for _, n := range w.nodes {
				n.sync.Table()
				n.sync.Know.SetInformed(true, time.Now())
			}
			time.Sleep(25 * time.Minute)
			owner := keepertest.NewProvider(t)
			own, err := registry.Open(registry.Config{Network: "test", Dir: "/own", FS: vfs.NewMem(), Key: owner.Key}, time.Now())
			require.NoError(t, err)
			defer func() { require.NoError(t, own.Close()) }()
			var mu sync.Mutex // guards delays, which connections draw
			delays := rand.New(rand.NewPCG(seed, 12))
			slow := func(most int) {
				mu.Lock()
				d := time.Duration(delays.IntN(most)) * time.Millisecond
				mu.Unlock()
				time.Sleep(d)
			}
			for step := range 25 {
				changed := alter(t, random, own, step)
				deaf := w.nodes[random.IntN(len(w.nodes))].Self
				missed, heard := random.IntN(3) == 0, min(random.IntN(2*len(w.nodes)), len(w.nodes))
				w.hosts.lose(func(from, to peer.ID) bool {
					slow(40)
					return missed && to == deaf && from == w.nodes[0].Self
				})
				var pending sync.WaitGroup
				pending.Go(func() {
					for _, n := range w.nodes[:heard] { // a live update
						for _, r := range changed {
							_, _ = n.Index.Put(r, time.Now())
						}
					}
					slow(200)
					w.nodes[0].Store(t.Context(), append(changed, own.Manifest(time.Now())))
				})
				pose := func(n *lightNode, q query.Query) query.Found {
					q.ProviderID, q.Type = owner.Id.String(), "compute"
					p, err := query.Compile(q, query.Defaults{})
					require.NoError(t, err)
					found, err := n.Query(t.Context(), p)
					if err == nil {
						require.False(t, strings.Contains(found.Reason, "itself lists"), "seed %d, step %d: %s", seed, step, found.Reason)
						answers++
						if !found.Proved.IsZero() {
							proofs++
						}
					}
					return found
				}
				for range 6 {
					slow(150)
					q := query.Query{Limit: 1 + random.IntN(20)}
					pose(w.nodes[step%len(w.nodes)], q)
				}
				pending.Wait()
				if !missed {
					found := pose(w.nodes[len(w.nodes)-1], query.Query{Limit: 100})
					if found.Complete {
						require.Equal(t, own.Manifest(time.Now()).Issued(), found.Proved)
					}
				}
			}
		})
	}
	t.Logf("%d of %d answers were proved", proofs, answers)
	require.Greater(t, proofs, answers/2)
}

// alter changes the offers of a registry, and returns the versions to announce.
func alter(t *testing.T, random *rand.Rand, own *registry.Registry, step int) []*records.Record {
	live := own.List()
	var r *records.Record
	var err error
	if len(live) > 0 && random.IntN(4) > 0 {
		id := live[random.IntN(len(live))].Name().ID
		switch random.IntN(4) {
		case 0:
			r, err = own.Withdraw(id, time.Now())
		case 1:
			r, err = own.Pause(id, time.Hour, time.Now())
		default:
			r, err = own.Update(keepertest.Offer(id, keepertest.Priced(random.Float64())), time.Now())
		}
		require.NoError(t, err)
		return []*records.Record{r}
	}
	list, errs := own.Register([]records.Offer{keepertest.Offer(fmt.Sprint("a", step)), keepertest.Offer(fmt.Sprint("b", step))}, time.Now())
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	return list
}
