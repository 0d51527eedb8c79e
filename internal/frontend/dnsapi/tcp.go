package dnsapi

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of connections (RFC 7766, section 6).
const (
	idleTCP     = 10 * time.Second // between two questions
	writeTCP    = 5 * time.Second  // of one answer
	maxQuestion = 4096             // bytes; one has at most 300 but for its options
	acceptPause = 10 * time.Millisecond
)

// shared is a responder for all connections, which take turns.
type shared struct {
	mu        sync.Mutex // guards the responder
	responder *responder
}

func newShared(s *Server) *shared { return &shared{responder: newResponder(s)} }

func (s *shared) respond(out, msg []byte, client netip.Addr) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.responder.respond(out, msg, client, false)
}

// connections bounds those that are open and ends them.
type connections struct {
	max, maxPerClient int

	mu     sync.Mutex // guards those below
	open   map[net.Conn]netip.Addr
	client map[netip.Addr]int
	closed bool
}

func newConnections(limit, perClient int) *connections {
	return &connections{
		max: limit, maxPerClient: perClient, open: make(map[net.Conn]netip.Addr), client: make(map[netip.Addr]int),
	}
}

// add takes a connection in; false: there are too many.
func (c *connections) add(conn net.Conn, client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.open) >= c.max || c.client[client] >= c.maxPerClient {
		return false
	}
	c.open[conn] = client
	c.client[client]++
	return true
}

// end closes a connection that was taken in. Its place is free by when its client sees that.
func (c *connections) end(conn net.Conn) {
	c.mu.Lock()
	client := c.open[conn]
	delete(c.open, conn)
	if c.client[client]--; c.client[client] == 0 {
		delete(c.client, client)
	}
	c.mu.Unlock()
	_ = conn.Close()
}

// close closes all, which ends their readers.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.open {
		_ = conn.Close()
	}
}

// accept takes connections until the listener is closed.
func (s *Server) accept(l net.Listener, turns *shared) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if !s.persist(err) {
				return
			}
			continue
		}
		client := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if !s.serves(client) || !s.conns.add(conn, client) {
			s.refused.Add(1)
			_ = conn.Close()
			continue
		}
		s.running.Go(func() {
			defer s.conns.end(conn)
			s.Logger.Debug("dns connection ended", "client", client, "error", talk(conn, client, turns))
		})
	}
}

// persist waits a moment after an error of a socket; false: the server is closed.
func (s *Server) persist(err error) bool {
	if errors.Is(err, net.ErrClosed) || s.closing.Err() != nil {
		return false
	}
	s.Logger.Debug("dns socket", "error", err)
	pause := time.NewTimer(acceptPause)
	defer pause.Stop()
	select {
	case <-s.closing.Done():
		return false
	case <-pause.C:
		return true
	}
}

// talk answers the questions of a connection, one after the other, until its client ends it, is silent
// for too long, or sends what is no question.
func talk(conn net.Conn, client netip.Addr, turns *shared) error {
	r := bufio.NewReaderSize(conn, 512)
	var msg, out []byte
	for {
		if err := conn.SetReadDeadline(time.Now().Add(idleTCP)); err != nil {
			return err
		}
		var size [2]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuestion {
			return errors.New("message too long for a question")
		}
		if cap(msg) < n {
			msg = make([]byte, n)
		}
		msg = msg[:n]
		if _, err := io.ReadFull(r, msg); err != nil {
			return err
		}
		out = turns.respond(append(out[:0], 0, 0), msg, client)
		if len(out) == 2 {
			return errors.New("no question")
		}
		binary.BigEndian.PutUint16(out, uint16(len(out)-2))
		if err := conn.SetWriteDeadline(time.Now().Add(writeTCP)); err != nil {
			return err
		}
		if _, err := conn.Write(out); err != nil {
			return err
		}
		if cap(out) > maxQuestion { // one that is silent now keeps little
			out = nil
		}
	}
}
