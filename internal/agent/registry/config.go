package registry

import (
	"cmp"
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/internal/contract/instances"
)

// Config configures a Registry. Dir and Self are required.
type Config struct {
	Dir  string // of the database, for this registry alone; created if missing
	FS   vfs.FS // nil means the disk
	Self string // id of this peer, the owner of the database

	MaxInstances int // 0 means 10,000

	// Stall is the time between two calls of Expire that indicates a suspended
	// process. The silence of instances during that time does not count. The
	// caller must call Expire several times as often. Zero allows any interval.
	Stall time.Duration

	// Changed receives all changes in order, one commit at a time. The
	// registry is locked during the call: Changed must neither block nor call
	// back. It owns the list. Nil means no receiver.
	Changed func([]instances.Change)

	Random io.Reader    // source of leases and ids, read by one goroutine at a time; nil means crypto/rand
	Logger *slog.Logger // nil means no log
}

func (c Config) withDefaults() Config {
	c.FS = cmp.Or(c.FS, vfs.Default)
	c.MaxInstances = cmp.Or(c.MaxInstances, 10_000)
	if c.Changed == nil {
		c.Changed = func([]instances.Change) {}
	}
	c.Random = cmp.Or(c.Random, rand.Reader)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}
