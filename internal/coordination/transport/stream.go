package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// kind is the way to one member for one sort of message. One goroutine runs it: it opens the
// stream when there is something to say, and again when it broke.
type peerStream struct {
	t      *Transport
	key    streamKey
	peer   peer.ID
	queue  *sendQueue
	wake   chan struct{} // has an element when the member has shown to be there
	ctx    context.Context
	cancel context.CancelFunc

	spare []*raftpb.Message
	buf   []byte
}

func newPeerStream(t *Transport, key streamKey, id peer.ID) *peerStream {
	out := newSendQueue(t.Limits.ControlQueue, t.Limits.ControlBytes)
	if key.kind == groupv1.StreamKind_STREAM_KIND_APPEND {
		out = newSendQueue(t.Limits.AppendQueue, t.Limits.AppendBytes)
	}
	l := &peerStream{t: t, key: key, peer: id, queue: out, wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(t.ctx)
	return l
}

// run lasts until the lane's context ends.
func (l *peerStream) run() {
	defer l.cancel()
	for failures := 0; ; failures++ {
		select {
		case <-l.queue.ready:
			l.resignal()
		case <-l.ctx.Done():
			return
		}
		served, err := l.connect()
		if l.ctx.Err() != nil {
			return
		}
		if served > l.t.Limits.Backoff {
			failures = 0 // not one that welcomes and breaks at once
		}
		l.drop(err)
		if !l.backOff(failures, err) {
			return
		}
	}
}

// resignal puts back the signal that the box is not empty.
func (l *peerStream) resignal() {
	select {
	case l.queue.ready <- struct{}{}:
	default:
	}
}

// connect opens the stream and serves it until it breaks, and says for how long that was.
func (l *peerStream) connect() (time.Duration, error) {
	s, err := l.t.open(l.ctx, l.peer, l.key)
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Reset() }()
	begin := time.Now()
	err = l.serve(s)
	return time.Since(begin), err
}

// drop drops what has gathered for a member that could not be reached: it is old when it can be.
func (l *peerStream) drop(err error) {
	select {
	case <-l.queue.ready: // before the box is emptied: what comes after sets it again
	default:
	}
	l.spare, _ = l.queue.take(l.spare)
	if n := len(l.spare); n > 0 {
		l.t.Recorder.Dropped(nameOf(l.key.kind), "unreachable", n)
	}
	clear(l.spare)
	l.t.Logger.Debug("lane broke", "lane", nameOf(l.key.kind), "member", l.key.member, "peer", l.peer, "error", err)
	l.t.receiver.Unreachable(l.key.member)
}

// backOff waits before the next attempt: twice as long after each failure, by chance up to
// half of it less, and not any longer once the member is heard from.
func (l *peerStream) backOff(failures int, err error) bool {
	most := l.t.Limits.Backoff
	wait := most
	if refused := new(rejection); failures < 5 && !errors.As(err, &refused) {
		wait = min(most, most/20<<failures)
	}
	timer := time.NewTimer(wait - time.Duration(l.t.Jitter()*float64(wait)/2))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.wake:
	case <-l.ctx.Done():
		return false
	}
	return true
}

// retryNow cuts the wait for the next attempt short.
func (l *peerStream) retryNow() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// serve writes what comes into the box, and probes in between, until the stream breaks or a
// probe is not answered.
func (l *peerStream) serve(s network.Stream) error {
	var answers atomic.Int64
	broken := make(chan error, 1)
	go func() { broken <- listen(s, &answers) }()
	defer func() { _ = s.Reset(); <-broken }()

	ticker := time.NewTicker(l.t.Limits.Ping)
	defer ticker.Stop()
	probe := probe{silence: l.t.Limits.Silence}
	if l.key.kind == groupv1.StreamKind_STREAM_KIND_APPEND {
		probe.silence *= 4 // it may stand behind megabytes, and the control lane notices sooner
	}
	for {
		var err error
		select {
		case <-l.queue.ready:
			err = l.flush(s)
		case <-ticker.C:
			if probe.due(answers.Load()) {
				err = l.write(s, make([]byte, frameHead))
			} else if probe.late() {
				err = fault.New("", fault.Timeout, "no answer for %v", probe.silence)
			}
		case err = <-broken:
			broken <- err
		case <-l.ctx.Done():
			err = l.ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// probe is the question whether the other end is there, of which one at a time is on its way.
type probe struct {
	silence time.Duration
	asked   int64
	at      time.Time // of the last one asked
}

// due tells whether all were answered, so that it is time for the next one, which counts as asked.
func (p *probe) due(answers int64) bool {
	if answers < p.asked {
		return false
	}
	p.asked, p.at = p.asked+1, time.Now()
	return true
}

func (p *probe) late() bool { return time.Since(p.at) > p.silence }

// listen counts the answers to probes, one byte each, until the stream breaks.
func listen(s network.Stream, answers *atomic.Int64) error {
	var b [16]byte
	for {
		n, err := s.Read(b[:])
		answers.Add(int64(n))
		if err != nil {
			return err
		}
	}
}

// flush writes all that waits, in few writes.
func (l *peerStream) flush(s network.Stream) error {
	queue, lost := l.queue.take(l.spare)
	l.spare = queue
	defer clear(queue)
	if lost {
		l.t.receiver.Unreachable(l.key.member)
	}
	for len(queue) > 0 {
		n, fit := 0, 0
		l.buf = l.buf[:0]
		for n < len(queue) && len(l.buf) < batchSize {
			if l.encode(queue[n]) {
				fit++
			}
			n++
		}
		if err := l.write(s, l.buf); err != nil {
			l.t.Recorder.Dropped(nameOf(l.key.kind), "unreachable", len(queue))
			return err
		}
		l.t.Recorder.Sent(nameOf(l.key.kind), fit, len(l.buf))
		queue = queue[n:]
	}
	if cap(l.buf) > keptSize {
		l.buf = nil
	}
	return nil
}

// encode appends a message to the batch. One that is too large for the wire could never go: the configuration is wrong then.
func (l *peerStream) encode(m *raftpb.Message) bool {
	limit := maxControl
	if l.key.kind == groupv1.StreamKind_STREAM_KIND_APPEND {
		limit = MaxFrame
	}
	var err error
	if l.buf, err = appendFrame(l.buf, m, limit); err != nil {
		l.t.Recorder.Dropped(nameOf(l.key.kind), "unfit", 1)
		l.t.Logger.Error("message cannot be sent", "type", m.GetType(), "member", l.key.member, "error", err)
	}
	return err == nil
}

// write has a deadline for each piece: a slow line is no broken one.
func (l *peerStream) write(s network.Stream, b []byte) error {
	for len(b) > 0 {
		piece := b[:min(len(b), chunkSize)]
		_ = s.SetWriteDeadline(deadline(l.t.Limits.Write))
		if _, err := s.Write(piece); err != nil {
			return err
		}
		b = b[len(piece):]
	}
	return nil
}

// rejection is the error of a dialler that was not welcome.
type rejection struct{ welcome *groupv1.MemberWelcome }

func (r *rejection) Error() string { return "refused: " + resultName(r.welcome.GetResult()) }

// handshake says who calls, and reads whether that is welcome. When nothing at all is answered, the
// connection is taken for dead and closed, so that the next attempt makes a new one.
func (t *Transport) handshake(s network.Stream, key streamKey) error {
	if s.Conn().Stat().Limited {
		return fault.New("", fault.Unavailable, "the connection is relayed")
	}
	if err := s.Scope().SetService(service); err != nil {
		return fault.As("", fault.LimitReached, err)
	}
	_ = s.SetDeadline(deadline(t.Limits.Hello))
	hello := &groupv1.MemberHello{
		GroupId: t.Group[:], From: t.Member, To: key.member, Kind: key.kind, ConfigIndex: t.ConfigIndex(),
	}
	welcome := new(groupv1.MemberWelcome)
	err := writeFrame(s, hello, maxHello)
	if err == nil {
		err = readAnswer(s, welcome)
	}
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		_ = s.Conn().Close()
	}
	if err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	if welcome.GetResult() != groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED {
		t.Refused(s.Conn().RemotePeer(), welcome)
		return fault.As("", fault.Forbidden, &rejection{welcome})
	}
	return s.SetDeadline(time.Time{})
}

// readAnswer reads one frame and not a byte more: what follows is for others to read.
func readAnswer(s io.Reader, welcome *groupv1.MemberWelcome) error {
	var head [frameHead]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxWelcome {
		return fault.New("", fault.TooLarge, "an answer of %d bytes is above the bound of %d", size, maxWelcome)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(s, b); err != nil {
		return err
	}
	return unmarshal(b, welcome)
}
