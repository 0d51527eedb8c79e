package transport

import (
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	service = "blackhole.group" // of the resource manager
	tag     = "blackhole.group" // of the connection manager: members are not trimmed
)

// RaftProtocol is the protocol of a group's members.
func RaftProtocol(group [32]byte) protocol.ID {
	return protocol.ID("/blackhole/raft/" + hex.EncodeToString(group[:8]) + "/1")
}

// Config is what a Transport is made of. Host, Member and Lookup are required.
type Config struct {
	Host   host.Host
	Group  [32]byte // the group's id
	Member uint64   // this member's raft id; not 0

	// Lookup gives the peer of a member of the current configuration, or of one that this peer
	// has reason to expect: a pending change, newer group information. It is called from any goroutine, is quick,
	// and does not call the Transport.
	Lookup func(member uint64) (peer.ID, bool)

	// ConfigIndex is that of the newest configuration known; nil: 0.
	ConfigIndex func() uint64

	// Info is told to a peer that is refused, so that it can find out why; nil: nothing is.
	Info func() *groupv1.GroupInfo

	// Snapshots has the states, and a snapshot's Data is small and travels with the message; nil: the
	// state is its Data, in memory.
	Snapshots Snapshots

	// Stranger is told of a peer that was refused as it is no member by what is known here, which
	// may be old: a member that lags behind cannot learn otherwise that a
	// newcomer leads. It does not block. May be nil.
	Stranger func(from peer.ID, member uint64)

	// Refused is told what a member answered that refused this one. It does not block. May be nil.
	Refused func(by peer.ID, why *groupv1.MemberWelcome)

	Recorder Recorder       // nil: nothing is counted
	Logger   *slog.Logger   // nil: nothing is logged
	Jitter   func() float64 // in [0, 1); nil: the runtime's randomness
	Limits   Limits
}

// Snapshots keeps the states of snapshots.
type Snapshots interface {
	// State opens the state of a snapshot.
	State(snap *raftpb.Snapshot) (io.ReadCloser, error)
	// Write stores a state, durable on return. It fails when the state does.
	Write(snap *raftpb.Snapshot, state io.WriterTo) error
}

// Receiver is the member that a Transport works for. Its methods are called from any
// goroutine, and not any more once Close has returned.
type Receiver interface {
	// Receive takes a message. While it waits, so does the stream that the message came on, whose sender drops in the end.
	Receive(m *raftpb.Message)
	// Unreachable says that messages to a member were lost.
	Unreachable(member uint64)
	// SnapshotSent says what became of a snapshot: it is called once for each given to Send.
	SnapshotSent(member uint64, ok bool)
}

// Recorder counts. Lanes are "control", "append" and "snapshot".
type Recorder interface {
	// Sent counts messages that left, and their bytes.
	Sent(lane string, messages, bytes int)
	// Received counts messages that came, and their bytes.
	Received(lane string, messages, bytes int)
	// Dropped counts messages that were not sent: "full", "unreachable", "unknown", "unfit", "busy", "closed".
	Dropped(lane, reason string, messages int)
	// Refused counts streams that were not served: a verdict, or what was wrong.
	Refused(reason string)
	// Snapshot counts a state sent ("out") or received ("in").
	Snapshot(direction string, bytes int64, err error)
}

// Transport moves Raft's messages between the members of a group. It is safe for concurrent use.
type Transport struct {
	Config
	handshakes *rpc.Limiter
	turn       chan struct{} // one snapshot is written at a time
	ctx        context.Context
	cancel     context.CancelFunc

	running sync.WaitGroup // streams, streams served, snapshots being sent

	mu        sync.Mutex // guards what follows, and additions to running
	receiver  Receiver   // nil before Start
	closed    bool
	epoch     uint64 // rises with each Recheck
	streams   map[streamKey]*peerStream
	inbound   map[streamKey]*inbound
	sending   map[uint64]bool // members that a snapshot is on its way to
	protected map[peer.ID]bool
}

// streamKey names a stream: at most one of each lane, to and from each member.
type streamKey struct {
	member uint64
	kind   groupv1.StreamKind
}

// New makes a Transport that does nothing before Start. Errors: Invalid.
func New(c Config) (*Transport, error) {
	switch {
	case c.Host == nil:
		return nil, fault.Invalidf("host", nil, "is required")
	case c.Group == [32]byte{}:
		return nil, fault.Invalidf("group", nil, "is required")
	case c.Member == 0:
		return nil, fault.Invalidf("member", c.Member, "is required")
	case c.Lookup == nil:
		return nil, fault.Invalidf("lookup", nil, "is required")
	}
	c.setDefaults()
	t := &Transport{
		Config: c, handshakes: rpc.NewLimiter(c.Limits.Handshakes, c.Limits.HandshakesPerPeer),
		turn:    make(chan struct{}, 1),
		streams: make(map[streamKey]*peerStream), inbound: make(map[streamKey]*inbound),
		sending: make(map[uint64]bool), protected: make(map[peer.ID]bool),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t, nil
}

func (c *Config) setDefaults() {
	c.Limits = c.Limits.withDefaults(c.Snapshots == nil)
	if c.Snapshots == nil {
		c.Snapshots = inMemory{}
	}
	if c.ConfigIndex == nil {
		c.ConfigIndex = func() uint64 { return 0 }
	}
	if c.Info == nil {
		c.Info = func() *groupv1.GroupInfo { return nil }
	}
	if c.Stranger == nil {
		c.Stranger = func(peer.ID, uint64) {}
	}
	if c.Refused == nil {
		c.Refused = func(peer.ID, *groupv1.MemberWelcome) {}
	}
	if c.Recorder == nil {
		c.Recorder = nopRecorder{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Jitter == nil {
		c.Jitter = rand.Float64
	}
}

// Start serves the streams of other members, and sends, until Close. It is called once.
func (t *Transport) Start(r Receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.receiver != nil {
		return
	}
	t.receiver = r
	t.Host.SetStreamHandler(RaftProtocol(t.Group), t.serve)
}

// Send gives messages on, without waiting. The Transport owns them from then on; what they
// share with Raft's log is only read. Those that cannot go are dropped and counted.
func (t *Transport) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		kind, ok := kindOf(m.GetType())
		switch {
		case !ok || m.GetFrom() != t.Member || m.GetTo() == t.Member:
			t.Recorder.Dropped(nameOf(kind), "unfit", 1)
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
		t.Recorder.Dropped(nameOf(key.kind), why, 1)
		return
	}
	if !l.queue.put(m) {
		t.Recorder.Dropped(nameOf(key.kind), "full", 1)
	}
}

// kind gives the lane to a member, made when there is none yet, or says why there is none.
func (t *Transport) stream(key streamKey) (*peerStream, string) {
	t.mu.Lock()
	l, epoch, up := t.streams[key], t.epoch, t.receiver != nil && !t.closed
	t.mu.Unlock()
	if l != nil || !up {
		return l, "closed"
	}
	for {
		id, ok := t.Lookup(key.member) // without the lock: who looks up may take others
		if !ok {
			return nil, "unknown"
		}
		t.mu.Lock()
		switch {
		case t.closed:
			t.mu.Unlock()
			return nil, "closed"
		case t.epoch != epoch: // what was looked up may be old
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

// protect keeps the connections to a member from being trimmed. The caller holds mu.
func (t *Transport) protect(id peer.ID) {
	if !t.protected[id] {
		t.protected[id] = true
		t.Host.ConnManager().Protect(id, tag)
	}
}

// Recheck looks all members up again and ends the streams to and from those that are none any
// more. It is called after each change of what Lookup answers.
func (t *Transport) Recheck() {
	t.mu.Lock()
	t.epoch++ // from here on, nothing begins by what was looked up before
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
			t.Recorder.Refused("removed")
			_ = in.stream.Reset()
			t.forgetInbound(key, in)
		}
	}
	t.unprotect()
}

// is tells whether a member is a peer.
func (t *Transport) is(member uint64, id peer.ID) bool {
	known, ok := t.Lookup(member)
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

// unprotect gives up the connections that no lane and no stream stands for.
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
			t.Host.ConnManager().Unprotect(id, tag)
		}
	}
}

// Close ends all streams and waits for those who serve them. It is not called by a Receiver.
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
		t.Host.RemoveStreamHandler(RaftProtocol(t.Group))
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

// nopRecorder is the Recorder of those who have none.
type nopRecorder struct{}

func (nopRecorder) Sent(string, int, int)         {}
func (nopRecorder) Received(string, int, int)     {}
func (nopRecorder) Dropped(string, string, int)   {}
func (nopRecorder) Refused(string)                {}
func (nopRecorder) Snapshot(string, int64, error) {}

// open opens a stream to a member and is welcomed on it. The stream ends with ctx.
func (t *Transport) open(ctx context.Context, id peer.ID, key streamKey) (network.Stream, error) {
	dial, cancel := context.WithTimeout(ctx, t.Limits.Dial)
	defer cancel()
	// Raft's own pace of dialling, and never by a relay.
	s, err := t.Host.NewStream(network.WithForceDirectDial(dial, tag), id, RaftProtocol(t.Group))
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

// boundStream is a stream that a context ends; Reset lets the context go.
type boundStream struct {
	network.Stream
	release func() bool
}

func (g *boundStream) Reset() error {
	g.release()
	return g.Stream.Reset()
}
