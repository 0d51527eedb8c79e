// Package discovery is the discovery plane of a peer: it announces services, refreshes them, finds services of
// other peers and follows changes. Plane is its entrance.
//
// Service joins the parts below: the registry (services of this peer), the index (known records), the keepers
// (records at other peers), live updates by gossip, and this peer's measurements of providers.
//
// A registration: the registry signs it and makes it durable; it enters the own index, the live topic, the
// keepers of its cells. A query: the cache answers, otherwise the keepers of the
// covering cells; their verified records pass through the index, which filters, ranks and limits.
package discovery

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/discovery/truth"
	"github.com/blackhole/blackhole/internal/platform/clock"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/pause"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/records"
)

// Keepers are the peers that store the cells' records.
type Keepers interface {
	// Store sends records to the keepers of their cells. It returns one outcome for each record, in order.
	Store(ctx context.Context, recs []*records.Record) []records.Outcome
	// Local answers without a message, if this peer keeps all cells of the plan. Else Reason says why not.
	Local(p *queries.Plan) (queries.Found, bool)
	// Query queries the keepers of the covering cells and puts verified records into the index.
	Query(ctx context.Context, p *queries.Plan) (queries.Found, error)
	// Count counts the matches of a plan in each of some places: see ask.Asker.
	Count(ctx context.Context, p *queries.Plan, places []geo.Cell, unplaced bool) ([]queries.Found, error)
	// Clock estimates the offset of this peer's clock.
	Clock() clock.Estimate
	// Refetch puts records with this peer's key, that some keepers hold and own lacks, into the index. It reports
	// whether a keeper answered.
	Refetch(ctx context.Context, own []*records.Record) (answered bool)
	// Resolve returns the newest live record under a key, or NotFound. Unavailable: too few keepers answered.
	Resolve(ctx context.Context, key records.Key) (*records.Record, error)
}

// Updates are live changes, without a guarantee of delivery.
type Updates interface {
	// Publish sends a record to the followers of its topics.
	Publish(ctx context.Context, r *records.Record) error
	// Follow puts updates of some topics into the index until release.
	Follow(topics []gossip.Topic) (release func(), err error)
}

// Parts are the parts of a Service. All except Metrics and Logger are required.
type Parts struct {
	Registry *offers.Registry // services of this peer
	Index    *index.Index     // known records
	Keepers  Keepers
	Updates  Updates
	Peers    truth.Peers        // speaks to the peers of providers
	Metrics  *metrics.Discovery // nil: none
	Logger   *slog.Logger       // nil: silent
	Now      func() time.Time
	Random   func() uint64
	// Conditions receives the cause if no keeper holds a service; nil: none.
	Conditions *condition.Set
	Speaks     truth.Prober // to the endpoints of offers; nil: they stay unmeasured

	watches *watchSet // nil: a new one
	truth   *truth.Checks
}

// Settings are the settings of a Service.
type Settings struct {
	Defaults  queries.Defaults
	CacheSize int           // answers; 0: 1000
	CacheTTL  time.Duration // of an answer with results; 0: 5 min; those of other keepers live for 15 s at most

	Instances bool // Announce keeps the offers of instances; without it anybody may change those of an earlier start

	Caller func(context.Context) string // who registers offers; nil: nobody by name

	Witnesses *truth.Sharing // exchange of findings about providers; nil: this peer measures alone
	Every     time.Duration  // between two checks of the peer of a provider: see truth.Config
	Confirm   time.Duration  // from its first silence to the one that decides
	Timeout   time.Duration  // of a check of it

	// Dial reaches what is sold through the peer of its provider: see truth.Config. Nil: nobody measures that here.
	Dial func(ctx context.Context, provider peer.ID, offer string) (net.Conn, error)
}

const (
	negativeTTL  = 5 * time.Second  // of an empty answer in the cache
	confirmFor   = 30 * time.Second // after the start, renewals wait for a keeper that confirms the last versions
	confirmEvery = time.Second      // interval of the attempts
	queryTimeout = 5 * time.Second  // of one search in the network
	storeTimeout = 10 * time.Second // of one announcement
	leaveTimeout = 3 * time.Second  // of the announcement that this peer stops
	requeryEvery = 2 * time.Minute  // a watch queries its keepers again: not every live update arrives
)

// Service is the plane's contract for front ends. It is safe for concurrent use.
type Service struct {
	Parts
	defaults  queries.Defaults
	instances bool // Settings.Instances
	caller    func(context.Context) string
	cache     *cache
	feed      *feed
	wake      chan struct{} // capacity 1: wakes the refresh loop
	outdated  seldom        // warning about answers without records of later versions
	hasty     seldom        // warning about changes that followers ignore

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

var (
	_ discovery.Registrar = (*Service)(nil)
	_ discovery.Finder    = (*Service)(nil)
)

// NewService starts a Service. Close stops it.
func NewService(p Parts, settings Settings) (*Service, error) {
	if p.Registry == nil || p.Index == nil || p.Keepers == nil || p.Updates == nil || p.Peers == nil || p.Now == nil || p.Random == nil {
		return nil, fault.New("discovery.NewService", fault.Invalid, "a required part is missing")
	}
	p.setDefaults()
	if settings.Caller == nil {
		settings.Caller = func(context.Context) string { return "" }
	}
	answers := newCache(cmp.Or(settings.CacheSize, 1000), cmp.Or(settings.CacheTTL, 5*time.Minute), p.Keepers)
	p.truth = truth.New(truth.Config{
		Prober: p.Speaks, Peers: p.Peers, Offers: p.Index.OfProvider, Now: p.Now, Changed: answers.forget, Sharing: settings.Witnesses,
		Own:   func(r *records.Record) bool { return r.Name().Provider == p.Registry.Self() },
		Every: settings.Every, Confirm: settings.Confirm, Timeout: settings.Timeout, Dial: settings.Dial,
	})
	s := &Service{
		Parts:     p,
		defaults:  settings.Defaults,
		instances: settings.Instances,
		caller:    settings.Caller,
		cache:     answers,
		wake:      make(chan struct{}, 1),
	}
	s.feed = newFeed(p.Index, p.Random(), s.cache)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.cache.searches = &searches{ctx: s.ctx, ask: s.ask}
	for _, r := range p.Registry.List() {
		s.remember(r)
		s.Metrics.Registered(r.Type(), 1)
	}
	s.spawn(s.truth.Run, s.feed.run, s.refresh, s.expire)
	return s, nil
}

// Heard takes a statement that its measurer delivered, and the measurer's network; Asked an offer that another peer shows. They do not
// block.
func (s *Service) Heard(st protocol.Statement, from netip.Prefix) {
	s.truth.Hear(st, from)
}

// Asked implements the other half of Heard.
func (s *Service) Asked(n records.Name, by peer.ID) { s.truth.Interest(n, by) }

func (p *Parts) setDefaults() {
	if p.Logger == nil {
		p.Logger = slog.New(slog.DiscardHandler)
	}
	if p.watches == nil {
		p.watches = newWatchSet()
	}
}

// spawn starts loops that end with s.ctx. Close waits for them.
func (s *Service) spawn(loops ...func(context.Context)) {
	for _, loop := range loops {
		s.wg.Go(func() { loop(s.ctx) })
	}
}

// Close stops the background loops and searches and waits for them. Services stay registered; the next start announces them
// again.
func (s *Service) Close() error {
	s.cancel()
	s.wg.Wait()
	s.cache.searches.close()
	s.cache.close()
	return nil
}

// expire removes lapsed records from the index on time.
func (s *Service) expire(ctx context.Context) {
	const atMost = time.Minute // a record with an earlier expiry may arrive meanwhile; searches skip lapsed records
	for wait := time.Duration(0); pause.For(ctx, wait); {
		now := s.Now()
		s.Index.Expire(now)
		reportFull(s.Index, s.Conditions, now)
		wait = atMost
		if next, ok := s.Index.NextExpiry(); ok {
			wait = min(wait, max(next.Sub(now), 10*time.Millisecond))
		}
	}
}
