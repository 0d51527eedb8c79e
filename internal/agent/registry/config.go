package registry

import (
	"crypto/rand"
	"io"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of Config.
const (
	DefaultMaxInstances = 10_000
	MaxMaxInstances     = 100_000

	maxSelf = 128
)

// Config says what a registry of instances is. Dir and Self are required.
type Config struct {
	Dir  string // of the database: made if missing, and of nobody else's
	FS   vfs.FS // nil: the disk
	Self string // id of this peer, which the database belongs to, to 128 bytes

	MaxInstances int // registered at once, 1 to MaxMaxInstances; 0: DefaultMaxInstances

	// Stall is the time between two calls of Expire that tells that this process stood still, as
	// when it was suspended: what it did not hear then is not held against the instances. The
	// caller then has to call Expire several times as often. 0: calls may come at any time.
	Stall time.Duration

	// Changed is told every change, in order, all of one commit together. It is called with
	// the registry locked: it must not wait, nor call back. The list is its own. Nil: nobody.
	Changed func([]Change)

	Random io.Reader    // of leases and ids, read by one goroutine at a time; nil: the system's
	Logger *slog.Logger // nil: silence
}

// Validate gives the first fault as an Invalid error that names the field. Zero values that
// stand for defaults are valid.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return fault.Invalidf("dir", nil, "is required")
	case c.Self == "" || len(c.Self) > maxSelf || !utf8.ValidString(c.Self):
		return fault.Invalidf("self", c.Self, "must be the id of a peer")
	case c.MaxInstances < 0 || c.MaxInstances > MaxMaxInstances:
		return fault.Invalidf("max_instances", c.MaxInstances, "must be 0 or 1 to %d", MaxMaxInstances)
	case c.Stall < 0:
		return fault.Invalidf("stall", c.Stall.String(), "must not be negative")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.MaxInstances == 0 {
		c.MaxInstances = DefaultMaxInstances
	}
	if c.Changed == nil {
		c.Changed = func([]Change) {}
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Change is what became of an instance.
type Change struct {
	instance.Key
	Instance *instance.Instance // nil: it is gone
	Last     *instance.Instance // before; nil: it was not there
	Revision uint64             // of this change: that of Instance, if there is one
	Reason   string             // one of the reasons below
}

// Reasons of changes.
const (
	ReasonRegistered   = "registered"
	ReasonDeregistered = "deregistered"
	ReasonHeartbeat    = "heartbeat" // it was heard of again, or has started
	ReasonChecked      = "checked"   // its check has another verdict
	ReasonOverridden   = "overridden"
	ReasonSilent       = "silent" // not heard of for UnhealthyAfter
	ReasonLost         = "lost"   // not heard of for RemoveAfter
)

// Verdict is what the check of an instance says after one more check.
type Verdict struct {
	Passing bool            // this one check
	Status  instance.Status // by thresholds: UP, DOWN, or StatusUnknown for not yet, which leaves it as it was
}
