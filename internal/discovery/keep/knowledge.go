package keep

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	meetNearest = 64                     // only newcomers among so many nearest peers can share cells
	meetFirst   = 200 * time.Millisecond // before the second comparison with a newcomer; then it doubles
	meetLast    = 5 * time.Second        // at most between two attempts
	meetFor     = time.Minute            // a peer that compares with nobody for so long delays no answer, whatever it asks
	meetMisses  = 2                      // failed contacts that make a member silent
	slowFor     = 5 * time.Second        // a member that compared, gives no answer, and sent a request so recently is slow, not behind a cut

	arrival     = 8 * time.Second // of a change at all its keepers: the publisher waits for a silent one, and then has others forward
	mostAwaited = 256             // changes

	lostFor      = 10 * time.Minute // the return of a peer lost within that time is a healed partition
	lostMost     = 1024             // lost peers remembered
	isolatedIn   = time.Minute      // the loss of most peers within that time isolates this peer
	regainDoubt  = 5 * time.Second  // after a healed partition keepers need that long to compare
	freshAge     = 10 * time.Second // of a routing table with which the peers of a new network compare
	JoiningGrace = 3 * time.Second  // a slower join is a condition
)

// knowledge is what this peer may lack. A peer that joined, was cut off, or sees a keeper for the first
// time or again may lack any record, until a comparison. It is safe for concurrent use. Times are
// those of the runtime's clock.
type knowledge struct {
	conditions *condition.Set
	refuses    func(peer.ID) bool // a check found the machine of a peer, and nothing that listens
	News       chan struct{}      // capacity 1: a comparison with a member is due
	Behind     chan struct{}      // capacity 1: a round is due soon, as this peer lacks changes
	pulse      pulse

	epoch atomic.Uint64          // grows when a new doubt arises: earlier answers are not up to date
	steps atomic.Uint64          // grows with each change of the answer to "may this peer answer?"
	unmet atomic.Pointer[[]Peer] // members to compare with before this peer answers; never nil
	Knows atomic.Bool            // copy of informed
	cut   atomic.Bool            // isolated is set
	Late  atomic.Bool            // lacking is set

	mu       sync.Mutex // guards the fields below
	started  time.Time
	informed bool // compared with an informed keeper, or the network was new, or this peer was alone
	whole    bool // small network
	members  map[peer.ID]*member
	lost     map[peer.ID]time.Time // former members
	behind   int                   // lost members that a cut may hide
	checked  time.Time             // when they were last checked for an end; zero before
	isolated time.Time             // start of the isolation; zero without one
	regained time.Time             // last return of contact
	lacking  time.Time             // this peer lacks changes; zero after the next comparisons
	awaited  map[records.Name]change
}

// change is a version of a record at another keeper. It should soon reach this peer.
type change struct {
	sequence uint64
	due      time.Time // later this peer has missed it
}

// member is a peer of the routing table.
type member struct {
	Peer
	since  time.Time     // it entered the table, or contact returned
	heard  time.Time     // its last request
	spent  time.Duration // time with contact that it let pass since its last comparison, before since
	met    bool          // compared since, or nobody waits for it
	none   bool          // it does not speak the protocol
	silent bool          // not connected: ignored for completeness until it reconnects
	tries  int           // failed attempts
	due    time.Time     // of the next attempt
}

func newKnowledge(conditions *condition.Set, now time.Time) *knowledge {
	w := &knowledge{
		conditions: conditions, refuses: func(peer.ID) bool { return false }, started: now,
		News: make(chan struct{}, 1), Behind: make(chan struct{}, 1),
		members: make(map[peer.ID]*member), lost: make(map[peer.ID]time.Time), awaited: make(map[records.Name]change),
	}
	w.unmet.Store(new([]Peer))
	return w
}

// observe takes over the peers of the routing table.
func (w *knowledge) observe(t *Table, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = t.Whole
	present := make(map[peer.ID]bool, len(t.Peers))
	for i, p := range t.Peers {
		present[p.Id] = true
		if _, known := w.members[p.Id]; !known {
			w.enter(p, now, t.Whole || i < meetNearest)
		}
	}
	for id := range w.members {
		if !present[id] {
			delete(w.members, id)
			w.lose(id, now)
		}
	}
	w.judgeIsolation(now)
	w.changed()
	w.wake() // also if it serves again, and did not compare until now
}

// enter adds a member. Near: it can share cells with this peer.
func (w *knowledge) enter(p Peer, now time.Time, near bool) {
	_, returned := w.lost[p.Id]
	delete(w.lost, p.Id)
	w.members[p.Id] = &member{Peer: p, since: now, met: !near, due: now}
	if returned || w.informed && w.whole {
		w.regained = now
		w.epoch.Add(1)
	}
}

// lose remembers a former member, and forgets old ones.
func (w *knowledge) lose(id peer.ID, now time.Time) {
	if len(w.lost) >= lostMost {
		for other, at := range w.lost {
			if now.Sub(at) > lostFor || len(w.lost) >= lostMost {
				delete(w.lost, other)
			}
		}
	}
	w.lost[id] = now
}

// judgeIsolation begins an isolation after the loss of most members, and ends it after their return, or when the smaller network has
// lasted. It returns those of that loss that may be behind a cut: one that refuses connections has ended.
func (w *knowledge) judgeIsolation(now time.Time) (cut []peer.ID) {
	left, end := len(w.members), now
	if !w.isolated.IsZero() {
		end = w.isolated
	}
	for id, at := range w.lost {
		switch age := end.Sub(at); {
		case now.Sub(at) > lostFor:
			delete(w.lost, id)
		case age >= 0 && age <= isolatedIn && (left == 0 || !w.refuses(id)): // whoever lost all others is isolated all the same
			cut = append(cut, id)
		}
	}
	w.behind = len(cut)
	switch {
	case w.isolated.IsZero() && len(cut) > left:
		w.isolated, w.checked = now, time.Time{}
		w.epoch.Add(1)
		w.conditions.Raise(condition.Isolated, fault.Problem{
			What:   fmt.Sprintf("this peer lost contact with %d of %d peers of its network", w.behind, w.behind+left),
			Effect: "it may lack changes", Remedy: "Check the network of this host",
		})
	case !w.isolated.IsZero() && left > 0 && len(cut) <= left:
		w.isolated = time.Time{}
		w.conditions.Clear(condition.Isolated)
	}
	return cut
}

// review judges an isolation again, and returns the peers to check now: whether they have ended.
func (w *knowledge) review(now time.Time) []peer.ID {
	if !w.cut.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	cut := w.judgeIsolation(now)
	w.changed()
	if now.Sub(w.checked) < protocol.SyncEvery {
		return nil
	}
	w.checked = now
	return cut
}

// changed publishes the atomic fields. w.mu is held.
func (w *knowledge) changed() {
	unmet := []Peer{}
	for _, m := range w.members {
		if !m.met && !m.silent {
			unmet = append(unmet, m.Peer)
		}
	}
	w.unmet.Store(&unmet)
	w.Knows.Store(w.informed)
	w.cut.Store(!w.isolated.IsZero())
	w.Late.Store(!w.lacking.IsZero())
	w.steps.Add(1)
}

func (w *knowledge) wake() {
	pause.Wake(w.News)
}

// Due takes up to most members to compare with now, silent ones last, and returns the time of the next attempt with another one; zero
// without one.
func (w *knowledge) Due(most int, now time.Time) (ids []peer.ID, next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	given, silent := false, []peer.ID{}
	for id, m := range w.members {
		if !m.met && !m.silent && m.spent+now.Sub(m.since) >= meetFor {
			m.met, m.spent, given = true, meetFor, true
		}
		switch {
		case m.met:
		case !now.Before(m.due) && m.silent:
			silent = append(silent, id)
		case !now.Before(m.due):
			ids = append(ids, id)
		case next.IsZero() || m.due.Before(next):
			next = m.due
		}
	}
	if given {
		w.changed()
	}
	slices.Sort(ids)
	ids = slices.Concat(ids, silent)
	ids = ids[:min(most, len(ids))]
	for _, id := range ids {
		w.members[id].due = now.Add(syncPeer) // Met and Missed come sooner
	}
	return ids, next
}

// Silent reports whether a member gives no answer. Meet tries it again and again, so a round need not wait for it.
func (w *knowledge) Silent(id peer.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.members[id]
	return ok && m.silent
}

// Waited reports whether this peer has waited long enough for members that compare with nobody: a few of them, with a new identity from
// time to time, would else keep a new network from its first complete answer.
func (w *knowledge) Waited(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return now.Sub(w.started) >= meetFor
}

// KeepsNothing reports whether a member does not speak the protocol of keepers.
func (w *knowledge) KeepsNothing(id peer.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.members[id]
	return ok && m.none
}

// Met ends a comparison with a member: Informed is what the partner says of itself.
func (w *knowledge) Met(id peer.ID, informed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, ok := w.members[id]; ok {
		m.met, m.spent, m.silent, m.none, m.tries = true, 0, false, false, 0
	}
	if informed {
		w.inform()
	}
	w.changed()
}

// Missed ends an attempt to compare with a member. Reached: the peer refused, so there is contact. A slow one
// was behind no cut, so no answer waits for it again.
func (w *knowledge) Missed(id peer.ID, reached bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.members[id]
	if !ok {
		return
	}
	m.due = now.Add(min(meetFirst<<min(m.tries, 8), meetLast))
	m.tries++
	if slow := m.met && now.Sub(m.heard) < slowFor; !reached && !slow && (m.met || m.tries >= meetMisses) {
		if !m.met && !m.silent {
			m.spent += now.Sub(m.since)
		}
		m.met, m.silent = false, true
	}
	w.changed()
	w.wake()
}

// Strange ends an attempt to compare with a member that does not speak the protocol: it keeps nothing,
// until it sends a request.
func (w *knowledge) Strange(id peer.ID, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, ok := w.members[id]; ok {
		if !m.met && !m.silent {
			m.spent += max(now.Sub(m.since), regainDoubt) // so that it cannot begin again for ever
		}
		m.met, m.none, m.silent = true, true, false
	}
	w.changed()
}

// Heard records a request of a peer. Contact with a silent member has returned: it may have records
// from behind a partition. A member that did not speak the protocol while it started may have some too.
// One that asks, and let its time to compare pass, changes nothing until it compares.
func (w *knowledge) Heard(id peer.ID, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.members[id]
	if !ok {
		return
	}
	if m.heard = now; !m.silent && !m.none || m.spent >= meetFor {
		return
	}
	m.met, m.none, m.silent, m.since, m.due, m.tries = false, false, false, now, now, 0
	w.regained = now
	w.epoch.Add(1)
	w.changed()
	w.wake()
}

// inform records that this peer has the records of its network. w.mu is held.
func (w *knowledge) inform() {
	if !w.informed {
		w.informed = true
		w.conditions.Clear(condition.Joining)
	}
}

// SetInformed records that this peer has the records of its network, or that it begins again.
func (w *knowledge) SetInformed(informed bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if informed {
		w.inform()
	} else if w.informed {
		w.informed, w.started = false, now
		w.epoch.Add(1)
	}
	w.changed()
}

// Await records a new change that another keeper has and this one has not: if nobody brings it in time, this peer lacks changes.
func (w *knowledge) Await(n records.Name, sequence uint64, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, known := w.awaited[n]
	switch {
	case !known && len(w.awaited) >= mostAwaited:
		w.lack(now)
		return
	case !known:
		c.due = now.Add(arrival)
	}
	c.sequence = max(c.sequence, sequence)
	w.awaited[n] = c
}

// Came records that somebody stored a version of a record here.
func (w *knowledge) Came(n records.Name, sequence uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.awaited[n]; ok && sequence >= c.sequence {
		delete(w.awaited, n)
	}
}

// overdue looks for changes that did not come.
func (w *knowledge) overdue(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, c := range w.awaited {
		if now.After(c.due) {
			delete(w.awaited, n)
			w.lack(now)
		}
	}
}

// lacks records that this peer lacks changes that other keepers have.
func (w *knowledge) lacks(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lack(now)
}

// lack is lacks. w.mu is held.
func (w *knowledge) lack(now time.Time) {
	if w.lacking.IsZero() {
		w.epoch.Add(1)
		pause.Wake(w.Behind)
	}
	w.lacking = now
	w.changed()
}

// CaughtUp ends the lack of changes by comparisons that began later.
func (w *knowledge) CaughtUp(began time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.lacking.IsZero() && w.lacking.Before(began) {
		w.lacking = time.Time{}
		w.changed()
	}
}

// neverMet reports whether the routing table has been empty since the start.
func (w *knowledge) neverMet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.members)+len(w.lost) == 0
}

// TellJoining raises the condition of a slow join. compares: without a comparison this peer lacks records. One that is no keeper asks keepers.
func (w *knowledge) TellJoining(compares bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch age := now.Sub(w.started); {
	case !compares:
		w.conditions.Clear(condition.Joining)
	case !w.informed && age >= JoiningGrace:
		w.conditions.Raise(condition.Joining, fault.Problem{
			What:   "this peer has not compared its records with another keeper since its start at " + w.started.Format(time.RFC3339),
			Effect: "until then its own records answer no query",
		})
	}
}

// doubt returns why this peer's records of a cell may lack some; "" without a reason.
func (w *knowledge) doubt(c func() (Radius, bool), now time.Time) string {
	if !w.Knows.Load() {
		return "it has not compared its records with another keeper since it joined"
	}
	if why := w.Isolation(now); why != "" {
		return "it " + why
	}
	if w.Late.Load() {
		return "it lacks changes that other keepers have"
	}
	unmet := *w.unmet.Load()
	if len(unmet) == 0 {
		return ""
	}
	w.mu.Lock()
	whole := w.whole
	w.mu.Unlock()
	if whole || sharesRadius(c, unmet) {
		return fmt.Sprintf("it has not compared its records with %d keepers that joined or returned", len(unmet))
	}
	return ""
}

// Isolation returns the verb phrase of an isolation; "" without one.
func (w *knowledge) Isolation(now time.Time) string {
	if !w.cut.Load() {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("lost contact with %d of %d peers of its network %s ago",
		w.behind, w.behind+len(w.members), now.Sub(w.isolated).Round(time.Second))
}

func sharesRadius(c func() (Radius, bool), unmet []Peer) bool {
	r, kept := c()
	return kept && slices.ContainsFunc(unmet, func(p Peer) bool { return r.Covers(p.Hash) })
}

// Returned reports how long ago contact with peers returned, if the other keepers may not have
// compared since.
func (w *knowledge) Returned(now time.Time) (ago time.Duration, recent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ago = now.Sub(w.regained)
	return ago, !w.regained.IsZero() && ago < regainDoubt
}
