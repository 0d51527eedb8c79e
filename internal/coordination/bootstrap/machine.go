package bootstrap

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// An event is an input of a machine: a tick or a received message.
type event interface{ event() }

type (
	// tick advances the time; it is due at wake at the latest.
	tick struct {
		connected []peer.ID // with or without eligibility
	}
	// received is a message of an authenticated peer, or a certificate of another origin, without a peer.
	received struct {
		from    peer.ID
		message message
		vouched bool // a trusted peer shows the certificate, which may name other founders
	}
)

func (tick) event()     {}
func (received) event() {}

// An action is work for the machine's owner, in strict order: after a failed save the following actions must
// not happen, and the machine is dead.
type action interface{ action() }

type (
	save struct{ state State }
	send struct {
		to      peer.ID
		message message
	}
	founded    struct{ certificate Certificate }
	conflicted struct{ conflict Conflict }
	// malformed is a message that no honest peer of this network sends.
	malformed struct {
		from peer.ID
		err  error
	}
)

func (save) action()       {}
func (send) action()       {}
func (founded) action()    {}
func (conflicted) action() {}
func (malformed) action()  {}

// setup configures a machine.
type setup struct {
	network  Network
	key      crypto.PrivKey
	self     peer.ID
	raftID   uint64
	voters   int // wanted
	rand     *rand.Rand
	timing   Timing
	abstains string // the reason for neither voting nor proposing; empty if the peer does
}

// machine is one peer's part in a group bootstrap: acceptor, proposer and learner. It uses no clock, disk or
// network.
type machine struct {
	setup
	id    NetworkID
	state State // as of the last save

	now time.Time
	out []action

	peers peerView
	hello struct {
		rounds int // so far
		next   time.Time
	}
	patience struct { // before a proposal of this peer
		since time.Time // a quorum is visible; zero: it is not
		most  int       // peers visible at once since then
		extra time.Duration
		due   time.Time // zero: never
	}
	backOff time.Time // others may propose until then
	round   uint64    // highest known
	fails   int       // failed attempts of this peer
	try     *attempt  // present attempt; then state.Promised is its ballot

	flaws flaws
}

// observation is an eligible peer's offer to vote.
type observation struct {
	raftID uint64
	until  time.Time // end of its visibility
}

// flaws are bugs that tests plant and must find.
type flaws struct {
	replyFirst      bool // answers before the state is on disk
	forgetAccepted  bool // proposes its own membership in spite of the promises
	countDoubles    bool // counts every Accepted, not every signer
	forgetPromises  bool // does not save promises
	majorityVisible bool // uses a majority of the visible peers as quorum
}

const (
	maxSeen = 2 * MaxEligible

	// maxLeap bounds the growth of the round by one message, so that no peer exhausts it.
	maxLeap = 1 << 20
)

func newMachine(s setup, state State) *machine {
	return &machine{
		setup: s,
		id:    s.network.ID(),
		state: state,
		peers: peerView{self: s.self, size: s.network.Size(), ttl: s.timing.Sight, seen: make(map[peer.ID]observation)},
		round: state.Promised.Round,
	}
}

// step applies an event. Time never goes back.
func (m *machine) step(now time.Time, ev event) []action {
	m.now, m.peers.now, m.out = now, now, nil
	switch ev := ev.(type) {
	case tick:
		m.meet(ev.connected)
	case received:
		m.receive(ev)
	}
	m.advance()
	if m.flaws.replyFirst {
		slices.SortStableFunc(m.out, func(a, b action) int { return order(a) - order(b) })
	}
	return m.out
}

// order implements the flaw replyFirst.
func order(a action) int {
	if _, ok := a.(save); ok {
		return 1
	}
	return 0
}

// wake returns the time of the next tick.
func (m *machine) wake() time.Time {
	next := m.hello.next
	if look := m.now.Add(m.timing.Hello / 4); m.network.Mode == Unlisted && m.state.Certificate == nil && look.Before(next) {
		next = look // at new connections
	}
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	switch {
	case m.try != nil:
		earlier(m.try.deadline)
		earlier(m.try.resend)
	case !m.patience.due.IsZero():
		earlier(m.patience.due)
	}
	return next
}

func (m *machine) receive(ev received) {
	from := ev.from
	switch msg := ev.message.(type) {
	case hello:
		m.onHello(from, msg)
	case announce:
		m.onAnnounce(ev, msg.certificate)
	case prepare:
		if m.votes(from, msg.ballot) {
			m.onPrepare(from, msg)
		}
	case accept:
		if m.votes(from, msg.ballot) {
			m.onAccept(from, msg)
		}
	case promise:
		m.onPromise(from, msg)
	case accepted:
		m.onAccepted(from, msg)
	case refuse:
		m.onRefuse(from, msg)
	}
}

// advance performs the due work.
func (m *machine) advance() {
	if !m.now.Before(m.hello.next) {
		m.sayHello()
	}
	switch {
	case m.state.Certificate != nil || m.abstains != "":
	case m.try != nil:
		m.try.drive(m)
	default:
		m.consider()
	}
}

// onAnnounce applies a certificate: the first valid one ends the bootstrap here, a later one of another group
// is a conflict.
func (m *machine) onAnnounce(ev received, c Certificate) {
	ours := m.state.Certificate
	if ours != nil && (ours.GroupID() == c.GroupID() || m.state.Conflicting != nil) {
		return
	}
	verify := m.network.Verify
	if ev.vouched {
		verify = m.network.recognize
	}
	if err := verify(c); err != nil {
		m.reject(ev.from, err)
		return
	}
	if ours == nil {
		m.learn(c)
		return
	}
	state := m.state
	state.Conflicting = &c
	m.save(state)
	m.do(conflicted{Conflict{Ours: *ours, Theirs: c}})
	if ev.from != "" {
		m.send(ev.from, announce{*ours})
	}
}

// learn stores the certificate. The hello that follows lets peers without it ask.
func (m *machine) learn(c Certificate) {
	state := m.state
	state.Certificate = &c
	m.save(state)
	m.try, m.patience.due = nil, time.Time{}
	m.do(founded{c})
	m.hello.rounds, m.hello.next = 0, m.now
}

func (m *machine) do(a action) { m.out = append(m.out, a) }

func (m *machine) send(to peer.ID, msg message) { m.do(send{to, msg}) }

func (m *machine) save(s State) {
	m.state = s
	m.do(save{s})
}

func (m *machine) reject(from peer.ID, err error) { m.do(malformed{from, err}) }

func (m *machine) rejectf(from peer.ID, format string, args ...any) {
	m.reject(from, fault.New("", fault.Forbidden, format, args...))
}

// spread varies a pause by a quarter to both sides, against synchronised peers.
func (m *machine) spread(d time.Duration) time.Duration {
	return d*3/4 + m.upTo(d/2)
}

func (m *machine) upTo(d time.Duration) time.Duration {
	return time.Duration(m.rand.Int64N(int64(d) + 1))
}
