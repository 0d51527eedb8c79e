package recent

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Kinds of notes.
const (
	kindPeer      = "peer"      // this peer started, or lost others
	kindLeader    = "leader"    // of the coordination group
	kindVoters    = "voters"    // of the coordination group
	kindQuorum    = "quorum"    // lost or regained
	kindCondition = "condition" // began or ended
	kindInstance  = "instance"  // ended
	kindLock      = "lock"      // lost by its holder
	kindOffer     = "offer"     // of this peer
	kindGrant     = "grant"     // given or held by this peer
)

const (
	// every is the time between two looks. What changes back within it leaves no note.
	every      = time.Second
	everyPeers = time.Minute // between notes of lost peers: in a large network connections come and go
	mostAtOnce = 20          // notes of one kind at one look; one more counts the rest
	mostNames  = 5           // in one note
	asleep     = 10 * every  // between two looks: this process did not run
)

// Subjects of notes about this peer itself that doctor shows.
const (
	Suspended = "suspended" // this process did not run for a while
	Refused   = "refused"   // a caller has used its whole share of a pool
)

// ShareUsed notes that a caller has its share of a pool. It does not name the caller: everybody may read notes.
func (m *Memory) ShareUsed(pool, why string) {
	m.Note(kindPeer, Refused, "a caller has its share of the pool %s, and is refused more: %s", pool, why)
}

// Sources are the states that a Watch compares. Each returns the present state, without a question to another peer.
type Sources struct {
	Group      func() coord.GroupState // nil without a coordination plane
	Conditions func() []condition.Condition
	Peers      func() []string            // ids of the connected peers
	Offers     func() []*records.Record   // own ones
	Removed    func() []instances.Removal // of all namespaces; nil without an agent plane
	Self       string                     // id of this peer
}

// Watch notes the differences between two looks at this peer.
type Watch struct {
	see    Sources
	memory *Memory
	now    func() time.Time

	group      coord.GroupState // at the last look
	leader     string           // the last known one
	term       uint64           // of leader
	conditions map[condition.Name]condition.Condition
	ended      time.Time                  // the last end of an instance
	offers     map[string]*records.Record // by id; nil before the first look
	peers      map[string]bool            // at the last note about peers
	lost       time.Time                  // time of that note
}

// NewWatch returns a watch that has seen nothing.
func NewWatch(m *Memory, see Sources, now func() time.Time) *Watch {
	return &Watch{see: see, memory: m, now: now, peers: make(map[string]bool)}
}

// Run notes changes until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	w.memory.Note(kindPeer, w.see.Self, "this peer started: it remembers nothing before")
	w.look()
	for last := w.now(); pause.For(ctx, every); last = w.now() {
		if gap := w.now().Sub(last); gap > asleep {
			w.memory.Note(kindPeer, Suspended, "this process did not run for %v: answers waited, and its leases and locks may have expired", gap.Round(time.Second))
		}
		w.look()
	}
}

// follow says that this peer follows a leader.
func (m *Memory) follow() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.led = true
}

// LocksLost notes locks whose holder's lease expired. Before a leader was seen it notes nothing: a member repeats the commands
// of its log when it starts. It does not block.
func (m *Memory) LocksLost(names []string) {
	m.mu.Lock()
	led := m.led
	m.mu.Unlock()
	switch {
	case !led || len(names) == 0:
	case len(names) == 1:
		m.Note(kindLock, names[0], "lock %s is lost: the lease of its holder expired", names[0])
	default:
		m.Note(kindLock, "", "%d locks are lost: the lease of their holder expired: %s", len(names), few(names))
	}
}

// Grant notes a grant that this peer gave or took, and its end. It does not block.
func (m *Memory) Grant(given bool, g *api.Grant) {
	whose := "taken from " + g.GetProviderId()
	if given {
		whose = "granted to " + g.GetConsumerId()
	}
	how := fmt.Sprintf(" for %v", time.Duration(g.GetTtlMs())*time.Millisecond)
	switch g.GetState() {
	case api.Grant_STATE_HELD:
		how = ", held until it is confirmed"
	case api.Grant_STATE_EXPIRED:
		how = ": expired"
	case api.Grant_STATE_RELEASED:
		how = ": given back"
	case api.Grant_STATE_REVOKED:
		how = ": revoked"
	}
	if g.GetReason() != "" {
		how += " (" + g.GetReason() + ")"
	}
	units := fault.Counted(int(g.GetUnits()), "unit")
	m.Note(kindGrant, strconv.FormatUint(g.GetToken(), 10), "%s of %s %s%s", units, path.Base(g.GetKey()), whose, how)
}

func (w *Watch) look() {
	connected := make(map[string]bool)
	for _, id := range w.see.Peers() {
		connected[id] = true
	}
	if w.see.Group != nil {
		now := w.see.Group()
		w.seeLeader(now, connected)
		w.seeVoters(now)
		w.group = now
	}
	w.seeConditions()
	w.seePeers(connected)
	w.seeRemoved()
	w.seeOffers()
}

// seeLeader notes another leader, or another term of the same one, and why as far as this peer sees it.
func (w *Watch) seeLeader(now coord.GroupState, connected map[string]bool) {
	if now.Leader == "" || now.Leader == w.leader && now.Term == w.term {
		return
	}
	w.memory.follow()
	before := w.leader
	w.leader, w.term = now.Leader, now.Term
	at := slices.IndexFunc(now.Voters, func(m coord.Member) bool { return m.Peer == before })
	leads, led := nameIn(now.Leader, now, w.group), nameIn(before, now, w.group)
	switch {
	case before == "":
		w.memory.Note(kindLeader, now.Leader, "%s leads the group in term %d", leads, now.Term)
	case before == now.Leader:
		w.memory.Note(kindLeader, now.Leader, "%s leads again, in term %d", leads, now.Term)
	case before == w.see.Self:
		w.memory.Note(kindLeader, now.Leader, "%s leads: this peer led before and lost or gave up the lead", leads)
	case now.Phase == "member" && at < 0:
		w.memory.Note(kindLeader, now.Leader, "%s leads: %s is no voter any more", leads, led)
	case !connected[before]:
		w.memory.Note(kindLeader, now.Leader, "%s leads: %s is silent", leads, led)
	default:
		w.memory.Note(kindLeader, now.Leader, "%s leads: %s led before; its connection is open still", leads, led)
	}
}

// seeVoters notes voters that came and left. Only members know all voters.
func (w *Watch) seeVoters(now coord.GroupState) {
	before := w.group
	if before.Phase != "member" || now.Phase != "member" || before.ID != now.ID {
		return
	}
	without := func(in, list []coord.Member) (ids []string) {
		for _, m := range list {
			if !slices.ContainsFunc(in, func(o coord.Member) bool { return o.Peer == m.Peer }) {
				ids = append(ids, m.Peer)
			}
		}
		return ids
	}
	for _, id := range without(before.Voters, now.Voters) {
		w.memory.Note(kindVoters, id, "%s became a voter, of %d", nameIn(id, now, before), len(now.Voters))
	}
	for _, id := range without(now.Voters, before.Voters) {
		w.memory.Note(kindVoters, id, "%s is no voter any more: %s left", nameIn(id, now, before), fault.Counted(len(now.Voters), "voter"))
	}
}

// seeConditions notes conditions that began and ended.
func (w *Watch) seeConditions() {
	now := make(map[condition.Name]condition.Condition)
	for _, c := range w.see.Conditions() {
		now[c.Name] = c
		if before, ok := w.conditions[c.Name]; ok && before.Since.Equal(c.Since) {
			continue
		}
		if c.Name == condition.NoQuorum {
			w.memory.NoteSince(c.Since, kindQuorum, string(c.Name), "the quorum is lost: %s", c.String())
		} else {
			w.memory.NoteSince(c.Since, kindCondition, string(c.Name), "%s began: %s", c.Name, c.String())
		}
	}
	for _, name := range condition.Names() {
		c, was := w.conditions[condition.Name(name)]
		if _, is := now[c.Name]; !was || is {
			continue
		}
		lasted := w.now().Sub(c.Since).Round(time.Second)
		worse := ""
		for n := range now {
			if n.Includes(c.Name) {
				worse = string(n)
			}
		}
		switch {
		case c.Name == condition.NoQuorum:
			w.memory.Note(kindQuorum, name, "the quorum is back after %v", lasted)
		case worse != "":
			w.memory.Note(kindCondition, name, "%s got worse after %v: it is %s now", name, lasted, worse)
		default:
			w.memory.Note(kindCondition, name, "%s ended after %v", name, lasted)
		}
	}
	w.conditions = now
}

// seePeers notes lost connections, at most once a minute, and at once the loss of the last one.
func (w *Watch) seePeers(connected map[string]bool) {
	now := w.now()
	var lost []string
	for id := range w.peers {
		if !connected[id] {
			lost = append(lost, nameIn(id, w.group))
		}
	}
	if len(lost) == 0 || now.Sub(w.lost) < everyPeers && len(connected) > 0 {
		maps.Copy(w.peers, connected)
		return
	}
	w.peers, w.lost = connected, now
	slices.Sort(lost)
	w.memory.Note(kindPeer, "", "connections lost: %s; %d remain", few(lost), len(connected))
}

// change is what changed, for a note of its kind.
type change struct {
	subject, text string
	since         time.Time // when it happened; zero: unknown
}

// noteSome notes the first changes, and the number of the others.
func (w *Watch) noteSome(kind string, changes []change, others string) {
	for _, c := range changes[:min(len(changes), mostAtOnce)] {
		w.memory.NoteSince(c.since, kind, c.subject, "%s", c.text)
	}
	if more := len(changes) - mostAtOnce; more > 0 {
		w.memory.Note(kind, "", "%d more %s", more, others)
	}
}

// seeRemoved notes ended instances with their cause.
func (w *Watch) seeRemoved() {
	if w.see.Removed == nil {
		return
	}
	var changes []change
	last := w.ended
	for _, r := range slices.Backward(w.see.Removed()) { // the first end first
		if r.At.After(last) {
			w.ended = r.At
			changes = append(changes, change{r.Key.String(), fmt.Sprintf("%s is removed: %s", r.Key, r.Cause), r.At})
		}
	}
	w.noteSome(kindInstance, changes, "instances ended: GET /v1/removed has them")
}

// seeOffers notes own offers that are paused, served again, or gone.
func (w *Watch) seeOffers() {
	now := make(map[string]*records.Record)
	var changes []change
	for _, r := range w.see.Offers() {
		id := r.Name().ID
		now[id] = r
		before, ok := w.offers[id]
		switch p := r.Paused(); {
		case !ok:
		case p != nil && before.Paused() == nil:
			changes = append(changes, change{id, fmt.Sprintf("offer %s is not served: %s", id, p.Reason()), p.Since})
		case p == nil && before.Paused() != nil:
			changes = append(changes, change{subject: id, text: fmt.Sprintf("offer %s is served again", id)})
		}
	}
	for id := range w.offers {
		if now[id] == nil {
			changes = append(changes, change{subject: id, text: fmt.Sprintf("offer %s is gone: it was withdrawn or has expired", id)})
		}
	}
	w.offers = now
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.subject, b.subject) })
	w.noteSome(kindOffer, changes, "offers changed")
}

// nameIn is what people call a peer, as far as the states of the group know its name.
func nameIn(id string, states ...coord.GroupState) string {
	for _, s := range states {
		if n := s.NameOf(id); n != "" {
			return n
		}
	}
	return "…" + id[max(0, len(id)-8):]
}

// few joins the first names of a list.
func few(names []string) string {
	if len(names) <= mostNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNames], ", "), len(names)-mostNames)
}
