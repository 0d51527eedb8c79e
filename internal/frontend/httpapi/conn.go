package httpapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
)

// maxHeld is the longest answer, in bytes, that is sent in one piece.
const maxHeld = 32 << 10

// conn is a connection that can combine several writes into one. net/http writes an answer of
// more than 4 KiB in several pieces, and each piece costs a system call and wakes the client.
// The goroutine that serves the connection owns it.
type conn struct {
	net.Conn
	holding bool
	held    []byte // reused for the next answer
}

// Write implements net.Conn. While writes are held it keeps a copy of p.
func (c *conn) Write(p []byte) (int, error) {
	if !c.holding {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, p...)
	return len(p), nil
}

// hold keeps further writes until release.
func (c *conn) hold() { c.holding, c.held = true, c.held[:0] }

// release sends the held writes. A failed connection reports its error at the next read or
// write, as with the buffers of net/http.
func (c *conn) release() {
	c.holding = false
	_, _ = c.Conn.Write(c.held)
}

// conns is a listener whose connections can hold writes.
type conns struct{ net.Listener }

// Accept implements net.Listener. TLS connections stay unchanged: net/http must recognise them,
// and several requests of HTTP/2 share one.
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

// connKey is the context key of the connection of a request.
type connKey struct{}

// withConn implements http.Server.ConnContext.
func (s *Server) withConn(ctx context.Context, c net.Conn) context.Context {
	if s.connContext != nil {
		ctx = s.connContext(ctx, c)
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the connection of a request, or nil for other types than conn.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// writeWhole writes a body, in one piece over a conn and up to maxHeld bytes.
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
