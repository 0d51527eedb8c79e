package discovery

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/witness"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	maxInterests = 64               // answers whose providers wait for an exchange or for its second part
	tellAfter    = 15 * time.Second // from a request for measurements to the delivery of their results
)

// Sharing is the exchange of measurements with other peers.
type Sharing struct {
	Network  network.Name   // of the findings
	Key      crypto.PrivKey // signs the own findings
	Findings func(ctx context.Context, p *queries.Plan, providers []peer.ID, own []byte) []ask.Delivered
}

// shared is a Prober that adds the findings of others to the own ones. Own findings win.
type shared struct {
	Prober
	opinions *witness.Opinions
	now      func() time.Time
}

// Measured implements Prober.
func (s *shared) Measured(id peer.ID) (records.Measured, bool) {
	if m, ok := s.Prober.Measured(id); ok {
		return m, true
	}
	return s.opinions.Measured(id, s.now())
}

// interest is an answer whose providers may need a measurement.
type interest struct {
	caller    string
	plan      *queries.Plan
	providers []peer.ID
	tell      time.Time // of the delivery of the results; zero before the measurements
	since     time.Time // older measurements are told already
}

// exchange owns the measurements that answers ask for. One goroutine runs it.
type exchange struct {
	caller   func(context.Context) string
	sharing  *Sharing // nil: this peer measures alone
	prober   Prober   // own findings
	opinions *witness.Opinions
	now      func() time.Time
	queue    chan interest
}

func newExchange(s Settings, own Prober, now func() time.Time) *exchange {
	if s.Caller == nil {
		s.Caller = func(context.Context) string { return "" }
	}
	return &exchange{
		caller: s.Caller, sharing: s.Sharing, prober: own, opinions: witness.NewOpinions(), now: now,
		queue: make(chan interest, maxInterests),
	}
}

// want asks for measurements of providers. It never blocks: without room, this peer measures alone.
func (x *exchange) want(i interest) {
	if x.sharing == nil || len(i.providers) == 0 {
		x.prober.Track(i.caller, i.providers...)
		return
	}
	select {
	case x.queue <- i:
	default:
		x.prober.Track(i.caller, i.providers...)
	}
}

// run exchanges findings until ctx ends.
func (x *exchange) run(ctx context.Context) {
	var waiting []interest // by time of tell
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case i := <-x.queue:
			if measuring := x.ask(ctx, i); len(measuring.providers) > 0 && len(waiting) < maxInterests {
				waiting = append(waiting, measuring)
			}
		case <-timer.C:
		}
		for len(waiting) > 0 && !x.now().Before(waiting[0].tell) {
			x.tell(ctx, waiting[0])
			waiting = waiting[1:]
		}
		if len(waiting) > 0 {
			timer.Reset(max(waiting[0].tell.Sub(x.now()), 0))
		}
	}
}

// ask looks for findings of others about providers without an own one, and measures those that nobody vouches for.
func (x *exchange) ask(ctx context.Context, i interest) interest {
	var missing, measure []peer.ID
	for _, id := range i.providers {
		if _, ok := x.prober.Measured(id); ok {
			measure = append(measure, id) // the prober knows when the next measurement is due
		} else {
			missing = append(missing, id)
		}
	}
	if len(missing) > 0 {
		for _, d := range x.sharing.Findings(ctx, i.plan, missing, nil) {
			x.opinions.Hear(d.Statement, d.From, x.now())
		}
	}
	for _, id := range missing {
		if !x.opinions.Spare(id, x.now()) {
			measure = append(measure, id)
		}
	}
	x.prober.Track(i.caller, measure...)
	i.providers, i.since = measure, x.now().Add(-tellAfter)
	i.tell = x.now().Add(tellAfter)
	return i
}

// tell gives the results of measurements to the keepers.
func (x *exchange) tell(ctx context.Context, i interest) {
	var findings []witness.Finding
	for _, id := range i.providers {
		if m, ok := x.prober.Measured(id); ok && m.CheckedAt.After(i.since) {
			findings = append(findings, witness.Finding{Provider: id, State: m.State, RoundTrip: m.RoundTrip, CheckedAt: m.CheckedAt})
		}
	}
	if len(findings) == 0 {
		return
	}
	own, err := witness.Sign(x.sharing.Network, x.sharing.Key, findings)
	if err == nil {
		x.sharing.Findings(ctx, i.plan, nil, own)
	}
}
