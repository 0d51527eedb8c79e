package httpapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
)

// maxHeld is the longest answer that is sent in one piece.
const maxHeld = 32 << 10

// conn is a connection that can send what is written to it in one piece. net/http writes
// an answer of more than 4 KiB in two or more, and for each the kernel is called and the
// client woken. The goroutine that serves the connection owns it.
type conn struct {
	net.Conn
	holding bool
	held    []byte // kept for the next answer
}

// Write writes, or keeps a copy of p while writes are held.
func (c *conn) Write(p []byte) (int, error) {
	if !c.holding {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, p...)
	return len(p), nil
}

// hold keeps what is written until release.
func (c *conn) hold() { c.holding, c.held = true, c.held[:0] }

// release sends what was kept. A connection that fails says so at the next write or read,
// as it does to net/http, which buffers too.
func (c *conn) release() {
	c.holding = false
	_, _ = c.Conn.Write(c.held)
}

// conns is a listener of such connections.
type conns struct{ net.Listener }

// Accept waits for the next connection. Those of TLS stay as they are: net/http has to know
// them, and several requests share one.
func (l conns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if _, ok := c.(*tls.Conn); ok {
		return c, nil
	}
	return &conn{Conn: c}, nil
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// withConn is an http.Server.ConnContext.
func (s *Server) withConn(ctx context.Context, c net.Conn) context.Context {
	if s.ConnContext != nil {
		ctx = s.ConnContext(ctx, c)
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connOf gives the connection of a request, or nil where it did not come over a conn.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// writeWhole writes a whole body in one piece, if the answer goes over a conn and is not
// long.
func writeWhole(w http.ResponseWriter, body []byte) {
	r, ok := w.(*response)
	if !ok || r.conn == nil || len(body) > maxHeld {
		_, _ = w.Write(body)
		return
	}
	r.conn.hold()
	defer r.conn.release()
	_, _ = w.Write(body)
	_ = http.NewResponseController(w).Flush()
}
