package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// A snapshot has a stream of its own: the handshake, the message without the state, the state in chunks, a
// frame of length 0, and the receiver's byte after the durable write. An earlier end is a failure on both
// sides.

// sendSnapshot sends a snapshot in the background, one at a time to each member.
func (t *Transport) sendSnapshot(m *raftpb.Message) {
	to := m.GetTo()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.receiver == nil {
		t.config.Metrics.Dropped("snapshot", "closed", 1)
		return
	}
	if t.sending[to] {
		t.config.Metrics.Dropped("snapshot", "busy", 1)
		t.running.Go(func() { t.receiver.SnapshotSent(to, false) }) // not on Raft's own goroutine
		return
	}
	t.sending[to] = true
	t.running.Go(func() {
		n, err := t.transmit(m)
		t.mu.Lock()
		delete(t.sending, to)
		t.mu.Unlock()
		t.config.Metrics.Snapshot("out", err)
		if err != nil {
			t.config.Logger.Warn("snapshot not sent", "member", to, "bytes", n, "error", err)
		}
		t.receiver.SnapshotSent(to, err == nil)
	})
}

// transmit sends a snapshot and waits for the member's confirmation.
func (t *Transport) transmit(m *raftpb.Message) (int64, error) {
	ctx, cancel := context.WithTimeout(t.ctx, t.config.Limits.SnapshotTime)
	defer cancel()
	id, ok := t.config.Lookup(m.GetTo())
	if !ok {
		return 0, fault.New("", fault.NotFound, "member %x is not known", m.GetTo())
	}
	state, err := t.config.Snapshots.State(m.GetSnapshot())
	if err != nil {
		return 0, err
	}
	defer func() { _ = state.Close() }()
	s, err := t.open(ctx, id, streamKey{m.GetTo(), groupv1.StreamKind_STREAM_KIND_SNAPSHOT})
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Reset() }()
	w := &chunkWriter{w: s, before: func() { _ = s.SetWriteDeadline(deadline(writeWithin)) }}
	if err := w.head(m); err != nil {
		return 0, err
	}
	n, err := io.CopyBuffer(w, struct{ io.Reader }{io.LimitReader(state, t.config.Limits.MaxSnapshot+1)}, make([]byte, chunkSize))
	if n > t.config.Limits.MaxSnapshot {
		return n, fault.New("", fault.TooLarge, "the state is above the bound of %d bytes", t.config.Limits.MaxSnapshot)
	}
	if err == nil {
		err = w.end()
	}
	if err == nil {
		_, err = io.ReadFull(s, make([]byte, 1)) // the durable write may take as long as ctx
	}
	return n, err
}

// chunkWriter writes each piece as a frame.
type chunkWriter struct {
	w      io.Writer
	before func() // called before each write
	buf    []byte
}

func (c *chunkWriter) head(m *raftpb.Message) error {
	c.before()
	return writeFrame(c.w, m, maxControl)
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // a frame of length 0 is the end
	}
	c.before()
	c.buf = append(binary.BigEndian.AppendUint32(c.buf[:0], uint32(len(p))), p...)
	if _, err := c.w.Write(c.buf); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *chunkWriter) end() error {
	c.before()
	_, err := c.w.Write(make([]byte, frameHead))
	return err
}

// takeSnapshot receives a snapshot. A newer transfer ends an older one and waits for its end.
func (t *Transport) takeSnapshot(in *inbound) error {
	ctx, cancel := context.WithTimeout(t.ctx, t.config.Limits.SnapshotTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = in.stream.Reset() })()
	t.endOtherSnapshots(in)
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	n, m, err := t.store(in)
	t.config.Metrics.Snapshot("in", err)
	if err != nil {
		t.config.Logger.Warn("snapshot not received", "member", in.key.member, "bytes", n, "error", err)
		return err
	}
	t.config.Metrics.Received("snapshot", 1, int(n))
	t.receiver.Receive(m)
	return t.answer(in.stream)
}

func (t *Transport) endOtherSnapshots(in *inbound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, other := range t.inbound {
		if key.kind == groupv1.StreamKind_STREAM_KIND_SNAPSHOT && other != in {
			_ = other.stream.Reset()
		}
	}
}

// store reads the message and stores the state.
func (t *Transport) store(in *inbound) (int64, *raftpb.Message, error) {
	in.stream.idle = writeWithin
	b, err := in.frames.next(maxControl)
	if err != nil {
		return 0, nil, err
	}
	m, err := t.parse(in, b)
	if err != nil {
		t.config.Metrics.Refused("message")
		return 0, nil, err
	}
	meta := m.GetSnapshot().GetMetadata()
	if meta.GetIndex() == 0 || meta.GetTerm() == 0 || meta.GetConfState() == nil {
		t.config.Metrics.Refused("message")
		return 0, nil, fault.New("", fault.Unauthentic, "a snapshot without its metadata")
	}
	body := &chunkReader{frames: in.frames, left: t.config.Limits.MaxSnapshot}
	if err := t.config.Snapshots.Write(m.Snapshot, body); err != nil {
		return body.read, nil, err
	}
	if !body.whole {
		return body.read, nil, fault.New("", fault.Internal, "the state was stored without its end")
	}
	return body.read, m, nil
}

// chunkReader reads the state of a snapshot from its stream.
type chunkReader struct {
	frames *frames
	left   int64 // bytes still allowed
	read   int64
	whole  bool // the end was read
}

// WriteTo implements io.WriterTo. It fails unless the state ends within its bounds.
func (c *chunkReader) WriteTo(w io.Writer) (int64, error) {
	for {
		b, err := c.frames.next(chunkSize)
		switch {
		case errors.Is(err, io.EOF):
			return c.read, io.ErrUnexpectedEOF
		case err != nil:
			return c.read, err
		case len(b) == 0:
			c.whole = true
			return c.read, nil
		case int64(len(b)) > c.left:
			return c.read, fault.New("", fault.TooLarge, "the state is above the bound")
		}
		if _, err := w.Write(b); err != nil {
			return c.read, err
		}
		c.read, c.left = c.read+int64(len(b)), c.left-int64(len(b))
	}
}
