package truth

import (
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	reach "github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// The peer of a provider is checked, shared and drawn like an endpoint: it is one more thing of the provider with a
// target. All its offers share one check. A connection with it is an answer; the loss of one has it checked at once.
// Two refusals of its machine at all addresses decide ten seconds apart, silence after Config.Confirm. An address that
// nobody knows any more speaks against no peer that others reach, and one that nobody ever knew against those alone that sell through
// their peer: records of others may be brought by a peer that nobody can dial.

// Peers speaks to the peers of providers, and tells of connections with them: see p2p/probe.Prober.
type Peers interface {
	Check(ctx context.Context, id peer.ID) reach.Outcome
	// Follow has f called with each change of connections. f must not block.
	Follow(f func(peer.ID, reach.Change))
}

// PeerOf names what is known of the peer of a provider, here and on the wire. The id of an offer is never empty.
func PeerOf(provider peer.ID) records.Name { return records.Name{Provider: provider} }

// connected takes a change of the connections with a peer. A missed peer with offers is
// checked as if somebody had asked for it, since answers may show these offers.
func (x *Checks) connected(id peer.ID, change reach.Change) {
	x.mu.Lock()
	e, ok := x.known.Peek(PeerOf(id))
	now, changed := x.Now(), false
	if !ok && change == reach.Missed {
		if list := x.Offers(id); len(list) > 0 {
			e, ok = x.entry(PeerOf(id), list[0], now), true
			e.asked, e.shown = now, now
		}
	}
	switch {
	case !ok || e.state != canMeasure:
	case change == reach.Opened && e.due.IsZero(): // the check that runs may have opened it, and will say more
	case change == reach.Opened:
		failed := e.fails > 0
		x.take(e, probe.Outcome{State: probe.State(records.Reachable)}, false, now)
		if failed { // a check tells the witnesses
			e.due = now
		}
		_, dead := x.verdict(e, now)
		changed = x.note(e, dead) || failed
	case now.Sub(e.dialed) < endpointEvery: // a crowded peer ends new connections, and is dialed once a minute
	case e.due.IsZero():
		e.duty = true // the answer to the check that runs may precede the loss
	case e.fails > 0: // the next check is near
	default:
		e.due = now
		e.duty = len(e.witnesses) > 0 || x.wanted(e, now)
	}
	x.mu.Unlock()
	if changed {
		x.alert(e)
	}
	x.awake()
}

// throughPeer reports whether all known offers of a provider lead to its peer and to nothing else.
// The caller holds x.mu.
func (x *Checks) throughPeer(e *endpoint) bool {
	return e.peer && !slices.ContainsFunc(x.offersOf(e), func(r *records.Record) bool {
		m := r.Service().GetMetadata()
		return m.GetAccess() != records.AccessPeer && len(m.GetEndpoints()) > 0
	})
}

// apart is the time between the first failed check of an entry and the one that decides.
func (x *Checks) apart(e *endpoint, refused bool) time.Duration {
	switch {
	case !e.peer:
		return 0 // checks of an endpoint are apart enough
	case e.refused && refused:
		return endpointAgain
	}
	return x.Confirm
}

// offersOf returns the offers that what is known under a name is about, in the versions that are known here.
func (x *Checks) offersOf(e *endpoint) []*records.Record {
	if e.peer {
		if list := x.Offers(e.name.Provider); len(list) > 0 {
			return list
		}
	}
	return []*records.Record{e.record}
}

// alert tells that a verdict changed.
func (x *Checks) alert(e *endpoint) {
	for _, r := range x.offersOf(e) {
		x.Changed(r)
	}
}

// peerRow returns what is known of the peer of an offer's provider; nil without a measurement. The caller holds x.mu.
func (x *Checks) peerRow(r *records.Record, v *queries.Evidence, now time.Time) *records.Measured {
	if x.Own(r) {
		return &records.Measured{State: records.Reachable, CheckedAt: now}
	}
	e, ok := x.known.Peek(PeerOf(r.Name().Provider))
	if !ok {
		return nil
	}
	m, _ := x.verdict(e, now)
	if m.State == "" {
		return nil
	}
	v.RoundTrip, v.Failed = m.RoundTrip, e.fails > 0
	return &m
}

// Death is why answers leave an offer out.
type Death struct {
	records.Name // of the offer; for the peer of its provider see PeerOf
	records.Measured
}

// Reason says it to people.
func (d Death) Reason() string {
	switch {
	case d.ID != "":
		return "endpoint: " + worded(d.Measured)
	case d.Peers > 0:
		return fault.Counted(d.Peers, "peer") + " got no answer at any of its addresses"
	}
	return "no answer at any of its addresses"
}
