package transport

import (
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"maps"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	names "github.com/blackhole/blackhole/pkg/network"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	service = "blackhole.group" // for the resource manager
	tag     = "blackhole.group" // for the connection manager, which keeps members' connections
)

// RaftProtocol returns the protocol of a group's members in a network.
func RaftProtocol(n names.Name, group [32]byte) protocol.ID {
	return protocol.ID(n.Protocol("raft/"+hex.EncodeToString(group[:8]), "1"))
}

// Config configures a Transport. All fields are required, but for Limits. The functions must be fast and safe for concurrent use,
// and must not call the Transport.
type Config struct {
	Host    host.Host
	Network names.Name
	Group   [32]byte // the group's id
	Member  uint64   // this member's raft id; not 0
	Process uint64   // random; 0: other members cannot tell this process from another one with the same raft id

	// Lookup returns the peer of a current or expected member: expected by a pending change or by newer group
	// information.
	Lookup func(member uint64) (peer.ID, bool)

	// Known reports whether a peer is or may become a member: a quarter of the greetings and questions answered at once is kept
	// for those.
	Known func(peer.ID) bool

	// Levels returns the feature levels that this member supports, and the level of the group, 0 before its
	// state is known.
	Levels func() (supported coord.Levels, group uint32)

	// Snapshots stores the states of snapshots, which carry little Data.
	Snapshots Snapshots

	// Stranger receives a peer rejected as unknown. The local configuration may be old: a lagging member
	// learns of a new leader only this way.
	Stranger func(from peer.ID, member uint64)

	// Refused receives a member's rejection of this one.
	Refused func(by peer.ID, why *groupv1.MemberWelcome)

	// WrongLevel receives a member that lacks the feature level of the group, or whose group's level this
	// member lacks, with the reason.
	WrongLevel func(with peer.ID, why error)

	Metrics *metrics.Coordination // nil counts nothing
	Logger  *slog.Logger
	Jitter  func() float64 // in [0, 1)
	Limits  Limits
}

// Snapshots stores the states of snapshots.
type Snapshots interface {
	// State opens the state of a snapshot.
	State(snap *raftpb.Snapshot) (io.ReadCloser, error)
	// Write stores a state durably. It fails if the state fails.
	Write(snap *raftpb.Snapshot, state io.WriterTo) error
}

// Receiver is the member behind a Transport. Its methods are called concurrently, and never after Close.
type Receiver interface {
	// Receive takes a message. It may block: then the sender's stream blocks too, and the sender drops
	// messages in the end.
	Receive(m *raftpb.Message)
	// Unreachable reports lost messages to a member. gone: it has closed its last connection.
	Unreachable(member uint64, gone bool)
	// SnapshotSent reports the end of a snapshot transfer, once for each snapshot of Send.
	SnapshotSent(member uint64, ok bool)
}

// Transport exchanges Raft messages between the members of a group. It is safe for concurrent use.
type Transport struct {
	config     Config
	handshakes *rpc.Limiter
	turn       chan struct{} // one snapshot is written at a time
	ctx        context.Context
	cancel     context.CancelFunc

	running sync.WaitGroup // peer streams, inbound streams, snapshots in transfer

	mu        sync.Mutex // guards all below, and additions to running
	receiver  Receiver   // nil before Start
	watch     network.Notifiee
	closed    bool
	epoch     uint64 // rises with each Recheck
	streams   map[streamKey]*peerStream
	inbound   map[streamKey]*inbound
	sending   map[uint64]bool // members that receive a snapshot
	protected map[peer.ID]bool
	announced map[uint64]coord.Levels // by members, in their last handshake
}

// streamKey identifies a stream: at most one of each kind, to and from each member.
type streamKey struct {
	member uint64
	kind   groupv1.StreamKind
}

// New returns an idle Transport; see Start.
func New(c Config) *Transport {
	c.Limits = c.Limits.withDefaults()
	t := &Transport{
		config: c, handshakes: rpc.NewLimiter(c.Limits.Handshakes, c.Limits.HandshakesPerPeer, c.Known),
		turn:    make(chan struct{}, 1),
		streams: make(map[streamKey]*peerStream), inbound: make(map[streamKey]*inbound),
		sending: make(map[uint64]bool), protected: make(map[peer.ID]bool), announced: make(map[uint64]coord.Levels),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Start serves and sends until Close. It must be called once.
func (t *Transport) Start(r Receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.receiver != nil {
		return
	}
	t.receiver = r
	id := RaftProtocol(t.config.Network, t.config.Group)
	t.config.Host.SetStreamHandlerMatch(id, rpc.Compatible(id), t.serve)
	t.watch = &network.NotifyBundle{DisconnectedF: func(_ network.Network, c network.Conn) { t.disconnected(c) }}
	t.config.Host.Network().Notify(t.watch)
}

// Send queues messages and returns at once. The Transport owns them, but only reads data shared with Raft's
// log. It drops and counts messages that cannot leave.
func (t *Transport) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		kind, ok := kindOf(m.GetType())
		switch {
		case !ok || m.GetFrom() != t.config.Member || m.GetTo() == t.config.Member:
			t.config.Metrics.Dropped(nameOf(kind), "unfit", 1)
		case kind == groupv1.StreamKind_STREAM_KIND_SNAPSHOT:
			t.sendSnapshot(m)
		default:
			t.enqueue(streamKey{m.GetTo(), kind}, m)
		}
	}
}

func (t *Transport) enqueue(key streamKey, m *raftpb.Message) {
	l, why := t.stream(key)
	if l == nil {
		t.config.Metrics.Dropped(nameOf(key.kind), why, 1)
		return
	}
	if !l.queue.put(m) {
		t.config.Metrics.Dropped(nameOf(key.kind), "full", 1)
	}
}

// stream returns the stream to a member, or the reason for the lack of one.
func (t *Transport) stream(key streamKey) (*peerStream, string) {
	t.mu.Lock()
	l, epoch, up := t.streams[key], t.epoch, t.receiver != nil && !t.closed
	t.mu.Unlock()
	if l != nil || !up {
		return l, "closed"
	}
	for {
		id, ok := t.config.Lookup(key.member) // without the lock, because Lookup may take others
		if !ok {
			return nil, "unknown"
		}
		t.mu.Lock()
		switch {
		case t.closed:
			t.mu.Unlock()
			return nil, "closed"
		case t.epoch != epoch: // the result may be old
			epoch = t.epoch
			t.mu.Unlock()
			continue
		case t.streams[key] == nil:
			t.streams[key] = newPeerStream(t, key, id)
			t.protect(id)
			t.running.Go(t.streams[key].run)
		}
		l := t.streams[key]
		t.mu.Unlock()
		return l, ""
	}
}

// protect keeps connections to a member from being trimmed. Call it with mu held.
func (t *Transport) protect(id peer.ID) {
	if !t.protected[id] {
		t.protected[id] = true
		t.config.Host.ConnManager().Protect(id, tag)
	}
}

// Recheck looks up all members again and ends the streams of former members. Call it after each change of
// Lookup's results.
func (t *Transport) Recheck() {
	t.mu.Lock()
	t.epoch++ // older lookups start no stream from here on
	lanes, streams := maps.Clone(t.streams), maps.Clone(t.inbound)
	t.mu.Unlock()

	for key, l := range lanes {
		if !t.is(key.member, l.peer) {
			l.cancel()
			t.forgetStream(key, l)
		}
	}
	for key, in := range streams {
		if !t.is(key.member, in.peer) {
			t.config.Metrics.Refused("removed")
			_ = in.stream.Reset()
			t.forgetInbound(key, in)
		}
	}
	t.forgetLevels()
	t.unprotect()
}

// is reports whether a peer is a member.
func (t *Transport) is(member uint64, id peer.ID) bool {
	known, ok := t.config.Lookup(member)
	return ok && known == id
}

func (t *Transport) forgetStream(key streamKey, l *peerStream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams[key] == l {
		delete(t.streams, key)
	}
}

func (t *Transport) forgetInbound(key streamKey, in *inbound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inbound[key] == in {
		delete(t.inbound, key)
	}
}

// unprotect releases connections without a stream.
func (t *Transport) unprotect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := make(map[peer.ID]bool)
	for _, l := range t.streams {
		used[l.peer] = true
	}
	for _, in := range t.inbound {
		used[in.peer] = true
	}
	for id := range t.protected {
		if !used[id] {
			delete(t.protected, id)
			t.config.Host.ConnManager().Unprotect(id, tag)
		}
	}
}

// disconnected reports the members of a peer that has closed its last connection, or its last one over TCP: if its process was
// killed, another kind stays silent for long. A process that ends closes its connections; a network that fails closes none.
func (t *Transport) disconnected(c network.Conn) {
	id, h := c.RemotePeer(), t.config.Host
	if h.Network().Connectedness(id) == network.Connected && (!dial.IsTCP(c) || dial.OverTCP(h, id) != nil) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	members := make(map[uint64]bool)
	for key, l := range t.streams {
		if l.peer == id {
			members[key.member] = true
		}
	}
	for key, in := range t.inbound {
		if in.peer == id {
			members[key.member] = true
		}
	}
	for member := range members {
		t.running.Go(func() { t.receiver.Unreachable(member, true) })
	}
}

// Close ends all streams and waits for their goroutines. A Receiver must not call it.
func (t *Transport) Close() error {
	t.mu.Lock()
	started := t.receiver != nil && !t.closed
	t.closed = true
	for _, in := range t.inbound {
		_ = in.stream.Reset()
	}
	t.mu.Unlock()

	t.cancel()
	if started {
		t.config.Host.Network().StopNotify(t.watch)
		t.config.Host.RemoveStreamHandler(RaftProtocol(t.config.Network, t.config.Group))
	}
	t.handshakes.Close()
	t.running.Wait()
	t.mu.Lock()
	clear(t.streams)
	clear(t.inbound)
	t.mu.Unlock()
	t.unprotect()
	return nil
}

// open opens a stream to a member with a handshake. The stream ends with ctx.
func (t *Transport) open(ctx context.Context, id peer.ID, key streamKey) (network.Stream, error) {
	direct := dial.ByTCP(ctx, t.config.Host, id)
	within, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	proposals := rpc.Proposals(t.config.Host, id, RaftProtocol(t.config.Network, t.config.Group))
	var s network.Stream
	var err error
	if direct != nil {
		s, err = dial.On(within, direct, proposals...)
	} else { // Raft paces the dials, which never use a relay
		s, err = t.config.Host.NewStream(network.WithForceDirectDial(within, tag), id, proposals...)
	}
	if err != nil {
		return nil, fault.As("", fault.Unavailable, err)
	}
	release := context.AfterFunc(ctx, func() { _ = s.Reset() })
	if err := t.handshake(s, key); err != nil {
		release()
		_ = s.Reset()
		return nil, err
	}
	return &boundStream{Stream: s, release: release}, nil
}

// boundStream is a stream that ends with a context; Reset releases the context.
type boundStream struct {
	network.Stream
	release func() bool
}

func (g *boundStream) Reset() error {
	g.release()
	return g.Stream.Reset()
}
