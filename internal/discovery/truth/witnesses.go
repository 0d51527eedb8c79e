package truth

import (
	"cmp"
	"context"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// Who checks an endpoint, and how much the word of others counts. The witnesses of a provider are the peers nearest to its cell. Time has
// slots of a minute. Their turn goes around, and the witness of a slot checks the offer: in every slot while somebody asks for the offer,
// else in every fourth. It tells the others. Those of whom nobody tells within a moment are replaced by the next in turn, so a silent
// endpoint, too, soon has a second and a third check. A failed check is repeated at once by the next two, and then by the others, until
// the witnesses agree. They tell those who asked them lately; an asker then checks once itself, for nothing is dead by the word of others
// alone: see verdict. Others whose failed checks an own one contradicts three times in a row are not heard for an hour.
//
// An endpoint that answers its witnesses alone is found out by those who show it. Each checks what it begins to show once itself. Every
// second slot has a guest in front of its witnesses: one of those who asked, drawn by a hash, whom the first witness asks for a check.
//
// A network counts by a connection of this peer with the measurer itself.
const (
	dutySlot    = time.Minute
	idleSlots   = 4                // of these slots, one has a check while nobody asks
	duties      = 2048             // offers that one peer checks as a witness
	dutyRenewal = 30 * time.Second // between two looks for offers to witness
	rolesLast   = 2 * time.Minute  // of the knowledge of which providers this peer is a witness
	standIn     = time.Second      // and two round trips, from the turn of a witness to the check of the next one in its place
	standInStep = 500 * time.Millisecond
	confirmNow  = 2                // witnesses that repeat a failed check at once
	confirmStep = 3 * time.Second  // between the checks of further ones
	fetchEvery  = 45 * time.Second // between two questions to the witnesses of a provider
	heardLately = 150 * time.Second
	maxHeard    = 8

	maxAskers   = 8192           // offers that some peer asked this one for
	askersLast  = 2 * fetchEvery // of an asker that does not ask again
	guestEvery  = 2              // slots, while somebody asks
	maxDoubts   = 1024           // measurers that were contradicted
	doubtBeyond = 3              // contradictions in a row, after which a measurer is not heard
	doubtLasts  = time.Hour
	maxVain     = 5 // doublings of the time between checks of an endpoint that answers others and not this peer
)

// Sharing is the exchange of findings with the witnesses of providers.
type Sharing struct {
	Network      network.Name   // of the findings
	Key          crypto.PrivKey // signs the own findings
	Self         peer.ID
	Closed       bool                       // the network lets nobody in whom its owner does not know, so peers count, and prefixes say nothing
	Knowers      func(provider peer.ID) int // peers that can know a provider, this one included; nil: many
	Records      func() iter.Seq[*records.Record]
	Witness      func(ctx context.Context, provider peer.ID, ids []string, own []byte) []ask.Delivered
	Tell         func(ctx context.Context, ids []peer.ID, own []byte)  // to some peers
	Hand         func(ctx context.Context, to peer.ID, n records.Name) // the check of an offer that a peer shows
	OwnWitnesses func(provider peer.ID) []peer.ID
}

// shares is the part of an endpoint's state that other peers cause.
type shares struct {
	heard     []heard   // the newest of each measurer, oldest first
	interest  time.Time // another peer asked for it
	fetched   time.Time
	witnesses []peer.ID     // of the provider. The list is empty while this peer is no witness
	slot      int64         // last one that this peer decided
	guest     guest         // of the newest slot that this peer looked at
	next      guest         // of the next slot with one
	vain      int           // failed checks that others' answers caused, since the last own answer
	confirm   time.Time     // of a check after another's that contradicts; zero: none
	hasty     bool          // the next check is of that kind
	after     time.Duration // the next check stands in for one that began so long before; 0: it does not
	spread    bool          // this peer told its askers of the death
}

// asker is another peer that asked this witness for an offer.
type asker struct {
	offer records.Name
	by    peer.ID
}

// guest is the asker that checks in a slot; by is empty if witnesses alone do.
type guest struct {
	slot  int64
	by    peer.ID
	place uint64 // of by in the draw: it has the lowest
	drawn bool   // nobody looked at it yet
	due   bool   // this peer has to ask it
}

// doubt counts failed checks of a measurer that own ones contradicted since they agreed last.
type doubt struct {
	times int
	last  time.Time
}

// Hear notes the findings of a statement. from is the network of the measurer, zero if unknown.
func (x *Checks) Hear(st protocol.Statement, from netip.Prefix) {
	now := x.Now()
	for _, f := range st.Findings {
		f.CheckedAt = now.Add(-now.Sub(f.CheckedAt)) // has the monotonic clock: no step of the wall clock makes it old
		x.mu.Lock()
		e, ok := x.known.Peek(records.Name{Provider: f.Provider, ID: f.Record})
		d, _ := x.doubts.Peek(st.By)
		unheard := !f.State.Alive() && d.times >= doubtBeyond && now.Sub(d.last) < doubtLasts
		if !ok || f.CheckedAt.Before(e.begun) || unheard || e.domain && f.State == records.Closed {
			x.mu.Unlock()
			continue // nobody shows it here, or it is about an earlier endpoint; a domain proves a claim or does not
		}
		e.add(heard{Finding: f, By: st.By, From: from}, now)
		_, dead := x.verdict(e, now)
		changed := x.note(e, dead)
		if e.confirm.IsZero() && e.contradicts(f) {
			e.confirm = now
			if len(e.witnesses) > 0 {
				rank := slices.Index(drawn(e, now, st.By), x.Sharing.Self)
				e.confirm = now.Add(time.Duration(max(rank+1-confirmNow, 0)) * confirmStep)
			}
			e.confirm = later(e.confirm, e.last.CheckedAt.Add(endpointAgain<<min(e.vain, maxVain)))
		}
		x.mu.Unlock()
		if changed {
			x.alert(e)
		}
		x.awake()
	}
}

// awake has run look for work now.
func (x *Checks) awake() {
	pause.Wake(x.wake)
}

// contradicts reports whether a finding of another peer is newer than the own last check, and differs from it.
func (e *endpoint) contradicts(f protocol.Finding) bool {
	return f.CheckedAt.After(e.last.CheckedAt) && f.State.Alive() == (e.fails > 0)
}

// weigh counts how often others' failed checks since the own last one were wrong. The caller holds x.mu.
func (x *Checks) weigh(e *endpoint, answers bool, now time.Time) {
	for _, h := range e.heard {
		switch {
		case h.State.Alive() || now.Sub(h.CheckedAt) >= endpointEvery || h.CheckedAt.Before(e.last.CheckedAt):
		case answers:
			d, _ := x.doubts.Get(h.By)
			x.doubts.Add(h.By, doubt{d.times + 1, now})
		default:
			x.doubts.Remove(h.By)
		}
	}
}

// add keeps the newest finding of each measurer. A new measurer takes the place of the oldest finding without a network: guests, of whom
// there may be many, do not displace the witnesses, whose networks spare an own check. Old findings give way first.
func (e *endpoint) add(h heard, now time.Time) {
	switch {
	case renew(e.heard, h):
	case len(e.heard) < maxHeard:
		e.heard = append(e.heard, h)
	default:
		least := 0
		if now.Sub(e.heard[0].CheckedAt) < endpointStands {
			least = max(0, slices.IndexFunc(e.heard, func(h heard) bool { return !h.From.IsValid() }))
		}
		e.heard[least] = h
	}
	slices.SortStableFunc(e.heard, func(a, b heard) int { return a.CheckedAt.Compare(b.CheckedAt) })
}

// others is what other peers found: the newest answer, or else the newest failure; how many there are whose newest
// check failed, if this peer got no answer since; and how many that got an answer since the first of these. An
// endpoint that lives is closed if most of them say so. It is called for many endpoints each second, so it allocates
// nothing.
func (e *endpoint) others(now time.Time) (m records.Measured, failed, answered int) {
	var answer, gate, failure *heard
	answers, gates := 0, 0
	for i := range e.heard {
		switch h := &e.heard[i]; {
		case now.Sub(h.CheckedAt) >= endpointStands:
		case h.State.Alive():
			if h.State == records.Closed {
				gates++
				gate = h
			} else {
				answers++
				answer = h
			}
			if failed > 0 {
				answered++
			}
		case h.CheckedAt.After(e.answered):
			failed++
			failure = h
		}
	}
	switch {
	case gates > answers:
		m = records.Measured{State: gate.State, CheckedAt: gate.CheckedAt, Peers: gates}
	case answer != nil:
		m = records.Measured{State: answer.State, RoundTrip: answer.RoundTrip, CheckedAt: answer.CheckedAt, Peers: answers}
	case failure != nil:
		m = records.Measured{State: failure.State, CheckedAt: failure.CheckedAt, Peers: failed}
	}
	return m, failed, answered
}

// agree reports whether those of others who count, with an answer or without, are in at least n networks.
func (x *Checks) agree(e *endpoint, answers bool, n int, now time.Time) bool {
	var room [maxHeard]heard
	list := room[:0]
	for i := range e.heard {
		h := &e.heard[i]
		if h.State.Alive() == answers && now.Sub(h.CheckedAt) < endpointStands && (answers || h.CheckedAt.After(e.answered)) {
			list = append(list, *h)
		}
	}
	return x.enough(list, n)
}

// enough reports whether the measurers of a list are in at least n networks; in a closed network, whether they are n.
func (x *Checks) enough(list []heard, n int) bool {
	return networks(list) >= n || len(list) >= n && x.Sharing.Closed
}

// confirming is the number of others whose failures decide together with an own one: those of a quorum, or of all who can know the
// provider, if they are fewer.
func (x *Checks) confirming(provider peer.ID) int {
	n := quorum
	if x.Sharing.Knowers != nil {
		n = min(n, x.Sharing.Knowers(provider))
	}
	return max(n-1, 1)
}

// unsettled reports whether this peer got no answer, and others do not agree yet: it asks them soon, and then every
// ten seconds.
func (x *Checks) unsettled(e *endpoint, now time.Time) bool {
	wait := min(max(now.Sub(e.since), endpointTick), endpointAgain)
	return x.Sharing != nil && e.fails > 0 && !e.dead && !e.private() && now.Sub(e.fetched) >= wait &&
		(len(e.witnesses) > 0 || now.Sub(e.asked) < endpointAsked)
}

// suspected reports whether somebody's check failed and nobody got an answer since.
func (e *endpoint) suspected() bool {
	return len(e.heard) > 0 && !e.heard[len(e.heard)-1].State.Alive()
}

// wanted reports whether somebody asked for an offer lately.
func (x *Checks) wanted(e *endpoint, now time.Time) bool {
	return now.Sub(e.interest) < endpointAsked || now.Sub(e.asked) < endpointAsked
}

// drawn returns the witnesses of an offer in the order of the slot of a time, without one. The order is theirs by a hash with the
// offer's name, and begins with another one in each slot, also among idle slots.
func drawn(e *endpoint, now time.Time, without peer.ID) []peer.ID {
	ids := slices.Clone(e.witnesses)
	slices.SortFunc(ids, func(a, b peer.ID) int { return cmp.Compare(drawnAt(e.hash, a), drawnAt(e.hash, b)) })
	slot := int(now.Unix() / int64(dutySlot/time.Second))
	first := (slot + slot/(5*idleSlots)) % len(ids)
	return slices.DeleteFunc(append(ids[first:len(ids):len(ids)], ids[:first]...), func(id peer.ID) bool { return id == without })
}

// drawnAt is the place of a peer by a hash: FNV-1a, continued with its id.
func drawnAt(h uint64, id peer.ID) uint64 {
	const prime = 1099511628211
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	return h
}

// slotOf returns the number and the beginning of the slot of an offer: those of different offers begin at different times.
func slotOf(e *endpoint, now time.Time) (slot int64, begin time.Time) {
	late := time.Duration(e.hash % uint64(dutySlot))
	slot = now.Add(-late).Unix() / int64(dutySlot/time.Second)
	return slot, time.Unix(slot*int64(dutySlot/time.Second), 0).Add(late)
}

// invite has an asker take part in the draw of the next guest.
func (e *endpoint) invite(by peer.ID, now time.Time) {
	slot, _ := slotOf(e, now)
	slot += guestEvery - slot%guestEvery
	if e.next.slot != slot {
		if e.next.slot > e.guest.slot {
			e.guest = e.next // called comes later
		}
		e.next = guest{slot: slot, drawn: true}
	}
	if slices.Contains(e.witnesses, by) || by == e.name.Provider {
		return
	}
	if place := drawnAt(e.hash^uint64(slot), by); e.next.by == "" || place < e.next.place {
		e.next.by, e.next.place = by, place
	}
}

// called reports whether this peer checks an offer now, whoever asks: others contradict it, it is drawn, or those drawn before it are mute.
// The caller holds x.mu.
func (x *Checks) called(e *endpoint, now time.Time) bool {
	if !e.confirm.IsZero() && !now.Before(e.confirm) {
		e.confirm = time.Time{}
		_, failed, answered := e.others(now)
		e.hasty = (len(e.witnesses) > 0 || now.Sub(e.asked) < endpointAsked) && (e.fails > 0 || failed >= answered) &&
			slices.ContainsFunc(e.heard, func(h heard) bool { return e.contradicts(h.Finding) })
		return e.hasty
	}
	if len(e.witnesses) == 0 {
		return false
	}
	if e.fails == 1 && !now.Before(e.due) {
		if _, dead := x.verdict(e, now); !dead {
			return true // the second check, without which nobody may learn of a death that others deny
		}
	}
	slot, begin := slotOf(e, now)
	if slot == e.slot || !x.wanted(e, now) && uint64(slot)%idleSlots != e.hash%idleSlots {
		return false
	}
	turn := drawn(e, time.Unix(slot*int64(dutySlot/time.Second), 0), "")
	rank := slices.Index(turn, x.Sharing.Self)
	if e.guest.slot != slot {
		if e.guest = e.next; e.next.slot != slot {
			e.guest = guest{slot: slot}
		}
	}
	if e.guest.drawn {
		e.guest.drawn, e.guest.due = false, rank == 0 && e.guest.by != ""
	}
	if e.guest.by != "" {
		turn, rank = slices.Insert(turn, 0, e.guest.by), rank+1
	}
	if rank > 0 && now.Before(begin.Add(standIn+2*e.last.RoundTrip+time.Duration(rank-1)*standInStep)) {
		return false
	}
	e.slot = slot
	told := slices.ContainsFunc(e.heard, func(h heard) bool {
		return !h.CheckedAt.Before(begin.Add(-endpointTick)) && slices.Contains(turn[:rank], h.By)
	})
	if rank > 0 {
		e.after = now.Sub(begin)
	}
	return rank == 0 || x.wanted(e, now) && !told
}

// assume looks for offers of which this peer is a witness, and ends its duties for all others.
func (x *Checks) assume(ctx context.Context) {
	now, mine := x.Now(), make(map[records.Name]bool)
	if x.roles == nil || now.Sub(x.rolesAt) >= rolesLast {
		x.roles, x.rolesAt = make(map[peer.ID][]peer.ID), now
	}
	for r := range x.Sharing.Records() {
		if len(mine) >= duties || ctx.Err() != nil {
			break
		}
		if r.Withdrawn() || r.Paused() != nil || r.Needs() != "" {
			continue
		}
		p := r.Name().Provider
		ids, known := x.roles[p]
		if !known {
			ids = x.Sharing.OwnWitnesses(p)
			x.roles[p] = ids
		}
		if len(ids) > 0 {
			x.mu.Lock()
			all, n := x.find(r, now)
			for _, e := range all[:n] {
				e.witnesses, mine[e.name] = ids, true
			}
			x.mu.Unlock()
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.known.Values() {
		if !mine[e.name] {
			e.witnesses = nil
		}
	}
}

// Interest notes that another peer shows an offer, or that a witness invites this peer to check what it shows.
func (x *Checks) Interest(n records.Name, by peer.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.Now()
	switch e, ok := x.known.Peek(n); {
	case !ok:
	case len(e.witnesses) > 0:
		e.interest = now
		x.askers.Add(asker{n, by}, e.interest)
		e.invite(by, now)
	case now.Sub(e.asked) < endpointAsked && e.state == canMeasure && !e.due.IsZero() && now.Sub(e.last.CheckedAt) >= endpointEvery/2 &&
		slices.ContainsFunc(e.heard, func(h heard) bool { return h.By == by }):
		e.duty = true
		x.awake()
	}
}

// hand has the guest of a slot check an offer. The caller holds x.mu.
func (x *Checks) hand(e *endpoint) func(context.Context) {
	e.guest.due = false
	to, n := e.guest.by, e.name
	return func(ctx context.Context) { x.Sharing.Hand(ctx, to, n) }
}

// news reports whether those who asked for an offer do not know what this witness found. The caller holds x.mu.
func (x *Checks) news(e *endpoint, now time.Time) bool {
	if len(e.witnesses) == 0 || e.fails == 0 && !e.spread {
		return false
	}
	_, dead := x.verdict(e, now)
	changed := dead != e.spread && dead == (e.fails > 0)
	e.spread = e.spread != changed
	return changed
}

// spread tells the own finding to those who asked. The caller holds x.mu.
func (x *Checks) spread(e *endpoint) func(context.Context) {
	about, m, now := e.name, e.last, x.Now()
	ids := x.recent(func(n records.Name) bool { return n == about }, now)
	return func(ctx context.Context) {
		if own := x.sign(about, m); len(own) > 0 {
			x.Sharing.Tell(ctx, ids, own)
		}
	}
}

// recent returns who asked lately for some offers, each once. The caller holds x.mu.
func (x *Checks) recent(some func(records.Name) bool, now time.Time) (ids []peer.ID) {
	for _, k := range x.askers.Keys() {
		if at, _ := x.askers.Peek(k); some(k.offer) && now.Sub(at) < askersLast {
			ids = append(ids, k.by)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// spare reports whether the word of others replaces an own check. It does not replace the first one since somebody asks here: everybody
// can compute who the witnesses are, and an endpoint may answer them alone. Nor does it while somebody's check failed. The word of less
// than a quorum replaces two checks. A witness waits for its draw.
func (x *Checks) spare(e *endpoint, now time.Time) bool {
	m, failed, _ := e.others(now)
	_, dead := x.verdict(e, now)
	told := m.State != "" && now.Sub(m.CheckedAt) <= heardLately
	own := e.last.State != "" && now.Sub(e.last.CheckedAt) < heardLately
	switch {
	case e.domain && now.Sub(e.sought) < endpointAsked:
		return e.last.State != "" && now.Sub(e.last.CheckedAt) < proofAgain
	case e.domain:
		return !dead || e.stands(now) || e.last.State != "" && failed > 0 && m.State != records.Answers
	case dead && m.Peers > 0:
		return e.peer || e.fails >= soonAgain
	case e.fails > 0:
		return false
	case len(e.witnesses) > 0:
		return told || own
	case failed > 0 || e.last.CheckedAt.Before(e.shown.Add(-endpointStands)):
		return false
	}
	return told && (own || x.enough(e.heard, quorum))
}

// fetch gives an own finding to the witnesses of a provider, if there is one, and asks them for theirs.
func (x *Checks) fetch(ctx context.Context, provider peer.ID, ids []string, own []byte) {
	for _, d := range x.Sharing.Witness(ctx, provider, ids, own) {
		x.Hear(d.Statement, d.From)
	}
}

// tell gives an own measurement to the witnesses, or only holds it for those who ask. After a failed check it asks the
// witnesses too.
func (x *Checks) tell(ctx context.Context, n records.Name, m records.Measured, quiet bool) {
	var ids []string
	if !m.State.Alive() {
		ids = []string{n.ID}
	}
	switch own := x.sign(n, m); {
	case len(own) == 0:
	case quiet:
		x.Sharing.Tell(ctx, []peer.ID{x.Sharing.Self}, own)
	default:
		x.fetch(ctx, n.Provider, ids, own)
	}
}

// sign returns an own measurement as a statement.
func (x *Checks) sign(n records.Name, m records.Measured) []byte {
	f := protocol.Finding{Provider: n.Provider, Record: n.ID, State: m.State, RoundTrip: m.RoundTrip, CheckedAt: m.CheckedAt}
	own, err := protocol.SignFindings(x.Sharing.Network, x.Sharing.Key, []protocol.Finding{f})
	if err != nil { // impossible with a sound key
		return nil
	}
	return own
}
