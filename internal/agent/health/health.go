package health

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds and defaults of a Config.
const (
	DefaultTargets = 10_000
	DefaultWorkers = 64
	DefaultSlow    = 448

	MaxTargets = 1_000_000
	MaxWorkers = 4096
)

// Config of a Checker. Zero values stand for the defaults named, but Report and Random are required.
type Config struct {
	// Report is told the result of every check, in order for each target, from many goroutines.
	// It holds up its target and a worker until it returns. It may call Set, Remove and
	// Measured, but not Close.
	Report func(Report)

	Targets int // at most; DefaultTargets, up to MaxTargets
	Workers int // checks at work at the same time; DefaultWorkers, up to MaxWorkers
	Slow    int // checks beside them that take long; DefaultSlow, 2 to MaxWorkers

	Undamped bool // do not hold down what flaps

	// Scripts are the commands that checks may name, with their arguments; nil: script checks
	// are refused. The environment of a script is PATH, and BLACKHOLE_NAMESPACE, _SERVICE, _ID,
	// _HOST and _PORT of the instance.
	Scripts map[string][]string

	// TLS is for https checks; nil: certificates must verify against the roots of the system.
	TLS *tls.Config

	// Dial opens a connection to an address that was judged already, always numeric; nil: the
	// network's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Resolve gives the addresses of a name; nil: the resolver of Go, not that of the C library,
	// which cannot be interrupted.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	Now      func() time.Time // time.Now
	Random   func() uint64    // required: draws the phases; not called at the same time
	Logger   *slog.Logger     // none
	Recorder Recorder         // none
}

// Recorder counts what a Checker does. It is called by many goroutines, and must neither wait nor
// call the Checker.
type Recorder interface {
	// Checked counts a check that was made.
	Checked(kind instance.CheckType, passing bool, took time.Duration)
	// Skipped counts checks that were not made, or are void, because this peer was late.
	Skipped(n int)
}

// Target is an instance to check. The check's zero values stand for defaults.
type Target struct {
	Key   instance.Key
	Host  string // its own, the only one that is connected to
	Port  int
	Check instance.Check
	Local bool // registered from this host: may be, and name, a loopback address

	// Unmeasured: nobody asks for Measured, and what the checks of the last hour said is not kept, 360 bytes
	// at an interval of 10 s.
	Unmeasured bool
}

// Report is the result of one check.
type Report struct {
	Key     instance.Key
	At      time.Time     // when it ended
	Took    time.Duration // response time, or how long until it failed
	Passing bool          // this one check, whatever the verdict

	Status  instance.Status // the verdict: StatusUnknown until there is one, StatusUp or StatusDown
	Changed bool            // the verdict is not the one of the report before
	Damped  bool            // it would be up, but has flapped: held down

	// Err is why it failed: Forbidden, Timeout, Unavailable. It is for the log of this peer and
	// not for whoever registered the instance, who could read the network by it.
	Err error
}

// Measured is what the checks of the last hour, or the last twelve where that is longer, say.
type Measured struct {
	Checks        int
	Failed        int
	UptimePercent float64       // share of checks after which the verdict was up, 0 to 100
	ErrorRate     uint32        // failed of 10,000 checks
	P50, P95      time.Duration // response times of passed checks, within an eighth; 0 when none passed
	Last          time.Time     // end of the last check; zero: none yet
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Report == nil {
		return cfg, fault.Invalidf("report", nil, "is required")
	}
	if cfg.Random == nil {
		return cfg, fault.Invalidf("random", nil, "is required")
	}
	for _, n := range []struct {
		field     string
		value     *int
		standard  int
		low, high int
	}{
		{"targets", &cfg.Targets, DefaultTargets, 1, MaxTargets},
		{"workers", &cfg.Workers, DefaultWorkers, 1, MaxWorkers},
		{"slow", &cfg.Slow, DefaultSlow, 2, MaxWorkers},
	} {
		if *n.value == 0 {
			*n.value = n.standard
		}
		if *n.value < n.low || *n.value > n.high {
			return cfg, fault.Invalidf(n.field, *n.value, "must be %d to %d", n.low, n.high)
		}
	}
	for name, argv := range cfg.Scripts {
		if name == "" || len(argv) == 0 || argv[0] == "" {
			return cfg, fault.Invalidf("scripts."+name, nil, "needs a name and a command")
		}
	}
	cfg.Scripts = maps.Clone(cfg.Scripts) // they are looked up again for each check
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Recorder == nil {
		cfg.Recorder = nobody{}
	}
	return cfg, nil
}

// nobody records nothing.
type nobody struct{}

func (nobody) Checked(instance.CheckType, bool, time.Duration) {}
func (nobody) Skipped(int)                                     {}
