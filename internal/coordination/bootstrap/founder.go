package bootstrap

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// Transport connects a Founder to the network.
type Transport interface {
	// Send sends m to a peer, or drops it, and returns at once. Neither side may change m afterwards.
	Send(to peer.ID, m *groupv1.BootstrapMessage)

	// ConnectedPeers returns the connected peers that accept such messages, in any order, at once. Founders of
	// the mode Unlisted find each other among them; in both modes they are asked for a certificate. The first 128
	// count.
	ConnectedPeers() []peer.ID
}

// Options configures a Founder. Logger, Timing and Voters may be zero.
type Options struct {
	Network Network
	Key     crypto.PrivKey // Ed25519
	Store   *Store         // opened for the peer of Key and Network; not closed by the Founder

	// RaftID is this peer's raft id, fixed for its data directory. 0: the peer founds nothing and only looks for a
	// certificate.
	RaftID uint64

	// Voters is the wanted number of initial voters: 1, 3 or 5; 0 means 3. The group starts with fewer if not
	// enough peers are eligible, or visible after a while.
	Voters int

	Transport Transport
	Rand      *rand.Rand // owned by the Founder; seeded from the system's randomness
	Now       func() time.Time
	Logger    *slog.Logger
	Timing    Timing
}

const (
	defaultVoters = 3
	inboxLength   = 256
	minPause      = time.Millisecond // between ticks, even with a stopped clock
	maxWarned     = 128              // peers whose messages cause a warning
)

// Founder is one peer's part in a group bootstrap. With a certificate, it only answers other peers.
type Founder struct {
	options Options
	id      NetworkID
	self    peer.ID
	log     *slog.Logger
	inbox   chan event
	machine *machine // for Run's goroutine only

	founded    chan struct{}
	conflicted chan struct{}

	mu          sync.Mutex // guards all below, held for no longer than a copy
	status      Status
	certificate *Certificate
	conflict    *Conflict
	rejected    map[peer.ID]bool
}

// New returns a Founder; Run starts it.
//
// Errors: Invalid for the options, Unauthentic for an invalid certificate on disk.
func New(o Options) (*Founder, error) {
	const op = "bootstrap.New"
	self, err := o.check()
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	o.Network.Founders = slices.Clone(o.Network.Founders)
	f := &Founder{
		options:    o,
		id:         o.Network.ID(),
		self:       self,
		log:        o.Logger,
		inbox:      make(chan event, inboxLength),
		founded:    make(chan struct{}),
		conflicted: make(chan struct{}),
		rejected:   make(map[peer.ID]bool),
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	state := o.Store.State()
	f.machine = newMachine(setup{
		network:  o.Network,
		key:      o.Key,
		self:     self,
		raftID:   o.RaftID,
		voters:   o.voters(),
		rand:     o.Rand,
		timing:   o.Timing.orDefaults(),
		abstains: o.abstains(self),
	}, state)
	if c := state.Certificate; c != nil {
		if err := o.Network.recognize(*c); err != nil {
			return nil, fault.Wrap(op, err)
		}
		f.setFounded(*c)
		if r := state.Conflicting; r != nil {
			f.setConflict(Conflict{Ours: *c, Theirs: *r})
		}
	}
	f.setStatus()
	return f, nil
}

// check validates the options and returns the peer of the key.
func (o Options) check() (peer.ID, error) {
	if err := o.Network.Validate(); err != nil {
		return "", err
	}
	if o.Key == nil || o.Key.Type() != crypto.Ed25519 {
		return "", fault.Invalidf("key", nil, "must be an Ed25519 key")
	}
	self, err := peer.IDFromPrivateKey(o.Key)
	if err != nil {
		return "", fault.As("", fault.Invalid, err)
	}
	if !slices.Contains([]int{0, 1, 3, 5}, o.Voters) {
		return "", fault.Invalidf("voters", o.Voters, "use 1, 3 or 5")
	}
	if o.Store == nil || o.Store.own != (owner{peer: self, network: o.Network.ID()}) {
		return "", fault.Invalidf("store", nil, "belongs to another peer or network")
	}
	switch {
	case o.Transport == nil:
		return "", fault.Invalidf("messenger", nil, "is missing")
	case o.Rand == nil:
		return "", fault.Invalidf("rand", nil, "is missing")
	case o.Now == nil:
		return "", fault.Invalidf("now", nil, "is missing")
	}
	return self, nil
}

func (o Options) voters() int {
	if o.Voters == 0 {
		return defaultVoters
	}
	return o.Voters
}

// abstains returns the reason for which the peer takes no part in ballots; empty if it does.
func (o Options) abstains(self peer.ID) string {
	switch {
	case !o.Network.Eligible(self):
		return "it is not among the founders"
	case o.Store.Amnesia() != "":
		return "it may have voted and forgot: " + o.Store.Amnesia()
	case o.RaftID == 0:
		return "it founds no group"
	}
	return ""
}

// Run runs the bootstrap until ctx ends, then returns nil. A disk error ends it too, and should end the
// process. It must be called once.
func (f *Founder) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var ev event
		select {
		case <-ctx.Done():
			return nil
		case ev = <-f.inbox:
		case <-timer.C:
			ev = tick{connected: f.options.Transport.ConnectedPeers()}
		}
		now := f.options.Now()
		if err := f.perform(f.machine.step(now, ev)); err != nil {
			return fault.Wrap("bootstrap.Run", err)
		}
		f.setStatus()
		timer.Reset(max(f.machine.wake().Sub(now), minPause))
	}
}

// perform executes actions in their order: a message leaves only after the state behind it is on disk.
func (f *Founder) perform(actions []action) error {
	for _, a := range actions {
		switch a := a.(type) {
		case save:
			if err := f.options.Store.Save(a.state); err != nil {
				return err
			}
		case send:
			f.options.Transport.Send(a.to, encode(f.id, a.message))
		case founded:
			f.log.Info("the coordination group is known", "group", a.certificate.GroupID(), "voters", len(a.certificate.Membership.Voters))
			f.setFounded(a.certificate)
		case conflicted:
			level := slog.LevelInfo // groups that began apart merge
			if len(a.conflict.Suspects()) > 0 {
				level = slog.LevelError
			}
			f.log.Log(context.Background(), level, "a second coordination group was founded in this network",
				"ours", a.conflict.Ours.GroupID(), "theirs", a.conflict.Theirs.GroupID(), "suspects", a.conflict.Suspects())
			f.setConflict(a.conflict)
		case malformed:
			f.reject(a.from, a.err)
		}
	}
	return nil
}

// Deliver queues a message of an authenticated peer. It returns at once and drops the message if the queue is
// full, because the sender repeats it. A vouched peer is trusted to show a certificate of other founders. m must not be
// changed afterwards.
func (f *Founder) Deliver(from peer.ID, m *groupv1.BootstrapMessage, vouched bool) {
	if from == f.self {
		return
	}
	msg, err := decode(f.id, m)
	switch {
	case err == nil:
		f.post(received{from: from, message: msg, vouched: vouched})
	case fault.KindOf(err) == fault.Conflict && !f.related(from):
		f.log.Debug("founding: message of another network", "peer", from, "error", err)
	default:
		f.reject(from, err)
	}
}

// related reports whether a peer is listed as a founder here: a message of another network then shows a
// configuration error on one side. Other peers may belong to any network.
func (f *Founder) related(p peer.ID) bool {
	return f.options.Network.Mode == Listed && f.options.Network.Eligible(p)
}

// Offer takes an encoded certificate of any origin: gossip, the DHT, or a description of the group. One that a trusted
// peer vouches for may name other founders. Without a list of founders only such ones count, because any peer can
// sign one.
//
// Errors: as Network.Open and Recognize; Unauthentic; then nothing changes.
func (f *Founder) Offer(certificate []byte, vouched bool) error {
	const op = "bootstrap.Offer"
	open := f.options.Network.Open
	switch {
	case vouched:
		open = f.options.Network.Recognize
	case f.options.Network.Mode == Unlisted:
		return fault.New(op, fault.Unauthentic, "no trusted peer shows this certificate")
	}
	c, err := open(certificate)
	if err != nil {
		return fault.Wrap(op, err)
	}
	f.post(received{message: announce{c}, vouched: vouched})
	return nil
}

func (f *Founder) post(ev event) {
	select {
	case f.inbox <- ev:
	default:
	}
}

// reject logs a message that no honest peer of this network sends, as a warning the first time for each peer.
func (f *Founder) reject(from peer.ID, err error) {
	f.mu.Lock()
	level := slog.LevelDebug
	if !f.rejected[from] && len(f.rejected) < maxWarned {
		f.rejected[from] = true
		level = slog.LevelWarn
	}
	f.status.Refused++
	f.mu.Unlock()
	f.log.Log(context.Background(), level, "founding: message refused", "peer", from, "error", err)
}

// Founded returns a channel that is closed with the first certificate.
func (f *Founder) Founded() <-chan struct{} { return f.founded }

// Certificate returns the first valid certificate; it never changes.
func (f *Founder) Certificate() (Certificate, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.certificate == nil {
		return Certificate{}, false
	}
	return *f.certificate, true
}

// Conflicted returns a channel that is closed at the discovery of a second group.
func (f *Founder) Conflicted() <-chan struct{} { return f.conflicted }

// Conflict returns the conflicting certificates, if any; they survive a restart.
func (f *Founder) Conflict() (Conflict, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conflict == nil {
		return Conflict{}, false
	}
	return *f.conflict, true
}

func (f *Founder) setFounded(c Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.certificate = &c
	close(f.founded)
}

func (f *Founder) setConflict(r Conflict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conflict = &r
	close(f.conflicted)
}
