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

// Config configures a Registry. Dir and Self are required.
type Config struct {
	Dir  string // of the database, for this registry alone; created if missing
	FS   vfs.FS // nil means the disk
	Self string // id of this peer, the owner of the database; at most 128 bytes

	MaxInstances int // 1 to MaxMaxInstances; 0 means DefaultMaxInstances

	// Stall is the time between two calls of Expire that indicates a suspended
	// process. The silence of instances during that time does not count. The
	// caller must call Expire several times as often. Zero allows any interval.
	Stall time.Duration

	// Changed receives all changes in order, one commit at a time. The
	// registry is locked during the call: Changed must neither block nor call
	// back. It owns the list. Nil means no receiver.
	Changed func([]instance.Change)

	Random io.Reader    // source of leases and ids, read by one goroutine at a time; nil means crypto/rand
	Logger *slog.Logger // nil means no log
}

// Validate returns the first error, Invalid with the field. Zero values for
// defaults are valid.
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
		c.Changed = func([]instance.Change) {}
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// CheckResult is the result of one check and the state that follows from it.
type CheckResult struct {
	Passing bool            // result of this check
	Status  instance.Status // state by the thresholds: UP, DOWN, or StatusUnknown, which changes nothing
}
