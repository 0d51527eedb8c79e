package p2p

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// ProbeConfig tunes the measuring of providers. A zero field takes its default.
type ProbeConfig struct {
	Interval    time.Duration // between two pings of one peer; default 1 min
	Timeout     time.Duration // of one dial and ping; default 10 s
	Concurrency int           // probes at once; default 16
	Capacity    int           // peers under observation; default 1024
	Keep        time.Duration // observation without a further Track; default 10 min
	OnCheck     func()        // called after each measurement, for metrics; must not block; nil: not
}

func (c ProbeConfig) complete() (ProbeConfig, error) {
	for _, f := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"probe.interval", &c.Interval, time.Minute},
		{"probe.timeout", &c.Timeout, 10 * time.Second},
		{"probe.keep", &c.Keep, 10 * time.Minute},
	} {
		if *f.value < 0 {
			return c, fault.Invalidf(f.name, *f.value, "must not be negative")
		}
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	for _, f := range []struct {
		name     string
		value    *int
		def, max int
	}{
		{"probe.concurrency", &c.Concurrency, 16, 256},
		{"probe.capacity", &c.Capacity, 1024, 1 << 16},
	} {
		if *f.value < 0 || *f.value > f.max {
			return c, fault.Invalidf(f.name, *f.value, "must be in [0, %d]", f.max)
		}
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	return c, nil
}

// probeNetwork is the network as the prober sees it.
type probeNetwork interface {
	// check does one probe and returns when it is done or ctx ends.
	check(ctx context.Context, p probe) outcome
	connected(id peer.ID) bool
	// watch reports whether the loss of an unobserved peer's connection should be looked into.
	watch(id peer.ID) bool
	// gone takes the news that a peer became unreachable.
	gone(id peer.ID)
	// alive takes a sign of life.
	alive(id peer.ID)
}

// Prober measures providers that this peer is about to offer: by connection events, and
// by pings with backoff. Safe for concurrent use. It keeps no verdict without evidence of
// its own, and what it says is this peer's view, not the network's.
type Prober struct {
	self peer.ID
	net  probeNetwork
	conf ProbeConfig
	wake chan struct{} // capacity 1: something may be due sooner

	mu      sync.Mutex // held only for steps of the machine
	tracker *tracker
	running int // probes under way
}

// newProber expects a complete configuration. The caller runs run.
func newProber(self peer.ID, net probeNetwork, c ProbeConfig) *Prober {
	return &Prober{self: self, net: net, conf: c, wake: make(chan struct{}, 1), tracker: newTracker(c)}
}

// Track keeps peers measured for ProbeConfig.Keep. Beyond the capacity the peers tracked
// longest ago are forgotten. It never blocks on the network.
func (p *Prober) Track(ids ...peer.ID) {
	now := time.Now()
	for _, id := range ids {
		if id == p.self || id == "" {
			continue
		}
		connected := p.net.connected(id)
		p.mu.Lock()
		p.tracker.track(id, connected, now)
		p.mu.Unlock()
	}
	p.wakeUp()
}

// Suspect has peers measured soon, for there is reason to think that they are gone, and keeps
// them measured as Track does.
func (p *Prober) Suspect(ids ...peer.ID) {
	p.Track(ids...)
	now := time.Now()
	p.mu.Lock()
	for _, id := range ids {
		p.tracker.suspect(id, now)
	}
	p.mu.Unlock()
	p.wakeUp()
}

// Measured gives the verdict on a peer; false while there is none. This peer itself is
// always reachable.
func (p *Prober) Measured(id peer.ID) (records.Measured, bool) {
	if id == p.self {
		return records.Measured{Reachable: true, CheckedAt: time.Now()}, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.measured(id)
}

// Unreachable lists the peers found unreachable, sorted, at most 256: the ones to leave
// out of an answer.
func (p *Prober) Unreachable() []peer.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.unreachable()
}

// Epoch grows with every change of the set of unreachable peers, so that an answer made at
// one epoch may be kept until the next.
func (p *Prober) Epoch() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.epoch
}

func (p *Prober) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run drives the machine until ctx ends, and then waits for its probes. Events come from
// an event bus that stalls when nobody drains it: nothing here may block.
func (p *Prober) run(ctx context.Context, sub event.Subscription) {
	var probes sync.WaitGroup
	defer probes.Wait()
	defer sub.Close() // before the wait: a probe may be stuck behind an event
	events := sub.Out()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			p.handle(e)
		case <-p.wake:
		case <-timer.C:
		}
		due, wait := p.step(time.Now())
		for _, pr := range due {
			probes.Go(func() { p.probe(ctx, pr) })
		}
		timer.Reset(wait)
	}
}

// step takes what is due and says how long nothing will be. While all slots are taken it
// waits for the end of a probe, which rouses the loop.
func (p *Prober) step(now time.Time) ([]probe, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.tracker.next(p.conf.Concurrency-p.running, now)
	p.running += len(due)
	at, ok := p.tracker.nextDue()
	if !ok || p.running >= p.conf.Concurrency {
		return due, p.conf.Interval
	}
	return due, max(at.Sub(now), 0)
}

func (p *Prober) probe(ctx context.Context, pr probe) {
	bounded, cancel := context.WithTimeout(ctx, p.conf.Timeout)
	defer cancel()
	o := p.net.check(bounded, pr)
	if ctx.Err() != nil {
		o = outcome{result: undecided} // we are closing: the failure is ours
	}
	p.mu.Lock()
	p.running--
	if p.conf.OnCheck != nil {
		p.conf.OnCheck()
	}
	gone := p.tracker.done(pr, o, time.Now())
	p.mu.Unlock()
	switch {
	case gone:
		p.net.gone(pr.id)
	case o.result == answered:
		p.net.alive(pr.id)
	}
	p.wakeUp()
}

func (p *Prober) handle(e any) {
	change, ok := e.(event.EvtPeerConnectednessChanged)
	if !ok {
		return
	}
	now := time.Now()
	watch := change.Connectedness == network.NotConnected && p.net.watch(change.Peer)
	if change.Connectedness != network.NotConnected {
		p.net.alive(change.Peer)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case change.Connectedness != network.NotConnected:
		p.tracker.connected(change.Peer, now)
	default:
		if watch {
			p.tracker.track(change.Peer, false, now)
		}
		p.tracker.disconnected(change.Peer, now)
	}
}
