package discovery

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// IdentityWatch notices records that the key of this peer signed elsewhere: two machines have one identity, or the
// registry is an older copy from a backup. It suspends the registry and raises the condition. The zero value of
// the optional fields is allowed, and it notices nothing before Attach.
type IdentityWatch struct {
	Conditions *condition.Set   // nil keeps none
	Logger     *slog.Logger     // required
	Now        func() time.Time // required

	registry atomic.Pointer[offers.Registry]
}

// Attach begins to compare with the registry, also the records that the index already has.
func (w *IdentityWatch) Attach(r *offers.Registry, x *index.Index) {
	w.registry.Store(r)
	if e, ok := r.Suspended(); ok {
		w.raise(e)
	}
	for v := range x.Versions() {
		w.Seen(v)
	}
}

// Seen checks one record from anywhere. It suits index.Config.Seen: only the first foreign record waits for the
// disk.
func (w *IdentityWatch) Seen(v *records.Record) {
	r := w.registry.Load()
	if r == nil || !r.Foreign(v) {
		return
	}
	first, err := r.Suspend(v, w.Now())
	if e, ok := r.Suspended(); ok {
		w.raise(e)
	}
	if first {
		w.Logger.Error("this peer did not issue a record with its own key: two machines have one identity, or this data directory is an older copy; offers are no longer renewed",
			"record", v.Name(), "sequence", v.Sequence(), "issued", v.Issued())
	}
	if err != nil {
		w.Logger.Error("the end of renewals was not written to disk and does not survive a restart", "error", err)
	}
}

func (w *IdentityWatch) raise(e offers.Evidence) {
	cause := "another machine has a copy of identity.key, or this data directory is an older copy of itself"
	if e.Later {
		cause = "another machine has a copy of identity.key"
	}
	w.Conditions.Raise(condition.IdentityInUse, fault.Problem{
		What:   fmt.Sprintf("%s: version %d of the own record %q, signed at %s, is not from this peer", cause, e.Sequence, e.ID, e.Issued.UTC().Format(time.RFC3339)),
		Effect: "the offers of this peer may be out of date and are no longer renewed",
		Remedy: "Stop the other machine, or give it an identity of its own; then stop this peer, run `blackholed reclaim` and start it",
	})
}

// Reclaim makes the offers in c.Dir the valid ones of c.Key again: see offers.Reclaim. Only Dir, Key and Now of the
// configuration count.
func Reclaim(c Config) (int, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	return offers.Reclaim(offers.Config{Dir: c.Dir, Key: c.Key, MaxServices: offers.MaxMaxServices}, c.Now())
}
