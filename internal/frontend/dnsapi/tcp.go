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

	"github.com/blackhole/blackhole/internal/platform/pause"
)

// Bounds of connections (RFC 7766, section 6).
const (
	idleTCP     = 10 * time.Second // between two questions
	writeTCP    = 5 * time.Second  // of one answer
	maxQuestion = 4096             // bytes; a question without options has at most 300
	acceptPause = 10 * time.Millisecond
)

// shared is the responder of all connections, which take turns.
type shared struct {
	mu        sync.Mutex // guards the responder
	responder *responder
}

func (s *shared) respond(out, msg []byte, client netip.Addr) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.responder.respond(out, msg, client, false)
}

// connections counts and closes open connections.
type connections struct {
	mu           sync.Mutex // guards the fields below
	maxPerClient int
	open         map[net.Conn]netip.Addr
	client       map[netip.Addr]int
	closed       bool
}

// add registers a connection. It returns false above the bounds.
func (c *connections) add(conn net.Conn, client netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.open) >= maxConns || c.client[client] >= c.maxPerClient {
		return false
	}
	c.open[conn] = client
	c.client[client]++
	return true
}

// end closes a connection. Its slot is free before the client sees the close.
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

// close closes all connections, which ends their readers.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.open {
		_ = conn.Close()
	}
}

// accept serves connections until the listener closes.
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
		if !serves(client) || !s.conns.add(conn, client) {
			s.refused.Add(1)
			_ = conn.Close()
			continue
		}
		s.running.Go(func() {
			defer s.conns.end(conn)
			s.config.Logger.Debug("a DNS connection ended", "client", client, "error", talk(conn, client, turns))
		})
	}
}

// persist pauses after an error of a socket. It returns false after Close.
func (s *Server) persist(err error) bool {
	if errors.Is(err, net.ErrClosed) || s.closing.Err() != nil {
		return false
	}
	s.config.Logger.Debug("a DNS socket failed and is retried", "error", err)
	return pause.For(s.closing, acceptPause)
}

// talk answers the questions of a connection one by one. It ends when the client closes the connection,
// stays silent too long, or sends anything but a question.
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
			return errors.New("the client sent a message longer than any question")
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
			return errors.New("the client sent a message without a question")
		}
		binary.BigEndian.PutUint16(out, uint16(len(out)-2))
		if err := conn.SetWriteDeadline(time.Now().Add(writeTCP)); err != nil {
			return err
		}
		if _, err := conn.Write(out); err != nil {
			return err
		}
		if cap(out) > maxQuestion { // an idle connection keeps little memory
			out = nil
		}
	}
}
