// Package agent is the agent plane of one peer: applications register instances
// with the peer on their host, keep them alive by heartbeats and checks, and
// find and watch instances of all peers.
//
// A Service joins the parts below it: the registry (instances of this peer, on
// disk), the health checker, the catalog (instances of all peers, in memory) and
// the directory (the group's copy of all instances). Offers of healthy instances
// go to the discovery plane through an Announcer.
//
// Each change starts in the registry, whose lock orders its delivery to all
// other parts.
//
// # With a group
//
// The peer publishes its changes in the directory, and the directory feeds the
// catalog. The registry stays the authority for local instances: it works
// without a leader, and the directory catches up later.
//
// A key has one owner in the directory: the peer of the latest registration.
// Another peer forwards calls to the owner. If the owner does not answer, the
// called peer adopts the instance in its last known state. A peer drops an
// instance as soon as it learns of a new owner.
//
// An instance of an authenticated caller belongs to that caller. While its peer
// lives, only this caller moves it to another peer, and other callers end it at
// its peer or through peers whose word counts there.
//
// Calls that add or remove one key are serialised, including their wait for the
// directory, so that the undo of a failed commit reverts only the caller's own
// and last change.
package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/directory"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// commitWait is the longest wait of a call for the directory.
const commitWait = 5 * time.Second

// Peers reaches the agents of other peers through their Service.Direct, which
// forwards no call.
type Peers interface {
	// At returns the agent of a peer. Errors: Unavailable for an unreachable
	// peer, here or at the first call.
	At(peer string) (instances.Registrar, error)
}

// Config configures a Service. Registry and Now are required.
type Config struct {
	Registry registry.Config // the Service sets Changed
	Checks   health.Config   // the Service sets Report and Now
	Validate bool            // require registered dependencies
	Strict   bool            // no registration replaces another
	Loopback bool            // allow checks of loopback addresses for instances on this host
	// Multicast says that this peer announces its instances of the default namespace by multicast DNS.
	Multicast bool

	Group   directory.Group // nil: no directory, this peer is alone
	Peers   Peers           // nil: other peers are unreachable
	Refused func(error)     // hears why the group refuses instances of this peer, nil when it takes them again; see directory.Config

	Caller func(context.Context) string // name of an authenticated caller; nil: nobody has one
	Client func(context.Context) string // of whose share of the instances a caller's are; nil: nobody has a share
	// May checks that the caller may act for a service, "NAMESPACE/SERVICE"; nil: everybody may.
	May func(ctx context.Context, service string) error
	// Speaks returns the principal that a calling peer speaks for, "@" and a name or another text without one, and an error
	// unless the peer's word counts. nil: no peer's word counts.
	Speaks    func(context.Context) (principal string, err error)
	Announcer Announcer      // nil: offers are kept without an announcement
	Metrics   *metrics.Agent // nil records nothing
	Now       func() time.Time
	Logger    *slog.Logger  // nil means no log
	Tracer    *trace.Tracer // nil means no spans
}

// Service is the agent plane of one peer. It is safe for concurrent use.
type Service struct {
	*reader
	*local
	forwarder *forwarder
	own       *directory.Directory // made by New; nil without a group
}

var (
	_ instances.Registrar = (*Service)(nil)
	_ instances.Catalog   = (*Service)(nil)
)

// New opens the registry, publishes its content and starts checks. Errors: as
// its parts.
func New(c Config) (s *Service, err error) {
	const op = "agent.New"
	known := catalog.New(catalog.Config{Now: c.Now})
	c.setDefaults()
	if c.Group == nil {
		s, err = newService(c, nil, known)
		return s, fault.Wrap(op, err)
	}
	d := directory.New(directory.Config{
		Group: c.Group, Catalog: known, Self: c.Registry.Self, Failed: c.Metrics.Failed, Logger: c.Logger, Tracer: c.Tracer, Refused: c.Refused,
		Lost: func(keys []instance.Key) { s.Lost(keys) }, // after Start
	})
	if s, err = newService(c, d, known); err != nil {
		d.Close()
		return nil, fault.Wrap(op, err)
	}
	s.own = d
	d.Start()
	return s, nil
}

func (c *Config) setDefaults() {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Client == nil {
		c.Client = func(context.Context) string { return "" }
	}
	if c.Caller == nil {
		c.Caller = func(context.Context) string { return "" }
	}
	if c.Speaks == nil {
		c.Speaks = func(context.Context) (string, error) {
			return "", fault.New("agent.Speaks", fault.Forbidden, "the word of no peer counts here")
		}
	}
}

// newService starts a Service with a directory, which feeds the catalog; nil
// without a group.
func newService(c Config, d Directory, known *catalog.Catalog) (*Service, error) {
	c.setDefaults()
	l := &local{
		config: c, directory: d, catalog: known, aliases: bounded.Shared[string, instance.Key](maxAliases),
		ends: &ends{known: bounded.Shared[instance.Key, instances.Removal](catalog.MaxEnded)},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	r := &reader{Catalog: known, local: l}
	s := &Service{local: l, reader: r, forwarder: &forwarder{local: l, reader: r}}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return s, nil
}

// Pending returns the number of instances of this peer that the group does not have in their last state; 0 without a group.
func (s *Service) Pending() int {
	if s.own == nil {
		return 0
	}
	return s.own.Pending()
}

// Close ends checks and watches and closes the registry. Registered instances
// stay. They keep their status over a restart within 15 s; later they are
// UNKNOWN until the next heartbeat or check.
func (s *Service) Close() error {
	err := s.close()
	if s.own != nil {
		s.own.Close()
	}
	return err
}
