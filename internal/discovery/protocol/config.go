// Package protocol is what keepers say to each other: the bounds of messages, requests to other keepers, and the verification of what they
// send. Life is what all rooms of a keeper share. Messages travel over package rpc.
package protocol

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// Router finds peers in the DHT.
type Router interface {
	// Closest returns up to Network peers closest to a key, nearest first, without this peer:
	// fewer in a smaller network. At its deadline it returns an error and the peers found so far.
	// It returns (nil, nil) if this peer is alone.
	Closest(ctx context.Context, key string) ([]peer.ID, error)
	// Nearby returns the n closest known peers to a key, nearest first, without a request.
	Nearby(key string, n int) []peer.ID
	// Size returns the number of peers in the routing table.
	Size() int
	// Serving reports whether this peer is a server of the DHT. Only servers are keepers.
	Serving() bool
}

// Signals tell the operator about a keeper.
type Signals struct {
	Conditions *condition.Set     // nil keeps none
	Tracer     *trace.Tracer      // nil traces nothing
	Metrics    *metrics.Discovery // nil counts nothing
}

// Config configures a keeper. Network, Host, Router, Index and Verifier are required.
type Config struct {
	Network  network.Name
	Host     host.Host // not closed by the keeper
	Router   Router
	Index    *index.Index // stores the accepted records
	Verifier *records.Verifier
	Self     peer.ID          // empty means the host's id
	Now      func() time.Time // nil means time.Now
	Logger   *slog.Logger     // nil logs nothing
	Limits   Limits

	Signals Signals

	// Wanted reports whether this peer needs a record for itself, for example as a result of a
	// subscription. Such a record stays in the index. It must not block. Nil means never.
	Wanted func(*records.Record) bool

	// Draw decides which keeper is asked beside the nearest one, and where others are looked for. Nil always returns 0.
	Draw Draw

	// Heard receives each statement that its measurer delivered, with the measurer's network; Asked each offer whose endpoint another
	// peer shows, and that peer. They must not block. Nil means nobody.
	Heard func(st Statement, from netip.Prefix)
	Asked func(records.Name, peer.ID)
}

// Draw returns a random number from 0 to n-1.
type Draw func(n int) int

// Mix draws an order of peers.
func (d Draw) Mix(ids []peer.ID) {
	for i := range ids {
		j := i + d(len(ids)-i)
		ids[i], ids[j] = ids[j], ids[i]
	}
}

// Checked returns the configuration with its defaults. It returns Invalid without a required part.
func (c Config) Checked() (Config, error) {
	if c.Host == nil || c.Router == nil || c.Index == nil || c.Verifier == nil {
		return c, fault.New("keeper.New", fault.Invalid, "the host, the router, the index and the verifier are required")
	}
	if err := c.Network.Validate(); err != nil {
		return c, fault.In("network", fault.Wrap("keeper.New", err))
	}
	if c.Self == "" {
		c.Self = c.Host.ID()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Draw == nil {
		c.Draw = func(int) int { return 0 }
	}
	c.Limits = c.Limits.withDefaults()
	return c, nil
}

// Bounded calls do(0) to do(n-1), at most width at a time, and waits for all.
func Bounded(width, n int, do func(int)) {
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}

// Every calls do at an interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, do func()) {
	for pause.For(ctx, interval) {
		do()
	}
}
