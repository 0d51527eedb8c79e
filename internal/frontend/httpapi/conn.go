package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
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

// wholeRequest tells the connection of a request when the request has arrived completely.
type wholeRequest struct {
	io.ReadCloser // the body
	r             *http.Request
	left          int64  // bytes of the body; negative: unknown
	done          func() // nil until then
}

// admit begins a request. It fails on a connection that was let in for a probe, for all others.
func (q *wholeRequest) admit(w http.ResponseWriter) error {
	if q.r.Body == nil || q.r.Body == http.NoBody {
		q.done = access.Serving(q.r.Context())
	} else {
		q.left, q.ReadCloser, q.r.Body = q.r.ContentLength, q.r.Body, q
	}
	err := access.OnlyProbes(q.r.Context())
	if err != nil {
		w.Header().Set("Connection", "close")
		if isProbe(q.r) {
			return nil
		}
	}
	return err
}

// Read implements io.Reader.
func (q *wholeRequest) Read(p []byte) (n int, err error) {
	n, err = q.ReadCloser.Read(p)
	if q.left > 0 {
		q.left -= int64(n)
	}
	if q.done == nil && (err == io.EOF || q.left == 0) {
		q.done = access.Serving(q.r.Context())
	}
	return n, err
}

// over ends the request.
func (q *wholeRequest) over() {
	if q.done != nil {
		q.done()
	}
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

// eventStream is an answer of server-sent events (WHATWG HTML, section 9.2).
type eventStream struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	headOnly bool // of a HEAD request
	begun    bool
}

// newEventStream prepares a stream and lifts the bound on reading the request, which has arrived.
func newEventStream(w http.ResponseWriter, r *http.Request) *eventStream {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	return &eventStream{w: w, control: control, headOnly: r.Method == http.MethodHead}
}

// begin sends the header. It fails with Canceled for a HEAD request, which ends the watch.
func (e *eventStream) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold back events
	h.Set("X-Content-Type-Options", "nosniff")
	e.w.WriteHeader(http.StatusOK)
	if e.headOnly {
		return fault.New("httpapi.watch", fault.Canceled, "the client asked for the header only")
	}
	return e.control.Flush()
}

// write sends the text of whole events. It fails if the client does not read within writeAnswer.
func (e *eventStream) write(text []byte) error {
	if err := e.begin(); err != nil {
		return err
	}
	if err := e.control.SetWriteDeadline(time.Now().Add(writeAnswer)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := e.w.Write(text); err != nil {
		return err
	}
	return e.control.Flush()
}

// writeLarge renders and sends events when the budget of answers has room for n bytes, about what they take. It fails if there is none
// for half of writeAnswer.
func (e *eventStream) writeLarge(n int, render func() ([]byte, error)) error {
	if resp := responseOf(e.w); resp != nil {
		release, err := resp.charge(n, writeAnswer/2)
		if err != nil {
			return err
		}
		defer release()
	}
	text, err := render()
	if err != nil {
		return err
	}
	return e.write(text)
}

// kept returns a buffer for the next events; a large one goes.
func kept(buf []byte) []byte {
	if cap(buf) > 128<<10 {
		return nil
	}
	return buf[:0]
}

// end hides an error behind the end of a stream that has begun: the client reconnects.
func (e *eventStream) end(err error) error {
	if e.begun {
		return nil
	}
	return err
}
