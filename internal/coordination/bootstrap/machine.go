package bootstrap

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
)

// An event is what happens to a machine: a tick or received.
type event interface{ event() }

type (
	// tick lets time pass; it is due at wake at the latest.
	tick struct {
		connected []peer.ID // peers within reach now, founders or not
	}
	// received is a message from an authenticated peer; an announce that was found
	// elsewhere is from nobody.
	received struct {
		from    peer.ID
		message message
	}
)

func (tick) event()     {}
func (received) event() {}

// An action is what the machine's owner does, strictly in the order given: after
// a save that fails nothing that follows may be done, and the machine is dead.
type action interface{ action() }

type (
	save struct{ state State }
	send struct {
		to      peer.ID
		message message
	}
	founded    struct{ certificate Certificate }
	conflicted struct{ conflict Conflict }
	// reject is a message that no honest peer of this network sends.
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

// setup is what a machine is made of.
type setup struct {
	network  Network
	key      crypto.PrivKey
	self     peer.ID
	raftID   uint64
	voters   int // wanted
	rand     *rand.Rand
	timing   Timing
	abstains string // why the peer neither votes nor proposes; "" when it does
}

// machine is one peer's part in a founding: acceptor, proposer and learner. It
// reads no clock and touches neither disk nor network.
type machine struct {
	setup
	id    NetworkID
	state State // as last handed out in a save

	now time.Time
	out []action

	peers     peerView
	hellos    int       // rounds of hellos so far
	nextHello time.Time //
	patience  struct {  // before this peer proposes
		since time.Time // a quorum is visible, zero: it is not
		most  int       // peers visible at once since then
		extra time.Duration
		due   time.Time // zero: not at all
	}
	backOff time.Time // until then others are left to propose
	round   uint64    // highest seen
	fails   int       // attempts of ours that came to nothing
	try     *attempt  // ours under way; then state.Promised is its ballot

	flaws flaws
}

// observation is an eligible peer that would found.
type observation struct {
	raftID uint64
	until  time.Time // visible before that
}

// flaws are faults that tests plant to see that they are found out.
type flaws struct {
	replyFirst      bool // answers before the state is on disk
	forgetAccepted  bool // proposes its own charter whatever the promises say
	countDoubles    bool // counts every Accepted, not every signer
	forgetPromises  bool // does not put promises on disk
	majorityVisible bool // takes a majority of the visible for a quorum
}

const (
	maxSeen = 2 * MaxEligible

	// maxLeap bounds how far one message may push the round, so that nobody can exhaust it.
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

// step takes in what happened by now. Time never runs backwards.
func (m *machine) step(now time.Time, ev event) []action {
	m.now, m.peers.now, m.out = now, now, nil
	switch ev := ev.(type) {
	case tick:
		m.peers.setConnected(ev.connected)
	case received:
		m.receive(ev.from, ev.message)
	}
	m.advance()
	if m.flaws.replyFirst {
		slices.SortStableFunc(m.out, func(a, b action) int { return order(a) - order(b) })
	}
	return m.out
}

// order serves the flaw replyFirst.
func order(a action) int {
	if _, ok := a.(save); ok {
		return 1
	}
	return 0
}

// wake is the time of the next tick.
func (m *machine) wake() time.Time {
	next := m.nextHello
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

func (m *machine) receive(from peer.ID, msg message) {
	switch msg := msg.(type) {
	case hello:
		m.onHello(from, msg)
	case announce:
		m.onAnnounce(from, msg.certificate)
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

// advance does what is due.
func (m *machine) advance() {
	if !m.now.Before(m.nextHello) {
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

// onAnnounce takes in a certificate: the first valid one ends the founding for
// this peer, the first of another group after that is a conflict.
func (m *machine) onAnnounce(from peer.ID, c Certificate) {
	ours := m.state.Certificate
	if ours != nil && (ours.GroupID() == c.GroupID() || m.state.Conflicting != nil) {
		return
	}
	if err := m.network.Verify(c); err != nil {
		m.reject(from, err)
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
	if from != "" {
		m.send(from, announce{*ours})
	}
}

// learn keeps the certificate. The hello that follows at once tells all of it, so
// that those without can ask.
func (m *machine) learn(c Certificate) {
	state := m.state
	state.Certificate = &c
	m.save(state)
	m.try, m.patience.due = nil, time.Time{}
	m.do(founded{c})
	m.hellos, m.nextHello = 0, m.now
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

// spread varies a pause by a quarter to both sides, so that peers do not keep in step.
func (m *machine) spread(d time.Duration) time.Duration {
	return d*3/4 + m.upTo(d/2)
}

func (m *machine) upTo(d time.Duration) time.Duration {
	return time.Duration(m.rand.Int64N(int64(d) + 1))
}
