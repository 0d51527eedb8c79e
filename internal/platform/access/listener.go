package access

import (
	"context"
	"net"
	"sync"
)

// Listener returns l with connections that occupy a place of the pool until they close. A connection without a place is
// closed at once.
func (p *Pool) Listener(l net.Listener) net.Listener { return &boundedListener{Listener: l, pool: p} }

type boundedListener struct {
	net.Listener
	pool *Pool
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		release, err := l.pool.Take(ConnContext(context.Background(), c), "access.Accept")
		if err == nil {
			return &boundedConn{Conn: c, release: sync.OnceFunc(release)}, nil
		}
		_ = c.Close()
	}
}

// boundedConn gives its place back when it closes. It has the addresses of the connection, and so the user of a unix socket.
type boundedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
