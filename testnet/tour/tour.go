// Package tour walks through what a network promises, on a running one: each step does
// something that a user would do. What is discovered is held against a brute force over
// everything that is registered; locks, against their tokens.
package tour

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/cities"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
)

const (
	// MinPeers is the least network: three peers that found a group, and a provider to kill.
	MinPeers = 4

	// Bounds are for what never comes, and wide: a busy machine breaks no promise.
	stepLimit = 5 * time.Minute
	callLimit = 30 * time.Second
	soon      = time.Minute // by when a change must have arrived everywhere
)

// Tour is one walk through one network. It is for one goroutine.
type Tour struct {
	Network *network.Network
	Market  *market.Market
	Cities  []cities.City
	Updates int // price changes to measure, at least 1

	FirstQuery  time.Duration // of the first step, as the consumer's client saw it
	PublishP95  time.Duration // from an update's call to its receipt, which says on how many peers it is stored
	UpdateP99   time.Duration // from before an update's call to its arrival at a watching consumer
	CachedQuery time.Duration // median of what the peer took for an answer from its cache
	Failover    time.Duration // from the kill of the group's leader to the next lock acquired
	Resumed     time.Duration // from the kill of its next leader to the next registration committed

	killed    *network.Peer // the leader
	residents []string      // ids of instances of all peers
	bereft    time.Time     // when the victim was killed
}

// Result is how one step went.
type Result struct {
	Name   string
	OK     bool
	Took   time.Duration
	Detail string // what was found, or what is wrong
}

// step is one promise. It returns what it found, in a few words.
type step struct {
	name string
	walk func(*Tour, context.Context) (string, error)
}

// steps are in an order in which each leaves the network fit for the next.
func steps() []step {
	return []step{
		{"nearest GPU compute", (*Tour).nearestGPU},
		{"cheapest storage in a country", (*Tour).cheapestStorage},
		{"CDN across the antimeridian", (*Tour).acrossAntimeridian},
		{"coordination group formed", (*Tour).groupFormed},
		{"instance found at every peer", (*Tour).instanceFound},
		{"killed provider not usable", (*Tour).killProvider},
		{"its application adopted", (*Tour).applicationMoves},
		{"withdrawn service gone everywhere", (*Tour).withdraw},
		{"answer from the cache", (*Tour).cachedAnswer},
		{"price updates seen by a watch", (*Tour).watchUpdates},
		{"contended lock handed over", (*Tour).lockHandedOver},
		{"instance dies, watched elsewhere", (*Tour).instanceDies},
		{"offer announced and withdrawn", (*Tour).offerAnnounced},
		{"late instance ends a stall", (*Tour).requirementSatisfied},
		{"instances of a dead peer gone", (*Tour).peerForgotten},
		{"lock survives its leader", (*Tour).leaderKilled},
		{"dead voter replaced", (*Tour).voterReplaced},
		{"reads go on without the leader", (*Tour).readsGoOn},
		{"all restarted from disk", (*Tour).restartAll},
	}
}

// Walk takes every step and tells each result as it is known. It stops early only when
// ctx ends.
func (t *Tour) Walk(ctx context.Context, tell func(Result)) []Result {
	var results []Result
	for _, s := range steps() {
		if ctx.Err() != nil {
			break
		}
		r := t.take(ctx, s)
		tell(r)
		results = append(results, r)
	}
	return results
}

// Held reports whether every step of a whole tour was taken and held.
func Held(results []Result) bool {
	for _, r := range results {
		if !r.OK {
			return false
		}
	}
	return len(results) == len(steps())
}

func (t *Tour) take(ctx context.Context, s step) Result {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	began := time.Now()
	detail, err := s.walk(t, ctx)
	r := Result{Name: s.name, OK: err == nil, Took: time.Since(began), Detail: detail}
	if err != nil {
		r.Detail = err.Error()
	}
	return r
}

// consumer asks and watches. It is not the bootstrap, and lives until a leader is killed, which it may be.
func (t *Tour) consumer() *network.Peer { return t.Network.Peers[1] }

// victim is the provider that will be killed.
func (t *Tour) victim() *network.Peer { return t.Network.Peers[len(t.Network.Peers)-1] }

// expect asks the consumer and compares its answer with what must be found.
func (t *Tour) expect(ctx context.Context, q query.Query, want market.Selection) (query.AnswerView, error) {
	if len(want) == 0 {
		return query.AnswerView{}, fault.New("tour.expect", fault.Invalid, "nothing registered fits the question: register more")
	}
	a, err := ask(ctx, t.consumer(), q)
	if err != nil {
		return a, err
	}
	return a, want.Compare(a)
}

// ask asks one peer, in bounded time.
func ask(ctx context.Context, p *network.Peer, q query.Query) (query.AnswerView, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	a, err := p.Query(ctx, q)
	return a, fault.Wrap(p.Name, err)
}

// near is a place as a query takes it; radius 0 is without bound.
func near(c cities.City, radiusKM float64) *query.Near {
	n := &query.Near{Latitude: c.Point.Lat, Longitude: c.Point.Lon}
	if radiusKM > 0 {
		n.RadiusKM = &radiusKM
	}
	return n
}

// of selects the usable services of a type that also fit keep.
func of(kind string, keep func(market.Listing) bool) func(market.Listing) bool {
	return func(l market.Listing) bool { return l.Type() == kind && l.Usable() && keep(l) }
}

func always(market.Listing) bool { return true }
