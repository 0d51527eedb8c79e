// Package probe speaks to peers, and says whether they live. Lookups avoid those that did not answer.
package probe

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	checksAtOnce = 16              // of suspects
	maxSuspects  = 1024            // that wait for a check, and peers to avoid
	suspectAfter = 5 * time.Second // age of a check that a suspicion repeats

	avoidFirst  = 30 * time.Second // about the time of a conclusive check
	avoidMost   = 5 * time.Minute  // after repeated silence
	avoidMemory = 10 * time.Minute // a later silence starts at avoidFirst again; a failed check counts for so long
)

// Config are the settings of the prober. Zero fields take their defaults.
type Config struct {
	Timeout time.Duration // of one check; default 10 s
	OnCheck func()        // called after each check, for metrics; must not block; may be nil
}

// Outcome is the result of one check. It is this peer's own evidence, not the network's view.
type Outcome struct {
	State     records.Reachability // Reachable, Busy or Unreachable; "": the check says nothing about the peer
	RoundTrip time.Duration        // of a Reachable peer
	Refused   bool                 // an Unreachable peer's machine lives, and nothing listens at any of its addresses
	Unknown   bool                 // nobody knows an address of the peer
	Dialed    bool                 // the check opened a connection, which ends with it
}

// network is the prober's view of the network.
type network interface {
	connected(id peer.ID) bool
	// ping waits for one answer over an open connection.
	ping(ctx context.Context, id peer.ID) Outcome
	// dial opens a new connection and pings. With fresh it closes the open ones first, with search it asks the network
	// for addresses.
	dial(ctx context.Context, id peer.ID, fresh, search bool) Outcome
	// watch reports whether the loss of a connection to a peer that nobody asked for deserves a check.
	watch(id peer.ID) bool
	// gone is called for a peer that failed a check.
	gone(id peer.ID)
}

// Prober checks peers when it is asked to, those that gave no answer to a lookup, and members of the routing table
// whose connection broke. It is safe for concurrent use.
type Prober struct {
	self     peer.ID
	net      network
	conf     Config
	events   event.Subscription // to connections
	suspects chan peer.ID       // wait for a check
	follow   atomic.Pointer[func(peer.ID, Change)]

	mu      sync.Mutex // guards the fields below, held for computation only
	pulse   pulse
	known   *simplelru.LRU[peer.ID, *suspicion]
	running map[peer.ID]*check
}

// check is one that runs. Whoever asks for another one of that peer gets its outcome.
type check struct {
	done    chan struct{}
	outcome Outcome // after done
}

// New returns the prober of a host. low is the number of connections below which the connection manager never trims.
// The caller runs Run.
func New(h host.Host, d *dht.IpfsDHT, low int, c Config) (*Prober, error) {
	p := newProber(h.ID(), &dialer{host: h, dht: d, low: low}, c)
	var err error
	p.events, err = h.EventBus().Subscribe(new(event.EvtPeerConnectednessChanged), eventbus.BufSize(256), eventbus.Name("blackhole/prober"))
	return p, err
}

func newProber(self peer.ID, net network, c Config) *Prober {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	return &Prober{
		self: self, net: net, conf: c, suspects: make(chan peer.ID, maxSuspects), running: make(map[peer.ID]*check),
		known: bounded.Map[peer.ID, *suspicion](maxSuspects, nil),
	}
}

// Change is a change of the connections with a peer.
type Change uint8

// The changes of connections.
const (
	Opened Change = iota // the first one
	Closed               // the last one
	Missed               // so, and the peer is in the routing table, and this host ends no connection by itself now
)

// Follow has f called with each change of connections. f must not block. The last call counts.
func (p *Prober) Follow(f func(peer.ID, Change)) { p.follow.Store(&f) }

// Check speaks to a peer: over a connection that is open, and over a new one where that does not answer. It lasts at
// most for Config.Timeout. Lookups avoid a peer that fails.
func (p *Prober) Check(ctx context.Context, id peer.ID) Outcome {
	if id == p.self {
		return Outcome{State: records.Reachable}
	}
	p.mu.Lock()
	c, joined := p.running[id]
	if !joined {
		c = &check{done: make(chan struct{})}
		p.running[id] = c
	}
	failed := p.find(id).failed
	p.mu.Unlock()
	if joined {
		select {
		case <-c.done:
			return c.outcome
		case <-ctx.Done():
			return Outcome{}
		}
	}
	o := p.speak(ctx, id, failed)
	if p.conf.OnCheck != nil {
		p.conf.OnCheck()
	}
	p.mu.Lock()
	delete(p.running, id)
	if ctx.Err() == context.Canceled {
		o = Outcome{} // the shutdown caused the failure
	}
	p.find(id).checked(o, time.Now())
	p.mu.Unlock()
	if o.State == records.Unreachable {
		p.net.gone(id)
	}
	c.outcome = o
	close(c.done)
	return o
}

// speak runs one check. search: the known addresses failed before.
func (p *Prober) speak(ctx context.Context, id peer.ID, search bool) Outcome {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.conf.Timeout)
	defer cancel()
	silent := false // the open connection
	if p.net.connected(id) {
		deadline, _ := ctx.Deadline() // perhaps the caller's, which is sooner
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
		switch o := p.net.ping(half, id); {
		case o.State == records.Unreachable && p.Late(began):
			return Outcome{} // this process may have missed the answer: the connection stays
		case o.State != records.Unreachable && (o.State != records.Reachable || p.net.connected(id)):
			return o // else the answer may precede the loss of the connection
		default:
			silent = o.State == records.Unreachable
		}
	}
	o := p.net.dial(ctx, id, silent, search)
	if o.State == records.Unreachable && p.net.connected(id) { // the dial failed, and another connection opened meanwhile
		o = p.net.ping(ctx, id)
	}
	if o.State == records.Unreachable && !o.Refused && p.Late(began) {
		return Outcome{Dialed: o.Dialed}
	}
	return o
}

// Late reports whether this process ran late at some time since began: then the absence of an answer is no silence of the other peer.
func (p *Prober) Late(began time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pulse.lateSince(began, time.Now())
}

// find returns what is known about a peer. The caller holds p.mu.
func (p *Prober) find(id peer.ID) *suspicion {
	s, ok := p.known.Get(id)
	if !ok {
		s = &suspicion{}
		p.known.Add(id, s)
	}
	return s
}

// Suspect has peers checked soon that gave no answer. Lookups avoid them meanwhile. Without room they are only
// avoided.
func (p *Prober) Suspect(ids ...peer.ID) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		s := p.find(id)
		s.silent(now)
		if now.Sub(s.at) >= suspectAfter {
			p.enqueue(id)
		}
	}
}

// enqueue has a peer checked. The caller holds p.mu.
func (p *Prober) enqueue(id peer.ID) {
	s := p.find(id)
	if s.waits || id == p.self || id == "" {
		return
	}
	select {
	case p.suspects <- id:
		s.waits = true
	default:
	}
}

// Responded ends the suspicion against a peer.
func (p *Prober) Responded(id peer.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.known.Peek(id); ok {
		s.until, s.period = time.Time{}, 0
	}
}

// Avoid reports whether a peer is suspected, or failed its last check.
func (p *Prober) Avoid(id peer.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.known.Peek(id)
	return ok && s.avoided(time.Now())
}

// Refuses reports whether the last check of a peer found its machine, and nothing that listens at any of its addresses.
func (p *Prober) Refuses(id peer.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.known.Peek(id)
	return ok && s.refused && time.Since(s.at) < avoidMemory
}

// Run checks suspects until ctx ends, then waits for the checks. An undrained event bus stalls the host, so Run never
// blocks.
func (p *Prober) Run(ctx context.Context) {
	var checks sync.WaitGroup
	defer checks.Wait()
	defer p.events.Close() // before the wait: a check may hang behind an event
	events := p.events.Out()
	beat := time.NewTicker(pulseEvery)
	defer beat.Stop()
	ended := make(chan struct{}, checksAtOnce)
	for running := 0; ; {
		suspects := p.suspects
		if running == checksAtOnce {
			suspects = nil
		}
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			p.handle(e)
		case id := <-suspects:
			running++
			checks.Go(func() {
				defer func() { ended <- struct{}{} }()
				p.Check(ctx, id)
			})
		case <-ended:
			running--
		case <-beat.C:
			p.mu.Lock()
			p.pulse.beat(time.Now())
			p.mu.Unlock()
		}
	}
}

func (p *Prober) handle(e any) {
	change, ok := e.(event.EvtPeerConnectednessChanged)
	if !ok {
		return
	}
	what := Opened
	if change.Connectedness == libp2p.NotConnected {
		if what = Closed; p.net.watch(change.Peer) {
			what = Missed
		}
	}
	p.mu.Lock()
	switch what {
	case Missed:
		p.enqueue(change.Peer)
	case Opened:
		if s, ok := p.known.Peek(change.Peer); ok {
			s.until, s.period, s.failed, s.refused = time.Time{}, 0, false, false
		}
	}
	p.mu.Unlock()
	if f := p.follow.Load(); f != nil {
		(*f)(change.Peer, what)
	}
}

// suspicion is why lookups avoid a peer.
type suspicion struct {
	at      time.Time // of the last check that said something
	failed  bool      // it
	refused bool      // so, by the peer's machine
	waits   bool      // for a check
	until   time.Time // lookups avoid the peer
	period  time.Duration
}

// silent handles silence in a lookup: it avoids the peer for a period that doubles with each further silence.
func (s *suspicion) silent(now time.Time) {
	switch {
	case now.Before(s.until): // the period continues
	case s.period > 0 && now.Sub(s.until) < avoidMemory:
		s.period = min(2*s.period, avoidMost)
		s.until = now.Add(s.period)
	default:
		s.period, s.until = avoidFirst, now.Add(avoidFirst)
	}
}

// checked handles the end of a check.
func (s *suspicion) checked(o Outcome, now time.Time) {
	s.waits = false
	if o.State == "" {
		return
	}
	s.at, s.failed, s.refused = now, o.State == records.Unreachable, o.Refused
	if o.State == records.Reachable {
		s.until, s.period = time.Time{}, 0
	}
}

func (s *suspicion) avoided(now time.Time) bool {
	return now.Before(s.until) || s.failed && now.Sub(s.at) < avoidMemory
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
