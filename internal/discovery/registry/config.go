package registry

import (
	"io"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/crypto/pb"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Defaults and bounds of Config.
const (
	DefaultMaxServices = 100
	MaxMaxServices     = 10_000
	DefaultTTL         = 24 * time.Hour
	DefaultRefresh     = 6 * time.Hour
)

// Config says what a registry is. Dir and Key are required.
type Config struct {
	Dir string         // of the database: made if missing, and of nobody else's
	FS  vfs.FS         // nil: the disk
	Key crypto.PrivKey // Ed25519: signs, and names the provider whose registry this is

	MaxServices int           // registered at once, 1 to MaxMaxServices; 0: DefaultMaxServices
	TTL         time.Duration // from a version's signing to its lapse, to records.MaxTTL; 0: DefaultTTL
	Refresh     time.Duration // from a version's signing to that of its replacement, ±10 %, to TTL/2; 0: DefaultRefresh, or TTL/4 if that is less

	Precision        int // of the geohash in the key of records whose offers say none, records.MinPrecision to MaxPrecision; 0: the schema's default
	PublishPrecision int // length of the geohash whose centre is published instead of the exact place, 1 to 12; 0: the exact place

	Jitter func() float64 // uniform in [0, 1), called by one goroutine at a time; nil: none
	Logger *slog.Logger   // nil: silence
}

// Validate gives the first fault as an Invalid error that names the field. Zero values
// that stand for defaults are valid.
func (c Config) Validate() error {
	c = c.withDefaults()
	between := func(field string, v, low, high int) error {
		if v != 0 && (v < low || v > high) {
			return fault.Invalidf(field, v, "must be 0 or %d to %d", low, high)
		}
		return nil
	}
	switch {
	case c.Dir == "":
		return fault.Invalidf("dir", nil, "is required")
	case c.Key == nil:
		return fault.Invalidf("key", nil, "is required")
	case c.Key.Type() != pb.KeyType_Ed25519:
		return fault.Invalidf("key", nil, "must be an Ed25519 key")
	case c.MaxServices < 1 || c.MaxServices > MaxMaxServices:
		return fault.Invalidf("max_services", c.MaxServices, "must be 0 or 1 to %d", MaxMaxServices)
	case c.TTL <= 0 || c.TTL > records.MaxTTL:
		return fault.Invalidf("ttl", c.TTL, "must be positive and at most %v", records.MaxTTL)
	case c.Refresh <= 0 || c.Refresh > c.TTL/2:
		return fault.Invalidf("refresh", c.Refresh, "must be positive and at most half the ttl, %v", c.TTL/2)
	}
	if err := between("precision", c.Precision, records.MinPrecision, records.MaxPrecision); err != nil {
		return err
	}
	return between("publish_precision", c.PublishPrecision, 1, records.MaxPrecision)
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.MaxServices == 0 {
		c.MaxServices = DefaultMaxServices
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.Refresh == 0 {
		c.Refresh = min(DefaultRefresh, c.TTL/4)
	}
	if c.Jitter == nil {
		c.Jitter = func() float64 { return 0.5 }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return c
}

// storeConfigis where services are kept, each under its id. There are a few hundred of a few kilobytes.
func (c Config) storeConfig(provider peer.ID) store.Config {
	return store.Config{
		Dir:      c.Dir,
		FS:       c.FS,
		Logger:   c.Logger,
		Role:     "provider",
		Owner:    provider.String(),
		Prefix:   "service/",
		MemTable: 256 << 10,
	}
}
