package health

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// Config configures a Checker. Report and Random are required; other zero
// values mean the defaults named below.
type Config struct {
	// Report receives the result of each check, in order for each target, from
	// many goroutines. The target and a worker wait for its return. It may call
	// Set, Remove and Measured, but not Close.
	Report func(Report)

	Targets int // maximum; 0 means 10,000
	Workers int // concurrent checks; 0 means 64
	Slow    int // additional slow checks, at least 2; 0 means 448

	// Scripts maps the names of script checks to commands with arguments. Nil
	// rejects script checks. The environment of a script is PATH, and
	// BLACKHOLE_NAMESPACE, _SERVICE, _ID, _HOST and _PORT of the instance.
	Scripts map[string][]string

	// TLS configures https checks. Nil verifies certificates against the
	// system's roots.
	TLS *tls.Config

	// Dial connects to an accepted, numeric address. Nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Resolve returns the addresses of a name. Nil means the Go resolver,
	// because lookups of the C library cannot be cancelled.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	Now    func() time.Time // nil means time.Now
	Random func() uint64    // required; draws phases, never concurrently
	Logger *slog.Logger     // nil means no log
}

// Target is an instance to check. Zero values of the check mean defaults.
type Target struct {
	Key   instance.Key
	Host  string // the only destination of connections
	Port  int
	Check instance.Check
	Local bool // registered from this host: may have a loopback address
	TLS   bool // of a check by gRPC
	Head  bool // a check by HTTP asks for the header alone

	// Unmeasured targets keep no measurements and save 360 bytes at an interval
	// of 10 s.
	Unmeasured bool
}

// Report is the result of one check.
type Report struct {
	Key     instance.Key
	At      time.Time     // end of the check
	Took    time.Duration // response time, or time until the failure
	Passing bool          // result of this check alone

	Status  instance.Status // StatusUnknown before the first threshold, then StatusUp or StatusDown
	Changed bool            // Status differs from the previous report
	Damped  bool            // held down by flap damping

	// Err is the failure: Forbidden, Timeout or Unavailable. It is for the log
	// and the operator of this peer only: it would let an application explore the
	// peer's network.
	Err error
}

// Measured summarises the checks of the last hour, and at least twelve.
type Measured struct {
	Checks        int
	Failed        int
	UptimePercent float64       // share of checks that left the target up, 0 to 100
	ErrorRate     uint32        // failures in 10,000 checks
	P50, P95      time.Duration // response times of passed checks, within an eighth; 0 without a pass
	Last          time.Time     // end of the last check; zero: none
}

func (cfg Config) withDefaults() Config {
	cfg.Targets, cfg.Workers, cfg.Slow = cmp.Or(cfg.Targets, 10_000), cmp.Or(cfg.Workers, 64), cmp.Or(cfg.Slow, 448)
	cfg.Scripts = maps.Clone(cfg.Scripts) // each check looks up its script
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return cfg
}
