package discovery

import (
	"cmp"
	"context"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/witness"
	"github.com/blackhole/blackhole/pkg/records"
)

// Who checks an endpoint, and how much the word of others counts. The witnesses of a provider are the peers nearest to its cell. Time has
// slots of a minute. Their turn goes around, and the witness of a slot checks the offer: in every slot while somebody asks for the offer,
// else in every fifteenth. Each check is told to all witnesses. One that hears of a failed check repeats it at once, in the order of the
// turn, until a quorum agrees or somebody gets an answer.
//
// An offer is dead by the word of others only if witness.Quorum measurers in as many address prefixes got no answer, and nobody got one
// since. A prefix counts by a connection of this peer with the measurer itself.
const (
	dutySlot    = time.Minute
	idleSlots   = 15               // of which one has a check while nobody asks
	duties      = 2048             // offers that one peer checks as a witness
	dutyRenewal = 30 * time.Second // between two looks for offers to witness
	rolesLast   = 2 * time.Minute  // of the knowledge of which providers this peer is a witness
	confirmStep = 3 * time.Second  // between the checks that confirm a failed one
	fetchEvery  = 45 * time.Second // between two questions to the witnesses of a provider
	heardLately = 150 * time.Second
	maxHeard    = 8

	spareAlone = 2 // own checks in a row that the word of less than a quorum replaces
)

// shares is the part of an endpoint's state that other peers cause.
type shares struct {
	heard     []witness.Heard // the newest of each measurer, oldest first
	interest  time.Time       // another peer asked for it
	fetched   time.Time
	spared    int
	witnesses []peer.ID // of its provider; none if this peer is not among them
	slot      int64     // last one that this peer looked at
	confirm   time.Time // of a check after another's failed one; zero: none
}

// hear notes the findings of a statement about endpoints. from is the network of the measurer, zero if unknown.
func (x *endpoints) hear(st witness.Statement, from netip.Prefix) {
	now := x.now()
	for _, f := range st.Findings {
		if f.Record == "" {
			continue
		}
		x.mu.Lock()
		e, ok := x.known.Peek(records.Name{Provider: f.Provider, ID: f.Record})
		if !ok || f.CheckedAt.Before(e.begun) {
			x.mu.Unlock()
			continue // nobody here shows it or witnesses it, or it is about an earlier endpoint
		}
		_, was := x.verdict(e, now)
		e.add(witness.Heard{Finding: f, By: st.By, From: from})
		if f.State != records.Answers && f.CheckedAt.After(e.last.CheckedAt) && len(e.witnesses) > 0 && e.confirm.IsZero() && !(e.fails > 0 && now.Sub(e.last.CheckedAt) < endpointEvery) {
			rank := slices.Index(drawn(e, now, st.By), x.sharing.Self)
			e.confirm = now.Add(time.Duration(1+max(rank, 0)) * confirmStep)
		}
		_, is := x.verdict(e, now)
		r := e.record
		x.mu.Unlock()
		if was != is {
			x.changed(r)
		}
	}
}

// add keeps the newest finding of each measurer. A new measurer takes the place of the oldest finding.
func (e *endpoint) add(h witness.Heard) {
	switch {
	case witness.Renew(e.heard, h):
	case len(e.heard) < maxHeard:
		e.heard = append(e.heard, h)
	default:
		e.heard[0] = h
	}
	slices.SortStableFunc(e.heard, func(a, b witness.Heard) int { return a.CheckedAt.Compare(b.CheckedAt) })
}

// others is what other peers found: the newest answer, or, if a quorum got none since, that. agree reports a quorum that nobody contests.
func (x *endpoints) others(e *endpoint, now time.Time) (m records.Measured, dead, agree bool) {
	var answers, failed []witness.Heard // failed ones are those since the newest answer
	contested := false
	for _, h := range e.heard {
		switch age := now.Sub(h.CheckedAt); {
		case age >= endpointStands:
		case h.State == records.Answers:
			answers = append(answers, h)
			failed = nil
		default:
			contested = contested || age < 2*heardLately
			if n := len(answers); n == 0 || h.CheckedAt.After(answers[n-1].CheckedAt) {
				failed = append(failed, h)
			}
		}
	}
	if x.quorum(failed) {
		h := failed[len(failed)-1]
		return records.Measured{State: h.State, CheckedAt: h.CheckedAt, Since: failed[0].CheckedAt, Peers: len(failed)}, true, true
	}
	if len(answers) == 0 {
		return m, false, false
	}
	h := answers[len(answers)-1]
	m = records.Measured{State: h.State, RoundTrip: h.RoundTrip, CheckedAt: h.CheckedAt, Peers: len(answers)}
	return m, false, x.quorum(answers) && !contested
}

// quorum reports whether the measurers of a list decide together.
func (x *endpoints) quorum(list []witness.Heard) bool {
	return witness.Agree(list) || len(list) >= witness.Quorum && x.sharing.OneMachine
}

// suspected reports whether somebody's check failed and nobody got an answer since.
func (e *endpoint) suspected() bool {
	return len(e.heard) > 0 && e.heard[len(e.heard)-1].State != records.Answers
}

// drawn returns the witnesses of an offer in the order of the slot of a time, without one. The order is theirs by a hash with the
// offer's name, and begins with another one in each slot, also among idle slots.
func drawn(e *endpoint, now time.Time, without peer.ID) []peer.ID {
	place := func(id peer.ID) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(e.record.Name().String()))
		_, _ = h.Write([]byte(id))
		return h.Sum64()
	}
	ids := slices.Clone(e.witnesses)
	slices.SortFunc(ids, func(a, b peer.ID) int { return cmp.Compare(place(a), place(b)) })
	slot := int(now.Unix() / int64(dutySlot/time.Second))
	first := (slot + slot/idleSlots) % len(ids)
	return slices.DeleteFunc(append(ids[first:len(ids):len(ids)], ids[:first]...), func(id peer.ID) bool { return id == without })
}

// onDuty reports whether this peer checks an offer now: it is drawn, or confirms another's failed check.
func (x *endpoints) onDuty(e *endpoint, now time.Time) bool {
	if !e.confirm.IsZero() && !now.Before(e.confirm) {
		e.confirm = time.Time{}
		_, dead, _ := x.others(e, now)
		return !dead && e.suspected()
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(e.record.Name().String()))
	late := time.Duration(h.Sum64()%uint64(dutySlot/time.Second-15)) * time.Second // within the slot; clocks differ
	at := now.Add(-late)
	slot := at.Unix() / int64(dutySlot/time.Second)
	if slot == e.slot {
		return false
	}
	e.slot = slot
	if now.Sub(e.interest) >= endpointAsked && now.Sub(e.asked) >= endpointAsked && uint64(slot)%idleSlots != h.Sum64()%idleSlots {
		return false
	}
	return drawn(e, at, "")[0] == x.sharing.Self
}

// assume looks for offers of which this peer is a witness, and ends its duties for all others.
func (x *endpoints) assume(ctx context.Context) {
	now, mine := x.now(), make(map[records.Name]bool)
	if x.roles == nil || now.Sub(x.rolesAt) >= rolesLast {
		x.roles, x.rolesAt = make(map[peer.ID][]peer.ID), now
	}
	for r := range x.sharing.Records() {
		if len(mine) == duties || ctx.Err() != nil {
			break
		}
		if r.Withdrawn() || r.Paused() != nil || r.Needs() != "" {
			continue
		}
		p := r.Name().Provider
		ids, known := x.roles[p]
		if !known {
			ids = x.sharing.OwnWitnesses(p)
			x.roles[p] = ids
		}
		if len(ids) > 0 {
			mine[r.Name()] = true
			x.mu.Lock()
			x.find(r, now).witnesses = ids
			x.mu.Unlock()
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.known.Values() {
		if !mine[e.record.Name()] {
			e.witnesses, e.confirm, e.duty = nil, time.Time{}, false
		}
	}
}

// interestIn notes that another peer shows an offer.
func (x *endpoints) interestIn(n records.Name) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.known.Peek(n); ok {
		e.interest = x.now()
	}
}

// spare reports whether the word of others replaces an own check, and counts it. A witness waits for its draw.
func (x *endpoints) spare(e *endpoint, now time.Time) bool {
	m, dead, agree := x.others(e, now)
	switch {
	case m.State == "" || now.Sub(m.CheckedAt) > heardLately:
		e.spared = 0
		return len(e.witnesses) > 0 && e.last.State != "" && now.Sub(e.last.CheckedAt) < heardLately
	case dead, agree, len(e.witnesses) > 0:
		return true
	case e.spared >= spareAlone:
		e.spared = 0
		return false
	}
	e.spared++
	return true
}

// fetch asks the witnesses of a provider for their findings.
func (x *endpoints) fetch(ctx context.Context, provider peer.ID, ids []string) {
	for _, d := range x.sharing.Witness(ctx, provider, ids, nil) {
		x.hear(d.Statement, d.From)
	}
}

// tell gives an own measurement to the witnesses.
func (x *endpoints) tell(ctx context.Context, r *records.Record, m records.Measured) {
	n := r.Name()
	own, err := witness.Sign(x.sharing.Network, x.sharing.Key, []witness.Finding{{Provider: n.Provider, Record: n.ID, State: m.State, RoundTrip: m.RoundTrip, CheckedAt: m.CheckedAt}})
	if err == nil {
		x.sharing.Witness(ctx, n.Provider, nil, own)
	}
}
