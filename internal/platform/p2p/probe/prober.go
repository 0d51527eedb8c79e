// Package probe measures providers: whether they answer, and how fast.
package probe

import (
	"cmp"
	"context"
	"sync"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"

	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/records"
)

// probesAtOnce bounds the probes that run concurrently.
const probesAtOnce = 16

// Config are the settings of the prober. Zero fields take their defaults.
type Config struct {
	Interval time.Duration // between two pings of one peer; default 10 min, for a watched peer at most 1 min
	Confirm  time.Duration // from the first failed probe of a peer to the second, which decides; default 2 min
	Timeout  time.Duration // of one dial and ping; default 10 s
	Capacity int           // observed peers that are not unreachable; default 1024
	Keep     time.Duration // length of an observation after its last Track; default 10 min
	OnCheck  func()        // called after each measurement, for metrics; must not block; may be nil
}

func (c Config) complete() Config {
	c.Interval = cmp.Or(c.Interval, 10*time.Minute)
	c.Confirm = cmp.Or(c.Confirm, 2*time.Minute)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Keep = cmp.Or(c.Keep, 10*time.Minute)
	c.Capacity = cmp.Or(c.Capacity, 1024)
	return c
}

// network is the prober's view of the network.
type network interface {
	// check runs one probe. It returns at the probe's end or with ctx.
	check(ctx context.Context, p probe) outcome
	connected(id peer.ID) bool
	// watch reports whether the loss of a connection to an untracked peer deserves a probe.
	watch(id peer.ID) bool
	// gone is called for a peer after its first and its second failure.
	gone(id peer.ID)
}

// Prober measures providers by connection events and pings. Its results are this peer's own evidence, not the
// network's view. It is safe for concurrent use.
type Prober struct {
	self peer.ID
	net  network
	conf Config

	events event.Subscription // to connections
	wake   chan struct{}      // capacity 1: an earlier probe may be due

	mu      sync.Mutex // guards the fields below, held for computation only
	tracker *tracker
	pulse   pulse
	running int // probes
	failed  func(peer.ID)
}

// New returns the prober of a host. low is the number of connections below which the connection manager never trims.
// The caller runs Run.
func New(h host.Host, d *dht.IpfsDHT, low int, c Config) (*Prober, error) {
	p := newProber(h.ID(), &dialer{host: h, dht: d, low: low}, c.complete())
	var err error
	p.events, err = h.EventBus().Subscribe(new(event.EvtPeerConnectednessChanged), eventbus.BufSize(256), eventbus.Name("blackhole/prober"))
	return p, err
}

func newProber(self peer.ID, net network, c Config) *Prober {
	return &Prober{self: self, net: net, conf: c, wake: make(chan struct{}, 1), tracker: newTracker(c)}
}

// Track observes the peers for another Config.Keep, on behalf of a caller. Beyond Config.Capacity, the
// caller with the most observations loses the one with the oldest Track. Track never waits for the network.
func (p *Prober) Track(caller string, ids ...peer.ID) {
	p.track(caller, ids, func(peer.ID, time.Time) {})
	p.wakeUp()
}

// Watch is Track for peers that a watch shows: until then, they are probed at least once a minute.
func (p *Prober) Watch(caller string, until time.Time, ids ...peer.ID) {
	p.track(caller, ids, func(id peer.ID, now time.Time) { p.tracker.watch(id, until, now) })
	p.wakeUp()
}

// track calls then for each tracked peer, under p.mu.
func (p *Prober) track(caller string, ids []peer.ID, then func(peer.ID, time.Time)) {
	now := time.Now()
	for _, id := range ids {
		if id == p.self || id == "" {
			continue
		}
		connected := p.net.connected(id)
		p.mu.Lock()
		p.tracker.track(caller, id, connected, now)
		then(id, now)
		p.mu.Unlock()
	}
}

// Announced reports a new record of a provider. An unreachable one is probed again soon.
func (p *Prober) Announced(id peer.ID) {
	p.mu.Lock()
	sooner := p.tracker.announced(id)
	p.mu.Unlock()
	if sooner {
		p.wakeUp()
	}
}

// lookups is the caller of observations that lookups cause.
const lookups = "lookups"

// Suspect tracks peers that gave no answer and probes them soon. Lookups avoid them meanwhile.
func (p *Prober) Suspect(ids ...peer.ID) {
	p.Track(lookups, ids...)
	now := time.Now()
	p.mu.Lock()
	for _, id := range ids {
		p.tracker.suspect(id, now)
	}
	p.mu.Unlock()
	p.wakeUp()
}

// OnFailed has f called with each peer that failed a first probe, or became unreachable. f must not block. Call it before Doubt.
func (p *Prober) OnFailed(f func(peer.ID)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = f
}

// Doubt reports that others got no answer of a peer. It is probed soon; if they are enough, a first failure makes it unreachable.
func (p *Prober) Doubt(id peer.ID, enough bool) {
	p.Track(lookups, id)
	p.mu.Lock()
	gone, failed := p.tracker.doubt(id, enough, time.Now()), p.failed
	p.mu.Unlock()
	if gone {
		p.net.gone(id)
		failed(id)
	}
	p.wakeUp()
}

// Responded ends the suspicion against a peer.
func (p *Prober) Responded(id peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tracker.find(id).responded()
}

// Avoid reports whether a peer is suspected, or failed its last probe.
func (p *Prober) Avoid(id peer.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.avoid(id, time.Now())
}

// Measured returns the last finding about a peer, false without evidence. This peer itself is always
// reachable.
func (p *Prober) Measured(id peer.ID) (records.Measured, bool) {
	if id == p.self {
		return records.Measured{State: records.Reachable, CheckedAt: time.Now()}, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.measured(id)
}

// Unreachable returns the unreachable peers, sorted, at most 4096. Answers leave them out. The caller must not
// modify the result.
func (p *Prober) Unreachable() []peer.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.unreachable()
}

// Epoch grows with each change of the set of unreachable peers. An answer is valid for one epoch.
func (p *Prober) Epoch() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.epoch
}

func (p *Prober) wakeUp() {
	pause.Wake(p.wake)
}

// Run schedules probes until ctx ends, then waits for them. An undrained event bus stalls the host, so Run
// never blocks.
func (p *Prober) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	defer p.events.Close() // before the wait: a probe may hang behind an event
	events := p.events.Out()
	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.NewTicker(pulseEvery)
	defer beat.Stop()
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
		case <-beat.C:
			p.mu.Lock()
			p.pulse.beat(time.Now())
			p.mu.Unlock()
			continue
		}
		due, wait := p.step(time.Now())
		for _, pr := range due {
			probes.Go(func() { p.probe(ctx, pr) })
		}
		timer.Reset(wait)
	}
}

// step returns the due probes and the time until the next one. While all slots are taken, the end of a probe
// wakes the loop.
func (p *Prober) step(now time.Time) ([]probe, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.tracker.next(probesAtOnce-p.running, now)
	p.running += len(due)
	at, ok := p.tracker.nextDue()
	if !ok || p.running >= probesAtOnce {
		return due, p.conf.Interval
	}
	return due, max(at.Sub(now), 0)
}

func (p *Prober) probe(ctx context.Context, pr probe) {
	bounded, cancel := context.WithTimeout(ctx, p.conf.Timeout)
	defer cancel()
	began := time.Now()
	o := p.net.check(bounded, pr)
	if ctx.Err() != nil {
		o = outcome{result: undecided} // the shutdown caused the failure
	}
	p.mu.Lock()
	o.late = p.pulse.lateSince(began, time.Now())
	p.running--
	if p.conf.OnCheck != nil {
		p.conf.OnCheck()
	}
	gone, failed := p.tracker.done(pr, o, time.Now()), p.failed
	p.mu.Unlock()
	if gone {
		p.net.gone(pr.id)
		if failed != nil {
			failed(pr.id)
		}
	}
	p.wakeUp()
}

// pulse notices that this process runs late, on a busy machine or after a sleep: then an answer may wait unread, and its absence is
// no silence of the other peer.
type pulse struct{ last, late time.Time }

const (
	pulseEvery = 250 * time.Millisecond
	lateness   = time.Second
)

// beat takes the time of a beat, which comes each pulseEvery.
func (p *pulse) beat(now time.Time) {
	if !p.last.IsZero() && now.Sub(p.last) >= lateness {
		p.late = now
	}
	p.last = now
}

// lateSince reports whether the process ran late at some time since began, or does now.
func (p *pulse) lateSince(began, now time.Time) bool {
	return p.late.After(began) || !p.last.IsZero() && now.Sub(p.last) >= lateness
}

func (p *Prober) handle(e any) {
	change, ok := e.(event.EvtPeerConnectednessChanged)
	if !ok {
		return
	}
	now := time.Now()
	watch := change.Connectedness == libp2p.NotConnected && p.net.watch(change.Peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	if change.Connectedness != libp2p.NotConnected {
		p.tracker.connected(change.Peer, now)
		return
	}
	if watch {
		p.tracker.track(lookups, change.Peer, false, now)
	}
	p.tracker.disconnected(change.Peer, now)
}
