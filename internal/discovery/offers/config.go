package offers

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
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// Defaults and bounds of Config.
const (
	DefaultMaxServices = 100
	MaxMaxServices     = records.MaxPerProvider // keepers would refuse more
	DefaultTTL         = 24 * time.Hour
	DefaultRefresh     = 6 * time.Hour
)

// Config are the settings of a registry. Network, Dir and Key are required.
type Config struct {
	Network network.Name // of the records; Reclaim takes any

	Dir string         // folder of the database, created if missing, used by this registry only
	FS  vfs.FS         // nil: the disk
	Key crypto.PrivKey // Ed25519: signs records and identifies the provider

	MaxServices int           // live services, 1 to MaxMaxServices; 0: DefaultMaxServices
	TTL         time.Duration // from signing a version to its expiry, at most records.MaxTTL; 0: DefaultTTL
	Refresh     time.Duration // from signing a version to its replacement, ±10 %, at most TTL/2; 0: DefaultRefresh, at most TTL/4

	Precision        int // default geohash length in record keys, records.MinPrecision to MaxPrecision; 0: the schema's default
	PublishPrecision int // geohash length of published places, 1 to 12: only the cell's centre is published; 0: the exact place

	Jitter func() float64 // uniform in [0, 1), called by one goroutine at a time; nil: no jitter
	Logger *slog.Logger   // nil: silent
}

// Validate returns the first invalid field as an Invalid error. Zero values with a default are valid.
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
		return fault.Invalidf("max_services", c.MaxServices, "must be 0 or 1 to %d: keepers accept no more of one provider", MaxMaxServices)
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

// storeConfig configures the store of the services, keyed by id: a few hundred values of a few kilobytes.
func (c Config) storeConfig(provider peer.ID) store.Config {
	return store.Config{
		Dir:      c.Dir,
		FS:       c.FS,
		Logger:   c.Logger,
		Role:     "provider",
		Owner:    provider.String(),
		Prefix:   "service/",
		Format:   store.Format[*store.Store]{Name: "database of services"},
		MemTable: 256 << 10,
	}
}
