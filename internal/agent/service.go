// Package agent is the agent plane as applications see it: instances are registered with the peer
// on their host, kept alive by heartbeats and checks, found and watched.
//
// The Service joins what lower floors do separately: the instances that this peer answers for
// (pkg/registry/instances), what is known of all instances (pkg/catalog), and their checks
// (pkg/health). Offers of healthy instances go to the discovery plane through an Announcer.
//
// A change begins in the registry, under whose lock everybody hears of it in the same order.
//
// # With a directory
//
// A peer that is not alone publishes its changes in the Directory of all peers, and the directory feeds
// the catalog. The registry stays the authority for what runs here: without a leader it goes on, and what
// it has is published when there is one. A key has one owner in the directory. It is the peer at which the
// application registered last; calls that reach another are passed on to the owner, and an owner that does
// not answer loses the instance to the peer that was called, which adopts it as it was last known. Who finds
// out that it lost one lets it go.
//
// Calls about one key that add or remove it wait for each other, over their wait for the directory: what has
// to be undone because no commit can be had is then one's own change, and the last one.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/directory"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// expiring is the longest time between two looks at what has not been heard of. It is no longer
// than the shortest time after which an instance is unhealthy, so that no look is missed when one is registered.
const expiring = instance.MinTTL

// stalled is the time without a look that tells that this process stood still.
const stalled = 5 * expiring

// Recorder receives what the operator's metrics count.
type Recorder interface {
	// Beaten counts heartbeats that renewed a lease, and those that named none.
	Beaten(ok, failed int)
	// Stored counts operations of the registry's store.
	Stored(operation string, err error)
	// Failed counts an error by operation.
	Failed(op string, err error)
}

// Config are the parts and settings of a Service. Registry and Now are required.
type Config struct {
	Registry registry.Config // Changed is set by the Service
	Checks   health.Config   // Report and Now are set by the Service
	Watches  int             // open at a time; 0 is the catalog's default; without effect when Catalog is given
	Validate bool            // dependencies must be registered
	Strict   bool            // a registration never replaces another
	Loopback bool            // checks of instances on this host may go to loopback addresses

	Directory  Directory        // nil: this peer is alone
	Catalog    *catalog.Catalog // what the Directory feeds; nil without one: the Service makes and feeds its own
	Peers      Peers            // nil: no other peer can be reached
	CommitWait time.Duration    // longest wait for the Directory of a call; 0: 5 s

	Announcer Announcer // nil: offers are kept, and announced nowhere
	Recorder  Recorder  // nil: nothing is recorded
	Now       func() time.Time
	Logger    *slog.Logger // nil: silence
}

// Service is the agent plane of one peer. Its methods are safe for concurrent use.
type Service struct {
	Config
	*catalog.Catalog
	registry *registry.Registry
	checker  *health.Checker
	offers   *offers // nil without an Announcer
	turns    turns
	former   former

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// The contract.
var (
	_ instance.Registrar = (*Service)(nil)
	_ instance.Catalog   = (*Service)(nil)
)

// New opens the registry, publishes what is in it and begins to check it. Errors: Invalid, field
// "catalog", when one of catalog and directory is given without the other; those of the parts.
func New(c Config) (*Service, error) {
	const op = "agent.New"
	if (c.Directory == nil) != (c.Catalog == nil) {
		return nil, fault.Wrap(op, fault.Invalidf("catalog", nil, "must be given with a directory, which feeds it, and only then"))
	}
	if c.CommitWait == 0 {
		c.CommitWait = commitWait
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Recorder == nil {
		c.Recorder = nobody{}
	}
	s := &Service{Config: c}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.open(); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, s.Close()))
	}
	s.work.Go(s.expire)
	if s.offers != nil {
		s.work.Go(func() { s.offers.run(s.ctx) })
	}
	return s, nil
}

func (s *Service) open() (err error) {
	if s.Catalog = s.Config.Catalog; s.Catalog == nil {
		if s.Catalog, err = catalog.New(catalog.Config{Watches: s.Watches, Now: s.Now}); err != nil {
			return err
		}
	}
	s.Checks.Report, s.Checks.Now = s.checked, s.Now
	if s.checker, err = health.New(s.Checks); err != nil {
		return err
	}
	if s.Announcer != nil {
		s.offers = newOffers(s.Announcer, s.checker.Measured, s.Recorder)
	}
	s.Registry.Changed, s.Registry.Stall = s.changed, stalled
	if s.registry, err = registry.Open(s.Registry, s.Now()); err != nil {
		return err
	}
	return s.begin(s.registry.All())
}

// begin tells everybody what is registered. Checks come last: what they find changes it.
func (s *Service) begin(all []*instance.Instance, revision uint64) error {
	if s.Directory == nil {
		if err := s.Reset(revision, all); err != nil {
			return err
		}
	} else if len(all) > 0 {
		list := make([]directory.Change, len(all))
		for n, i := range all {
			list[n] = directory.Change{Key: i.Key, Instance: i}
		}
		s.Directory.Publish(list)
	}
	for _, i := range all {
		s.follow(i.Key, i)
	}
	return nil
}

// Close ends checks and watches, and closes the registry. What is registered stays so, and is
// UNKNOWN when the peer is back, until it is heard of.
func (s *Service) Close() error {
	s.cancel()
	var errs []error
	if s.checker != nil {
		errs = append(errs, s.checker.Close())
	}
	s.work.Wait()
	if s.registry != nil {
		errs = append(errs, s.registry.Close())
	}
	return errors.Join(errs...)
}

// changed passes on what the registry says, in its order.
func (s *Service) changed(changes []registry.Change) {
	for _, c := range changes {
		s.follow(c.Key, c.Instance)
	}
	if s.Directory != nil {
		s.publish(changes)
		return
	}
	known := make([]catalog.Change, len(changes))
	for n, c := range changes {
		known[n] = catalog.Change{Key: c.Key, Instance: c.Instance}
	}
	if err := s.Apply(changes[len(changes)-1].Revision, known); err != nil {
		s.Recorder.Failed("agent.changed", err)
	}
}

// follow has an instance checked and its offer announced as it is now; nil when it is gone.
func (s *Service) follow(k instance.Key, i *instance.Instance) {
	if s.offers != nil {
		s.offers.put(k, i)
	}
	if i == nil || i.Check == nil {
		s.checker.Remove(k)
		return
	}
	if err := s.checker.Set(s.target(k, i.Spec)); err != nil { // Register refuses what cannot be checked: there are too many
		s.Logger.Warn("an instance is not checked", "instance", k.String(), "error", err)
		s.Recorder.Failed("agent.follow", err)
	}
}

// target is what is checked of an instance that has a check.
func (s *Service) target(k instance.Key, i instance.Spec) health.Target {
	return health.Target{
		Key: k, Host: i.Host, Port: i.Port, Check: *i.Check, Local: s.Loopback && onThisHost(i.Host),
		Unmeasured: s.offers == nil || len(i.Offer) == 0, // nobody else asks
	}
}

// Storage tells why the registry cannot be written to; nil: it can.
func (s *Service) Storage() error { return s.registry.Storage() }

// Census counts the instances that this peer answers for by status.
func (s *Service) Census() map[instance.Status]int {
	all, _ := s.registry.All()
	counts := make(map[instance.Status]int)
	for _, i := range all {
		counts[i.Status]++
	}
	return counts
}

// onThisHost reports whether a host names the loopback network. Only callers on this host may register it.
func onThisHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// checked takes in the result of a check.
func (s *Service) checked(r health.Report) {
	s.registry.Report(r.Key, registry.Verdict{Passing: r.Passing, Status: r.Status}, r.At)
}

// expire has the registry look for what has not been heard of, until Close.
func (s *Service) expire() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		now := s.Now()
		wait := expiring
		if next := s.registry.Expire(now); !next.IsZero() {
			wait = min(max(next.Sub(now), 0), expiring)
		}
		timer.Reset(wait)
	}
}

// nobody records nothing.
type nobody struct{}

func (nobody) Beaten(int, int)      {}
func (nobody) Stored(string, error) {}
func (nobody) Failed(string, error) {}
