package daemon

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// reloader applies the settings that may change while the peer runs.
type reloader struct {
	again   func() (config.Config, error) // nil: the settings came from a program
	journal *journal
	auth    *authSetup
	options access.Options
	log     *slog.Logger
	hangups chan os.Signal

	mu  sync.Mutex // guards now
	now config.Config
}

// catchSignals keeps two signals from ending this program, also while it starts and stops: hangups, and those of a log whose
// reader has gone. They are caught and not ignored, because commands of health checks would inherit that.
func catchSignals() (hangups chan os.Signal, release func()) {
	hangups = make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	unread := make(chan os.Signal, 1) // nobody receives: the failed write tells
	signal.Notify(unread, syscall.SIGPIPE)
	return hangups, func() { signal.Stop(hangups); signal.Stop(unread) }
}

// attend reloads at each hangup, until ctx ends.
func (r *reloader) attend(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.hangups:
			r.reload()
		}
	}
}

// settings returns the settings in force.
func (r *reloader) settings() config.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// reload reads the settings again and applies what can be applied: all of it, or nothing after a mistake. It leaves one line.
func (r *reloader) reload() {
	if r.again == nil {
		r.log.Warn("SIGHUP: this peer has no settings file to read again")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var applied, waiting []string
	next, err := r.again()
	if err == nil {
		applied, waiting, err = r.apply(located(next))
	}
	switch {
	case err != nil:
		r.log.Warn("SIGHUP: the new settings are refused, and all old ones stay in force", "field", fault.FieldOf(err), "error", err)
	case len(waiting) > 0:
		r.log.Warn("SIGHUP: some changed settings need a restart", "restart_for", waiting, "applied", applied)
	default:
		r.log.Info("SIGHUP: read the settings again", "applied", applied)
	}
}

func (r *reloader) apply(next config.Config) (applied, waiting []string, err error) {
	for _, s := range config.Changed(r.now, next) {
		if s.Reloads {
			applied = append(applied, s.Key)
		} else {
			waiting = append(waiting, s.Key)
		}
	}
	if err := r.auth.renew(r.now.Auth, next.Auth, r.options); err != nil {
		return nil, nil, err
	}
	if next.Log.Level != r.now.Log.Level { // otherwise the level that an operator set for a while stays
		if _, err := r.journal.setLevel(next.Log.Level); err != nil {
			return nil, nil, fault.In("log", err) // impossible: config.Validate allows only known levels
		}
	}
	r.now.Auth, r.now.Log.Level = next.Auth, next.Log.Level
	return applied, waiting, nil
}

// renew takes new credentials for all callers. Authentication, its method and TLS stay on or off: listeners depend on them.
func (e *authSetup) renew(now, next config.Auth, o access.Options) error {
	const restart = "cannot change while the peer runs: restart it"
	switch {
	case next.On() != now.On():
		return fault.Invalidf("auth.enabled", next.Enabled, restart)
	case next.Method != now.Method:
		return fault.Invalidf("auth.method", next.Method, restart)
	case (next.ServerCert == "") != (now.ServerCert == ""):
		return fault.Invalidf("auth.server_cert", next.ServerCert, restart)
	}
	c := accessConfig(next)
	guard, err := access.New(c, o)
	if err != nil {
		return fault.In("auth", err)
	}
	secure, err := access.NewTLS(c, o)
	if err != nil {
		return fault.In("auth", err)
	}
	if e.guard != nil && guard != nil {
		e.guard.Adopt(guard)
	}
	if e.tls != nil && secure != nil {
		e.tls.Adopt(secure)
	}
	return nil
}
