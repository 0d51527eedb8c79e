// Package tour walks through the promises of a running network. Each step acts like a user. Brute
// force over all registered offers checks discovery; tokens check locks.
package tour

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/oracle"
)

const (
	// MinPeers is the smallest network: three founders, and a provider to kill.
	MinPeers = 4

	// Limits catch events that never come, and are wide: a busy machine breaks no promise.
	stepLimit = 5 * time.Minute
	callLimit = 30 * time.Second
	soon      = time.Minute // for a change to arrive everywhere
)

// Tour is one walk through one network. It is for one goroutine.
type Tour struct {
	Network *network.Network
	Market  *market.Market
	Cities  []cities.City
	Updates int // price changes to measure, at least 1

	FirstQuery  time.Duration // duration of the first step at the client of the consumer
	PublishP95  time.Duration // from the call of an update to its receipt with the number of storing peers
	UpdateP99   time.Duration // from before the call of an update to its arrival at a watching consumer
	CachedQuery time.Duration // median time of the peer for an answer from its cache
	Failover    time.Duration // from the kill of the leader to the next acquired lock
	Resumed     time.Duration // from the kill of the next leader to the next committed registration

	killed    *network.Peer // the leader
	residents []string      // ids of instances of all peers
	killedAt  time.Time     // time of the kill of the victim
}

// Result is the result of one step.
type Result struct {
	Name   string
	OK     bool // held, or skipped
	Skip   bool
	Took   time.Duration
	Detail string // findings, the reason for the skip, or the failure
}

// skipped says why a step cannot be walked here.
type skipped string

func (s skipped) Error() string { return string(s) }

// step is one promise. It returns its findings in a few words.
type step struct {
	name string
	walk func(context.Context, *Tour) (string, error)
}

// steps returns the steps in order. Each leaves the network fit for the next.
func steps() []step {
	return []step{
		{"nearest GPU compute", nearestGPU},
		{"cheapest storage in a country", cheapestStorage},
		{"CDN across the antimeridian", acrossAntimeridian},
		{"coordination group formed", groupFormed},
		{"stopped peer sold nowhere", stopPeer},
		{"lying provider found out", liarFoundOut},
		{"domain checked, another only claimed", domainChecked},
		{"sold, reached and given back", trade},
		{"instance found at every peer", instanceFound},
		{"application of a killed peer adopted", applicationMoves},
		{"killed provider not usable", killedNotUsable},
		{"paused offer gone, with the reason", pause},
		{"withdrawn service gone everywhere", withdraw},
		{"answer from the cache", cachedAnswer},
		{"price updates seen by a watch", watchUpdates},
		{"contended lock handed over", lockHandedOver},
		{"instance dies, watched elsewhere", instanceDies},
		{"offer announced and withdrawn", offerAnnounced},
		{"late instance ends a stall", requirementSatisfied},
		{"instances of a dead peer gone", peerForgotten},
		{"lock survives its leader", leaderKilled},
		{"dead voter replaced", voterReplaced},
		{"reads go on without the leader", readsGoOn},
		{"no honest peer distrusted", noDistrust},
		{"all restarted from disk", restartAll},
	}
}

// Names lists the steps in order.
func Names() []string {
	var names []string
	for _, s := range steps() {
		names = append(names, s.name)
	}
	return names
}

// Walk takes every step, calls begin before it, and reports each result at once. It stops early
// only after the end of ctx.
func (t *Tour) Walk(ctx context.Context, begin func(name string), tell func(Result)) []Result {
	var results []Result
	for _, s := range steps() {
		if ctx.Err() != nil {
			break
		}
		begin(s.name)
		r := t.take(ctx, s)
		tell(r)
		results = append(results, r)
	}
	return results
}

// Held reports whether every step of a whole tour held, or was skipped.
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
	detail, err := s.walk(ctx, t)
	r := Result{Name: s.name, OK: err == nil, Took: time.Since(began), Detail: detail}
	if err != nil {
		r.Detail = err.Error()
		r.Skip = errors.As(err, new(skipped))
		r.OK = r.Skip
	}
	return r
}

// consumer asks and watches. It is not the bootstrap peer, and lives until a leader is killed,
// possibly itself.
func (t *Tour) consumer() *network.Peer { return t.Network.Peers[1] }

// victim is the provider to kill.
func (t *Tour) victim() *network.Peer { return t.Network.Peers[len(t.Network.Peers)-1] }

// expect asks the consumer, and judges the answer by all registered offers.
func (t *Tour) expect(ctx context.Context, q query.Query) (query.AnswerView, error) {
	a, err := ask(ctx, t.consumer(), q)
	if err == nil {
		err = t.judge(q, a)
	}
	if err == nil && len(a.Results) == 0 {
		err = fault.New("tour.expect", fault.Invalid, "nothing registered fits the question: register more")
	}
	return a, err
}

// judge compares an answer with all registered offers. Those of a provider that was killed are in answers with any health alone.
func (t *Tour) judge(q query.Query, a query.AnswerView) error {
	question, err := oracle.Document[oracle.Question](q)
	if err != nil {
		return err
	}
	var all []oracle.Record
	for _, l := range t.Market.Where(func(l market.Listing) bool { return !l.Down || q.Health == query.HealthAny }) {
		r, err := oracle.Document[oracle.Record](records.View{Offer: l.Offer, ProviderID: l.Provider.String()})
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	answer, err := oracle.Document[oracle.Answer](a)
	if err != nil {
		return err
	}
	if _, wrong := oracle.Judge(question, all, &answer); wrong != nil {
		return fault.New("tour.judge", fault.Conflict, "%w (complete: %t, from %s, %s; left out: %v)", wrong, a.Complete, a.Source, a.Reason, a.Excluded)
	}
	return nil
}

// ask asks one peer, in bounded time, for an order by values alone: brute force knows neither measurements nor the turns of providers.
func ask(ctx context.Context, p *network.Peer, q query.Query) (query.AnswerView, error) {
	q.Claims = query.ClaimsTrust
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	a, err := p.Offers().Query(ctx, q)
	return a, fault.Wrap(p.Name, err)
}

// near is a place in a query; radius 0 means no limit.
func near(c cities.City, radiusKM float64) *query.Near {
	n := &query.Near{Latitude: c.Point.Lat, Longitude: c.Point.Lon}
	if radiusKM > 0 {
		n.RadiusKM = &radiusKM
	}
	return n
}

// noDistrust requires that no peer has taken another for a liar.
func noDistrust(ctx context.Context, t *Tour) (string, error) {
	n, err := t.Network.NoDistrust(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d peers distrust nobody", n), nil
}
