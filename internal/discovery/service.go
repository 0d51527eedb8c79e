// Package discovery is the discovery plane as its users see it: announce services, keep
// them announced, find those of others, follow changes.
//
// The Service joins what the lower floors do separately: the registry (what this peer
// offers), the index (what it knows), the keepers (who else knows), the live updates, and
// this peer's own measurements of providers. It holds no network of its own: those parts
// come in as small interfaces.
//
// Life of a registration: the registry makes it durable and signs it, the own index takes
// it, the live topic carries it, the keepers of its cells store it, the DHT learns its key.
// Life of a query: cache, else the keepers of the covering cells, whose verified answers
// pass through the index, which filters, ranks and cuts.
package discovery

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/singleflight"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/registry"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Keepers is the network's memory: the peers that keep the cells of the index.
type Keepers interface {
	// Store hands records to the keepers of their cells; one outcome for each record, in order.
	Store(ctx context.Context, recs []*records.Record) []records.Outcome
	// Local answers without asking anybody where this peer itself keeps all that can match.
	Local(p *query.Plan) (query.Found, bool)
	// Query asks the keepers of the covering cells and puts what verifies into the index.
	Query(ctx context.Context, p *query.Plan) (query.Found, error)
	// Publish puts a record under its own key into the DHT.
	Publish(ctx context.Context, r *records.Record) error
	// Resolve gives the freshest live record under a key, or NotFound.
	Resolve(ctx context.Context, key records.Key) (*records.Record, error)
	// Watch puts changes of what the plan matches into the index until stop is called, and
	// calls resync, never twice at once, when some may have been missed: Query finds them.
	Watch(ctx context.Context, p *query.Plan, resync func()) (stop func())
}

// Updates is the live path: changes as they happen, without a guarantee.
type Updates interface {
	// Publish sends a record to those who follow its topics.
	Publish(ctx context.Context, r *records.Record) error
	// Follow feeds updates that may concern the plan into the index until release is called.
	Follow(p *query.Plan) (release func(), err error)
}

// Prober measures whether providers answer.
type Prober interface {
	// Track keeps measuring these providers for a while; it never blocks.
	Track(ids ...peer.ID)
	// Measured gives the last finding about a provider, if there is one.
	Measured(id peer.ID) (records.Measured, bool)
	// Unreachable lists the providers found unreachable, sorted, at most query.MaxExclude.
	Unreachable() []peer.ID
	// Epoch grows with every change of a verdict.
	Epoch() uint64
}

// Recorder receives what the operator's metrics count.
type Recorder interface {
	// Registered counts a service that was added (+1) or ended (-1) on this peer.
	Registered(kind string, delta int)
	// Refreshed counts re-announced services.
	Refreshed(n int)
	// Queried counts one answered query.
	Queried(source string, took time.Duration, results int)
	// Failed counts an error by operation.
	Failed(op string, err error)
}

// Parts are the parts that a Service joins. All but Recorder and Logger are required.
type Parts struct {
	Registry *registry.Registry // the services of this peer
	Index    *index.Index       // the records that this peer knows
	Keepers  Keepers
	Updates  Updates
	Prober   Prober
	Recorder Recorder     // nil: nothing is recorded
	Logger   *slog.Logger // nil: silent
	Now      func() time.Time
	Random   func() uint64

	watches *watchSet // nil: a new one
}

// Settings are the settings of a Service.
type Settings struct {
	Defaults  query.Defaults
	CacheSize int           // answers; 0: 1000
	CacheTTL  time.Duration // of an answer with results; 0: 5 min
}

const (
	negativeTTL  = 5 * time.Second  // of an empty answer in the cache
	queryTimeout = 5 * time.Second  // of one search in the network
	storeTimeout = 10 * time.Second // of one announcement
	requeryEvery = 5 * time.Minute  // a watch queries its keepers again, although it follows them
)

// Service is the discovery plane as front ends use it. Its methods are safe for concurrent use.
type Service struct {
	Parts
	defaults query.Defaults
	cache    *cache
	feed     *feed
	flights  singleflight.Group   // searches under way, by canonical question
	publish  chan *records.Record // records whose DHT value is still to be put
	wake     chan struct{}        // the refresh loop looks again

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// publishers put DHT values beside the announcement, few at a time: each value costs a
// lookup, which must not starve the announcements themselves. publishQueue bounds what waits. A
// value that finds no room is put at the next refresh, and until then Resolve finds the
// record through the keepers of its cell.
const (
	publishers   = 2
	publishQueue = 10_000
)

var (
	_ discovery.Registrar = (*Service)(nil)
	_ discovery.Finder    = (*Service)(nil)
)

// NewService starts a Service. Close stops it.
func NewService(p Parts, settings Settings) (*Service, error) {
	if p.Registry == nil || p.Index == nil || p.Keepers == nil || p.Updates == nil || p.Prober == nil || p.Now == nil || p.Random == nil {
		return nil, fault.New("discovery.NewService", fault.Invalid, "a required part is missing")
	}
	p.setDefaults()
	s := &Service{
		Parts:    p,
		defaults: settings.Defaults,
		cache:    newCache(cmp.Or(settings.CacheSize, 1000), cmp.Or(settings.CacheTTL, 5*time.Minute)),
		publish:  make(chan *records.Record, publishQueue),
		wake:     make(chan struct{}, 1),
	}
	s.feed = newFeed(p.Index, p.Random(), s.cache)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, r := range p.Registry.List() {
		s.remember(r)
		s.Recorder.Registered(r.Type(), 1)
	}
	s.spawn(s.feed.run, s.refresh, s.expire)
	for range publishers {
		s.spawn(s.publishValues)
	}
	return s, nil
}

func (p *Parts) setDefaults() {
	if p.Logger == nil {
		p.Logger = slog.New(slog.DiscardHandler)
	}
	if p.Recorder == nil {
		p.Recorder = nopRecorder{}
	}
	if p.watches == nil {
		p.watches = newWatchSet()
	}
}

// spawn runs loops that end with s.ctx; Close waits for them.
func (s *Service) spawn(loops ...func(context.Context)) {
	for _, loop := range loops {
		s.wg.Go(func() { loop(s.ctx) })
	}
}

// Close stops the background work and waits for it. Services stay registered: the next
// start announces them again.
func (s *Service) Close() error {
	s.cancel()
	s.wg.Wait()
	s.cache.clear()
	return nil
}

// expire drops lapsed records from the index when they lapse.
func (s *Service) expire(ctx context.Context) {
	const atMost = time.Minute // a record with an earlier expiry may arrive meanwhile; searches skip it anyway
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := s.Now()
		s.Index.Expire(now)
		wait := atMost
		if next, ok := s.Index.NextExpiry(); ok {
			wait = min(wait, max(next.Sub(now), 10*time.Millisecond))
		}
		timer.Reset(wait)
	}
}

type nopRecorder struct{}

func (nopRecorder) Registered(string, int)             {}
func (nopRecorder) Refreshed(int)                      {}
func (nopRecorder) Queried(string, time.Duration, int) {}
func (nopRecorder) Failed(string, error)               {}
