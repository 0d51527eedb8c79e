package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// peerStream sends one kind of message to one member. Its goroutine opens the stream on demand, and again
// after a failure.
type peerStream struct {
	t      *Transport
	key    streamKey
	peer   peer.ID
	queue  *sendQueue
	wake   chan struct{} // has an element after a sign of life of the member
	ctx    context.Context
	cancel context.CancelFunc

	spare []*raftpb.Message
	buf   []byte
}

func newPeerStream(t *Transport, key streamKey, id peer.ID) *peerStream {
	out := newSendQueue(controlQueue, controlBytes)
	if key.kind == groupv1.StreamKind_STREAM_KIND_APPEND {
		out = newSendQueue(appendQueue, t.config.Limits.AppendBytes)
	}
	l := &peerStream{t: t, key: key, peer: id, queue: out, wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(t.ctx)
	return l
}

// run sends until the stream's context ends.
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
		if served > longestRest {
			failures = 0 // not a member that accepts and breaks at once
		}
		l.drop(err)
		if !l.backOff(failures, err) {
			return
		}
	}
}

// resignal signals a queue that is not empty.
func (l *peerStream) resignal() {
	pause.Wake(l.queue.ready)
}

// connect opens the stream and serves it until a failure. It returns the duration of the service.
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

// drop drops the queue of an unreachable member: its messages would arrive too late.
func (l *peerStream) drop(err error) {
	select {
	case <-l.queue.ready: // before the queue is emptied: later messages signal again
	default:
	}
	l.spare, _ = l.queue.take(l.spare)
	if n := len(l.spare); n > 0 {
		l.t.config.Metrics.Dropped(nameOf(l.key.kind), "unreachable", n)
	}
	clear(l.spare)
	l.t.config.Logger.Debug("lane broke", "lane", nameOf(l.key.kind), "member", l.key.member, "peer", l.peer, "error", err)
	l.t.receiver.Unreachable(l.key.member, false)
}

// backOff pauses before the next attempt: twice as long after each failure, minus up to half at random, and no
// longer than until a sign of life.
func (l *peerStream) backOff(failures int, err error) bool {
	wait := longestRest
	if refused := new(rejection); failures < 5 && !errors.As(err, &refused) {
		wait = min(longestRest, longestRest/20<<failures)
	}
	select {
	case <-time.After(wait - time.Duration(l.t.config.Jitter()*float64(wait)/2)):
	case <-l.wake:
	case <-l.ctx.Done():
		return false
	}
	return true
}

// retryNow ends the pause before the next attempt.
func (l *peerStream) retryNow() {
	pause.Wake(l.wake)
}

// serve writes queued messages, and probes between them, until the stream fails or a probe stays unanswered.
func (l *peerStream) serve(s network.Stream) error {
	var answers atomic.Int64
	broken := make(chan error, 1)
	go func() { broken <- listen(s, &answers) }()
	defer func() { _ = s.Reset(); <-broken }()

	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	probe := probe{silence: silence}
	if l.key.kind == groupv1.StreamKind_STREAM_KIND_APPEND {
		probe.silence *= 4 // a probe may wait behind megabytes, and the control stream notices earlier
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

// probe checks the other end, with one question in flight at a time.
type probe struct {
	silence time.Duration
	asked   int64
	at      time.Time // of the last question
}

// due reports whether all probes are answered, and counts the next one as sent.
func (p *probe) due(answers int64) bool {
	if answers < p.asked {
		return false
	}
	p.asked, p.at = p.asked+1, time.Now()
	return true
}

func (p *probe) late() bool { return time.Since(p.at) > p.silence }

// listen counts the answers to probes, one byte each, until the stream fails.
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

// flush writes all queued messages in few writes.
func (l *peerStream) flush(s network.Stream) error {
	queue, lost := l.queue.take(l.spare)
	l.spare = queue
	defer clear(queue)
	if lost {
		l.t.receiver.Unreachable(l.key.member, false)
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
			l.t.config.Metrics.Dropped(nameOf(l.key.kind), "unreachable", len(queue))
			return err
		}
		l.t.config.Metrics.Sent(nameOf(l.key.kind), fit, len(l.buf))
		queue = queue[n:]
	}
	if cap(l.buf) > keptSize {
		l.buf = nil
	}
	return nil
}

// encode appends a message to the batch. A message above the wire's limit is dropped: the configuration is
// wrong then.
func (l *peerStream) encode(m *raftpb.Message) bool {
	limit := maxControl
	if l.key.kind == groupv1.StreamKind_STREAM_KIND_APPEND {
		limit = MaxFrame
	}
	var err error
	if l.buf, err = appendFrame(l.buf, m, limit); err != nil {
		l.t.config.Metrics.Dropped(nameOf(l.key.kind), "unfit", 1)
		l.t.config.Logger.Error("message cannot be sent", "type", m.GetType(), "member", l.key.member, "error", err)
	}
	return err == nil
}

// write sets a deadline for each piece: a slow line is not a failure.
func (l *peerStream) write(s network.Stream, b []byte) error {
	for len(b) > 0 {
		piece := b[:min(len(b), chunkSize)]
		_ = s.SetWriteDeadline(deadline(writeWithin))
		if _, err := s.Write(piece); err != nil {
			return err
		}
		b = b[len(piece):]
	}
	return nil
}

// rejection is the dialler's error after a handshake without acceptance.
type rejection struct{ welcome *groupv1.MemberWelcome }

func (r *rejection) Error() string {
	if r.welcome.GetResult() == groupv1.HandshakeResult_HANDSHAKE_RESULT_UNKNOWN_STREAM {
		return fmt.Sprintf("refused: the member does not know streams of kind %d: upgrade it", r.welcome.GetRefusedKind())
	}
	return "refused: " + resultName(r.welcome.GetResult())
}

// handshake introduces this member and reads the result. Without any answer it closes the connection as dead,
// so that the next attempt opens another.
func (t *Transport) handshake(s network.Stream, key streamKey) error {
	if s.Conn().Stat().Limited {
		return fault.New("", fault.Unavailable, "the connection is relayed")
	}
	if err := s.Scope().SetService(service); err != nil {
		return fault.As("", fault.LimitReached, err)
	}
	_ = s.SetDeadline(deadline(greetWithin))
	hello := &groupv1.MemberHello{
		GroupId: t.config.Group[:], From: t.config.Member, To: key.member, Kind: key.kind, Process: t.config.Process,
	}
	hello.Levels, hello.Level = t.ownLevels()
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
		t.config.Refused(s.Conn().RemotePeer(), welcome)
		if why := t.fits(welcome); welcome.GetResult() == groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL && why != nil {
			t.config.WrongLevel(s.Conn().RemotePeer(), why)
		}
		return fault.As("", fault.Forbidden, &rejection{welcome})
	}
	if t.hasAnother(key.member, welcome.GetProcess()) {
		_ = s.Conn().Close() // the next one may lead to the other process
		return fault.New("", fault.Unavailable, "another process than before answers as member %x", key.member)
	}
	t.note(key.member, welcome.GetLevels())
	return s.SetDeadline(time.Time{})
}

// readAnswer reads exactly one frame; the following bytes belong to other readers.
func readAnswer(s io.Reader, welcome *groupv1.MemberWelcome) error {
	var head [frameHead]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxHello {
		return fault.New("", fault.TooLarge, "an answer of %d bytes is above the bound of %d", size, maxHello)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(s, b); err != nil {
		return err
	}
	return unmarshal(b, welcome)
}
