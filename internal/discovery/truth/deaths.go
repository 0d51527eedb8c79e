package truth

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/witness"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bounds of deaths.
const (
	maxDeaths  = 64               // providers that wait
	deathWidth = 64               // providers at a time: most of it is waiting
	deathAgain = 10 * time.Second // between two questions to the witnesses of one
	deathEnds  = 4 * time.Minute  // of the questions: own measurements decide by then
)

// Peers measures the peers of providers.
type Peers interface {
	// OnFailed has f called with each peer that failed a first measurement, or became unreachable. f must not block.
	OnFailed(f func(peer.ID))
	// Doubt reports that others got no answer of a peer: it is measured soon. If they are enough, its first failure makes it unreachable.
	Doubt(id peer.ID, enough bool)
	// Measured returns the last finding about a provider, false without one.
	Measured(id peer.ID) (records.Measured, bool)
}

// Deaths finds out soon that a provider's peer died. A peer whose connection with it breaks, and that cannot dial it, gives its finding to
// the witnesses of the provider, which measure too, and asks them for theirs. Its own failure decides with those of two others. Witnesses
// that are sure tell the peers that asked for the provider's offers, which then do the same. It is safe for concurrent use.
type Deaths struct {
	sharing  *Sharing
	prober   Peers
	opinions *witness.Opinions
	provides func(peer.ID) bool // it has offers that are known here
	enough   func([]witness.Heard, int) bool
	others   func(provider peer.ID) int // whose failures decide with an own one
	askers   func(provider peer.ID) []peer.ID
	now      func() time.Time
	queue    chan peer.ID
}

// NewDeaths has p tell of failures. The caller runs Run.
func NewDeaths(x *Checks, sharing *Sharing, p Peers, o *witness.Opinions, provides func(peer.ID) bool) *Deaths {
	d := &Deaths{
		sharing: sharing, prober: p, opinions: o, provides: provides, enough: x.enough, others: x.confirming, now: x.now, queue: make(chan peer.ID, maxDeaths),
		askers: func(provider peer.ID) []peer.ID {
			return x.askersOf(func(n records.Name) bool { return n.Provider == provider })
		},
	}
	p.OnFailed(d.failed)
	return d
}

// failed takes a failure of the prober. Without room the peer measures alone.
func (d *Deaths) failed(id peer.ID) {
	if !d.provides(id) {
		return
	}
	select {
	case d.queue <- id:
	default:
	}
}

// Hear takes what others found about peers.
func (d *Deaths) Hear(st witness.Statement, from netip.Prefix) {
	d.opinions.Hear(st, from, d.now())
	for _, f := range st.Findings {
		if f.Record == "" && f.State == records.Unreachable && d.provides(f.Provider) {
			d.prober.Doubt(f.Provider, d.enough(d.opinions.Gone(f.Provider, d.now()), d.others(f.Provider)))
		}
	}
}

// Run shares failures until ctx ends.
func (d *Deaths) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, deathWidth)
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-d.queue:
			slots <- struct{}{} // share ends by itself
			all.Go(func() {
				defer func() { <-slots }()
				d.share(ctx, id)
			})
		}
	}
}

// share exchanges a failure with the witnesses of a provider, again and again until it is settled: the peer is sure, or the provider
// answers. A witness that is sure tells those who asked.
func (d *Deaths) share(ctx context.Context, id peer.ID) {
	own, err := witness.Sign(d.sharing.Network, d.sharing.Key, []witness.Finding{{Provider: id, State: records.Unreachable, CheckedAt: d.now()}})
	if err != nil { // impossible with a sound key
		return
	}
	if d.gone(id) {
		if len(d.sharing.OwnWitnesses(id)) > 0 {
			d.sharing.Tell(ctx, d.askers(id), own)
		}
		return
	}
	began := d.now()
	for wait := time.Second; d.now().Sub(began) < deathEnds; wait = min(2*wait, deathAgain) {
		for _, s := range d.sharing.Witness(ctx, id, []string{""}, own) {
			d.Hear(s.Statement, s.From)
		}
		if d.gone(id) {
			return // as failed has heard by now
		}
		if !pause.For(ctx, wait) {
			return
		}
		if m, ok := d.prober.Measured(id); ok && m.Since.IsZero() && m.State != records.Unreachable && m.Peers == 0 {
			return // it answered since
		}
	}
}

// gone reports whether this peer is sure.
func (d *Deaths) gone(id peer.ID) bool {
	m, ok := d.prober.Measured(id)
	return ok && m.State == records.Unreachable
}
