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
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/singleflight"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Registry has the services of this peer, durable and signed. Errors are as those of Registrar.
type Registry interface {
	// Self is the provider whose services they are.
	Self() peer.ID
	// Register takes services in; one record or one error for each, in order.
	Register(offers []records.Offer, now time.Time) ([]*records.Record, []error)
	// Update replaces the content of a service.
	Update(o records.Offer, now time.Time) (*records.Record, error)
	// Withdraw ends a service and gives its tombstone.
	Withdraw(id string, now time.Time) (*records.Record, error)
	// Get gives the newest version of a service.
	Get(id string) (*records.Record, bool)
	// List gives the newest versions of all services, by id.
	List() []*records.Record
}

// Schedule says when what is in the Registry is to be announced. What the Registry's changes and Due give is handed out:
// Due does not give it again before its outcome is told, or a while has passed.
type Schedule interface {
	// Due gives records to announce now, at most limit.
	Due(now time.Time, limit int) []*records.Record
	// NextDue is when Due has something to do next; false when there is nothing at all.
	NextDue() (time.Time, bool)
	// Announced tells the outcome of announcing a version.
	Announced(n records.Name, sequence uint64, s records.Stored, now time.Time)
}

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

// Config are the parts and settings of a Service. Registry, Schedule, Index, Keepers, Updates,
// Prober, Now and Random are required. The first two are one *registry.Registry, which is not named here: who
// imports the contract needs no database.
type Config struct {
	Registry Registry
	Schedule Schedule
	Index    *index.Index
	Keepers  Keepers
	Updates  Updates
	Prober   Prober
	Recorder Recorder // nil: nothing is recorded
	Logger   *slog.Logger
	Now      func() time.Time
	Random   func() uint64

	Defaults     query.Defaults
	CacheSize    int           // answers; 0 is 1000
	CacheTTL     time.Duration // of an answer with results; 0 is 5 min
	NegativeTTL  time.Duration // of an empty answer; 0 is 5 s
	QueryTimeout time.Duration // of one search in the network; 0 is 5 s
	StoreTimeout time.Duration // of one announcement; 0 is 10 s
	Requery      time.Duration // how often a watch asks the keepers again although it follows them; 0 is 5 min
}

// Service is the discovery plane. Its methods are safe for concurrent use.
type Service struct {
	Config
	cache   *cache
	feed    *feed
	flights singleflight.Group   // searches under way, by canonical question
	publish chan *records.Record // records whose DHT value is still to be put
	wake    chan struct{}        // the refresh loop looks again

	mu      sync.Mutex // guards watched
	watched map[*watcher]bool

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

// New starts a Service. Close stops it.
func New(c Config) (*Service, error) {
	if c.Registry == nil || c.Schedule == nil || c.Index == nil || c.Keepers == nil || c.Updates == nil || c.Prober == nil || c.Now == nil || c.Random == nil {
		return nil, fault.New("discovery.New", fault.Invalid, "a required part is missing")
	}
	c.setDefaults()
	s := &Service{
		Config:  c,
		publish: make(chan *records.Record, publishQueue),
		wake:    make(chan struct{}, 1),
		watched: make(map[*watcher]bool),
	}
	s.cache = newCache(c.CacheSize)
	s.feed = newFeed(c.Index, c.Random(), s.cache)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, r := range c.Registry.List() {
		s.remember(r)
		s.Recorder.Registered(r.Type(), 1)
	}
	s.spawn(s.feed.run, s.refresh, s.expire)
	for range publishers {
		s.spawn(s.publishValues)
	}
	return s, nil
}

func (c *Config) setDefaults() {
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orTime := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	orInt(&c.CacheSize, 1000)
	orTime(&c.CacheTTL, 5*time.Minute)
	orTime(&c.NegativeTTL, 5*time.Second)
	orTime(&c.QueryTimeout, 5*time.Second)
	orTime(&c.StoreTimeout, 10*time.Second)
	orTime(&c.Requery, 5*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Recorder == nil {
		c.Recorder = noRecorder{}
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

// Wanted reports whether a watch here shows a record, whatever this peer keeps for the network.
func (s *Service) Wanted(r *records.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watched {
		if w.plan.Match(r) {
			return true
		}
	}
	return false
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

type noRecorder struct{}

func (noRecorder) Registered(string, int)             {}
func (noRecorder) Refreshed(int)                      {}
func (noRecorder) Queried(string, time.Duration, int) {}
func (noRecorder) Failed(string, error)               {}
