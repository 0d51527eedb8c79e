package trade

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	libp2p "github.com/libp2p/go-libp2p/core/network"

	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// Bounds of the streams to what was bought.
const (
	accessService  = "blackhole.access"
	maxOpen        = 512 // streams of all holders
	maxOpenPerPeer = 256
	maxOpening     = 256              // bytes of the first message of each side
	openTime       = 10 * time.Second // to open a stream, the connection to the local service included
	piece          = 32 << 10         // bytes that wait in each direction of a connection
)

// duplex is a connection whose two directions end one by one.
type duplex interface {
	io.Reader
	writer
}

type writer interface {
	io.Writer
	CloseWrite() error
}

// line is one TCP connection over one stream.
type line struct {
	stream libp2p.Stream
	conn   *net.TCPConn
}

// cut ends a line at once: what is under way in either direction is lost.
func (l line) cut() {
	_ = l.stream.Reset()
	_ = l.conn.SetLinger(0)
	_ = l.conn.Close()
}

// counters count the bytes of lines, those of the holder and those of the service, and the lines that are open.
type counters struct{ open, sent, received atomic.Uint64 }

// traffic is what goes through the lines of a given grant. Desk.mu guards all but the counters.
type traffic struct {
	counters
	places uint32 // taken: by open lines and by lines that still connect
	lines  map[line]struct{}
	timer  *time.Timer // at the end of the grant
}

// pump carries bytes between the holder and the service until both directions have ended, or one fails. It closes
// the line.
func (l line) pump(holder, service duplex, counts ...*counters) {
	for _, c := range counts {
		c.open.Add(1)
		defer c.open.Add(^uint64(0)) // one less
	}
	var both sync.WaitGroup
	way := func(to, from duplex, of func(*counters) *atomic.Uint64) {
		err := copyAll(to, from, func(n int) {
			for _, c := range counts {
				of(c).Add(uint64(n))
			}
		})
		if err != nil {
			l.cut()
		}
	}
	both.Go(func() { way(service, holder, func(c *counters) *atomic.Uint64 { return &c.sent }) })
	way(holder, service, func(c *counters) *atomic.Uint64 { return &c.received })
	both.Wait()
	_ = l.stream.Close()
	_ = l.conn.Close()
}

// copyAll carries bytes to the end of a direction, and ends it at the other side too. A slow receiver slows the
// sender down.
func copyAll(to, from duplex, count func(n int)) error {
	buf := make([]byte, piece)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			count(n) // before anybody has them: who answers finds them counted
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return to.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}

// accept serves one stream of a consumer.
func (d *Desk) accept(s libp2p.Stream) {
	if !d.limiter.Enter(s) {
		_ = s.Reset()
		return
	}
	defer d.limiter.Leave(s)
	if err := d.serve(s); err != nil {
		d.Logger.Debug("a stream to a service ended", "peer", s.Conn().RemotePeer(), "error", err)
		_ = s.Reset()
	}
}

func (d *Desk) serve(s libp2p.Stream) error {
	codec, err := opening(s, true)
	if err != nil {
		return err
	}
	req := &pb.OpenRequest{}
	if err := codec.ReadMessage(req); err != nil && !rpc.IsFault(err) {
		return err
	} else if err != nil {
		_ = codec.WriteMessage(&pb.OpenResponse{Refusal: rpc.Refuse(err)})
		return err
	}
	s = &opened{s, codec}
	var l line
	var t *traffic
	check := req.GetCheckOffer() != ""
	if check {
		defer d.checks.Leave(s)
		l, err = d.admitCheck(s, req)
	} else if l, t, err = d.admit(s, req.GetToken()); err == nil {
		defer d.leave(l, req.GetToken())
	}
	if err != nil {
		d.refused(err)
		if err := codec.WriteMessage(&pb.OpenResponse{Refusal: rpc.Refuse(err)}); err != nil {
			return err
		}
		return s.Close()
	}
	if err := codec.WriteMessage(&pb.OpenResponse{}); err != nil {
		l.cut()
		return err
	}
	if check {
		l.carryCheck()
		return nil
	}
	_ = s.SetDeadline(time.Time{})
	l.pump(s, l.conn, &t.counters, &d.sold)
	return nil
}

// opened is a stream behind its first messages. What the other side sent right after them was read with them.
type opened struct {
	libp2p.Stream
	codec *rpc.Codec
}

// Read implements io.Reader.
func (o *opened) Read(p []byte) (int, error) { return o.codec.Read(p) }

// opening accounts for a stream, and bounds the time of its first messages.
func opening(s libp2p.Stream, strict bool) (*rpc.Codec, error) {
	if err := s.Scope().SetService(accessService); err != nil {
		return nil, fault.As("", fault.LimitReached, err)
	}
	if err := s.Scope().ReserveMemory(2*piece, libp2p.ReservationPriorityMedium); err != nil { // until its end
		return nil, fault.As("", fault.LimitReached, err)
	}
	_ = s.SetDeadline(time.Now().Add(openTime))
	return rpc.NewCodec(s, s.Scope(), rpc.Format{MaxSize: maxOpening, Strict: strict}), nil
}

// admit connects the holder of a live grant to the local service, and confirms a grant that is held. The line
// belongs to the grant from then on: whatever ends that cuts it. The caller must leave.
func (d *Desk) admit(s libp2p.Stream, token uint64) (l line, t *traffic, err error) {
	ctx, cancel := context.WithTimeout(d.life, openTime)
	defer cancel()
	by := s.Conn().RemotePeer().String()
	e, err := d.granter.current.Load().Holder(by, token, d.now())
	if err != nil {
		return l, nil, err
	}
	service, err := d.servedOf(e.OfferId)
	if err != nil {
		return l, nil, err
	}
	if e.State == api.Grant_STATE_HELD {
		if _, err := d.hooks.activate(ctx, e, nil); err != nil {
			return l, nil, err
		}
		if _, err := d.granter.current.Load().Holder(by, token, d.now()); err != nil { // it was revoked
			return l, nil, err
		}
	}
	if err := d.enter(token, service.Connections); err != nil {
		return l, nil, err
	}
	if l, err = d.reach(ctx, s, e.OfferId, service); err != nil {
		d.leave(l, token)
		return l, nil, err
	}
	if t = d.join(l, token); t == nil {
		d.leave(l, token)
		_ = l.conn.Close()
		return l, nil, fault.As("", fault.Gone, errEnded)
	}
	return l, t, nil
}

// reach connects a stream to the local service of an offer, whose address stays private.
func (d *Desk) reach(ctx context.Context, s libp2p.Stream, offer string, service served) (l line, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", service.Address)
	if err != nil {
		d.Logger.Warn("the service of an offer does not answer",
			"offer", offer, "address", service.Address, "error", err)
		return l, fault.New("", fault.Unavailable, "the service of the provider does not answer its peer")
	}
	return line{s, conn.(*net.TCPConn)}, nil
}

// enter takes a place for a connection of a grant.
func (d *Desk) enter(token uint64, most uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.open[token]
	if t == nil {
		t = &traffic{lines: map[line]struct{}{}}
		d.open[token] = t
	}
	if t.places >= most {
		return fault.Refused(fault.LimitReached, "token", "has %d connections, and the provider allows %d of one grant", t.places, most)
	}
	t.places++
	return nil
}

// join makes a line one of a grant; nil for a grant that has ended.
func (d *Desk) join(l line, token uint64) *traffic {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.granter.current.Load().Left(token, d.now())
	if left == 0 {
		return nil
	}
	t := d.open[token]
	t.lines[l] = struct{}{}
	if t.timer == nil {
		t.timer = time.AfterFunc(left, d.endStreams)
	}
	return t
}

func (d *Desk) leave(l line, token uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.open[token]; t != nil {
		t.places--
		delete(t.lines, l)
	}
}

// endStreams cuts the lines of the given grants that have ended, and forgets such grants of others. It runs at each
// end, after each change of the ledger, and each lookMoved.
func (d *Desk) endStreams() {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, now := d.granter.current.Load(), d.now()
	d.endExpired(now)
	for token, t := range d.open {
		left := l.Left(token, now)
		if t.timer != nil && left > 0 {
			t.timer.Reset(left)
		}
		if left > 0 {
			continue
		}
		for one := range t.lines {
			one.cut()
		}
		if t.timer != nil {
			t.timer.Stop()
		}
		if t.places == 0 {
			delete(d.open, token)
		}
	}
}
