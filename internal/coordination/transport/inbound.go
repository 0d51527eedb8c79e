package transport

import (
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// inbound is a member's stream after the handshake.
type inbound struct {
	key     streamKey
	peer    peer.ID
	process uint64 // of the member
	stream  *idleTimeoutStream
	frames  *frames
}

// serve handles the protocol.
func (t *Transport) serve(s network.Stream) {
	if !t.handshakes.Enter(s) {
		t.config.Metrics.Refused("busy")
		_ = s.Reset()
		return
	}
	in, err := t.receive(s)
	t.handshakes.Leave(s)
	if err != nil {
		t.config.Logger.Debug("stream refused", "peer", s.Conn().RemotePeer(), "error", err)
	}
	if in == nil {
		return // receive has ended the stream
	}
	defer t.running.Done()
	defer t.forgetInbound(in.key, in)
	t.retryNow(in.key.member)
	if in.key.kind == groupv1.StreamKind_STREAM_KIND_SNAPSHOT {
		err = t.takeSnapshot(in)
	} else {
		err = t.read(in)
	}
	t.config.Logger.Debug("stream ended", "lane", nameOf(in.key.kind), "member", in.key.member, "peer", in.peer, "error", err)
	if err != nil {
		_ = s.Reset()
		return
	}
	_ = s.Close()
}

// receive performs the handshake. Without an error the stream counts as running; otherwise it is ended.
func (t *Transport) receive(s network.Stream) (*inbound, error) {
	p := &idleTimeoutStream{Stream: s}
	f := newFrames(p, s.Scope())
	hello, err := t.readHello(s, f)
	if err != nil {
		t.config.Metrics.Refused("hello")
		_ = s.Reset()
		return nil, err
	}
	in := &inbound{
		key: streamKey{hello.GetFrom(), hello.GetKind()}, peer: s.Conn().RemotePeer(), process: hello.GetProcess(), stream: p, frames: f,
	}
	welcome := t.admit(in, hello)
	if err := writeFrame(s, welcome, maxHello); err != nil && welcome.Result == groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED {
		t.forgetInbound(in.key, in)
		t.running.Done()
		_ = s.Reset()
		return nil, err
	}
	if welcome.Result == groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED {
		_ = s.SetDeadline(time.Time{})
		return in, nil
	}
	t.config.Metrics.Refused(resultName(welcome.Result))
	if welcome.Result == groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL {
		t.config.WrongLevel(in.peer, t.fits(hello))
	}
	_ = s.Close()
	if welcome.Result == groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER && hello.GetFrom() != t.config.Member {
		t.config.Stranger(in.peer, hello.GetFrom())
	}
	return nil, fault.As("", fault.Forbidden, &rejection{welcome})
}

// readHello reads a dialler's introduction.
func (t *Transport) readHello(s network.Stream, f *frames) (*groupv1.MemberHello, error) {
	if s.Conn().Stat().Limited {
		return nil, fault.New("", fault.Forbidden, "the connection is relayed")
	}
	if err := s.Scope().SetService(service); err != nil {
		return nil, fault.As("", fault.LimitReached, err)
	}
	_ = s.SetDeadline(deadline(greetWithin))
	hello := new(groupv1.MemberHello)
	if err := f.message(hello, maxHello); err != nil {
		return nil, err
	}
	if hello.GetKind() == groupv1.StreamKind_STREAM_KIND_UNSPECIFIED {
		return nil, fault.New("", fault.Unauthentic, "names no kind of stream")
	}
	return hello, nil
}

// admit checks a dialler. An accepted stream replaces an older one.
func (t *Transport) admit(in *inbound, hello *groupv1.MemberHello) *groupv1.MemberWelcome {
	for {
		t.mu.Lock()
		epoch := t.epoch
		t.mu.Unlock()
		welcome := t.check(in.peer, hello)
		if welcome.Result != groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED || t.register(in, epoch) {
			return welcome
		}
		if t.ctx.Err() != nil {
			return &groupv1.MemberWelcome{GroupId: t.config.Group[:]} // no result: this member is closing
		}
	}
}

// register makes the stream the current one of its member and kind, unless Recheck ran since epoch.
func (t *Transport) register(in *inbound, epoch uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.epoch != epoch {
		return false
	}
	if older := t.inbound[in.key]; older != nil {
		_ = older.stream.Reset()
	}
	t.inbound[in.key] = in
	t.protect(in.peer)
	t.running.Add(1)
	return true
}

// check checks a dialler's claim of a member.
func (t *Transport) check(from peer.ID, hello *groupv1.MemberHello) *groupv1.MemberWelcome {
	w := &groupv1.MemberWelcome{Result: groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED, GroupId: t.config.Group[:], Process: t.config.Process}
	w.Levels, w.Level = t.ownLevels()
	switch {
	case string(hello.GetGroupId()) != string(t.config.Group[:]):
		w.Result = groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_GROUP
	case hello.GetTo() != t.config.Member:
		w.Result = groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_MEMBER
	case !t.is(hello.GetFrom(), from):
		w.Result = groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER
	case nameOf(hello.GetKind()) == "none":
		w.Result = groupv1.HandshakeResult_HANDSHAKE_RESULT_UNKNOWN_STREAM
		w.RefusedKind = uint32(hello.GetKind())
	case t.fits(hello) != nil:
		w.Result = groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL
	case t.hasAnother(hello.GetFrom(), hello.GetProcess()):
		w.Result = groupv1.HandshakeResult_HANDSHAKE_RESULT_OTHER_PROCESS
	default:
		t.note(hello.GetFrom(), hello.GetLevels())
	}
	return w
}

// hasAnother reports whether this member has a living stream of a member from another process. Two processes with one raft
// id, such as one on a copied data directory, would vote twice: the one that is connected stays. A process that has ended
// counts until its connections are closed, or for twice the silence.
func (t *Transport) hasAnother(member, process uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, in := range t.inbound {
		if key.member == member && in.process != process && in.process != 0 && process != 0 {
			return true
		}
	}
	return false
}

// resultName returns "wrong_group" for HANDSHAKE_RESULT_WRONG_GROUP.
func resultName(v groupv1.HandshakeResult) string {
	return strings.ToLower(strings.TrimPrefix(v.String(), "HANDSHAKE_RESULT_"))
}

// retryNow makes the streams to a member try again at once after its sign of life.
func (t *Transport) retryNow(member uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, kind := range []groupv1.StreamKind{groupv1.StreamKind_STREAM_KIND_CONTROL, groupv1.StreamKind_STREAM_KIND_APPEND} {
		if l := t.streams[streamKey{member, kind}]; l != nil {
			l.retryNow()
		}
	}
}

// read passes the messages of a stream to the receiver until its end.
func (t *Transport) read(in *inbound) error {
	limit := maxControl
	if in.key.kind == groupv1.StreamKind_STREAM_KIND_APPEND {
		limit = MaxFrame
	}
	in.stream.idle = 2 * silence // a living member probes
	for {
		b, err := in.frames.next(limit)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			if err := t.answer(in.stream); err != nil {
				return err
			}
			continue
		}
		m, err := t.parse(in, b)
		if err != nil {
			t.config.Metrics.Refused("message")
			return err
		}
		t.config.Metrics.Received(nameOf(in.key.kind), 1, len(b))
		t.receiver.Receive(m)
	}
}

// answer answers a probe.
func (t *Transport) answer(s network.Stream) error {
	_ = s.SetWriteDeadline(deadline(writeWithin))
	_, err := s.Write([]byte{1})
	return err
}

// parse decodes a message and checks that it fits its stream.
func (t *Transport) parse(in *inbound, b []byte) (*raftpb.Message, error) {
	m, err := decode(b)
	if err != nil {
		return nil, err
	}
	kind, ok := kindOf(m.GetType())
	switch {
	case !ok || kind != in.key.kind:
		return nil, fault.New("", fault.Forbidden, "%v does not belong on lane %s", m.GetType(), nameOf(in.key.kind))
	case m.GetFrom() != in.key.member || m.GetTo() != t.config.Member:
		return nil, fault.New("", fault.Forbidden, "message from %x to %x on a stream from %x to %x",
			m.GetFrom(), m.GetTo(), in.key.member, t.config.Member)
	}
	return m, nil
}
