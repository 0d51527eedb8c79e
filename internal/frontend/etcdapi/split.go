package etcdapi

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// split gives the connections of a listener to two servers: to that of gRPC those that speak HTTP/2, and all others to
// that of HTTP/1. With TLS the client says so in its handshake, and without it in its first bytes.
type split struct {
	net.Listener
	rpc, web part

	wg     sync.WaitGroup
	closed context.CancelFunc
}

func newSplit(l net.Listener) *split {
	ctx, cancel := context.WithCancel(context.Background())
	one := func() part { return part{l.Addr(), make(chan net.Conn), ctx, cancel} }
	return &split{Listener: l, rpc: one(), web: one(), closed: cancel}
}

// serve accepts until the listener or a part closes. It closes the listener, and with it the parts.
func (s *split) serve() error {
	defer s.wg.Wait()
	defer s.closed()
	defer context.AfterFunc(s.rpc.closed, func() { _ = s.Close() })()
	for {
		c, err := s.Accept()
		if s.rpc.closed.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s.wg.Go(func() { s.pass(c) })
	}
}

// pass gives a connection to its part when it has said what it speaks, or closes it.
func (s *split) pass(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(readHeader))
	raw := c // c may change
	defer context.AfterFunc(s.rpc.closed, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })()
	to := &s.web
	if secure, ok := c.(*tls.Conn); ok {
		if secure.Handshake() != nil {
			_ = c.Close()
			return
		}
		if secure.ConnectionState().NegotiatedProtocol == "h2" {
			to = &s.rpc
		}
	} else {
		first := make([]byte, 3)
		n, err := io.ReadFull(c, first)
		if err != nil && n == 0 {
			_ = c.Close()
			return
		}
		if string(first) == "PRI" { // the preface of HTTP/2 (RFC 9113, section 3.4); no method of HTTP/1 begins so
			to = &s.rpc
		}
		c = &resumed{c, first[:n]}
	}
	_ = c.SetDeadline(time.Time{})
	select {
	case to.conns <- c:
	case <-to.closed.Done():
		_ = c.Close()
	}
}

// part is a listener of the connections of one server.
type part struct {
	addr   net.Addr
	conns  chan net.Conn
	closed context.Context
	end    context.CancelFunc
}

// Accept implements net.Listener.
func (p *part) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *part) Close() error {
	p.end()
	return nil
}

// Addr implements net.Listener.
func (p *part) Addr() net.Addr { return p.addr }

// resumed is a connection of which the first bytes were read.
type resumed struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (r *resumed) Read(p []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(p, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.Conn.Read(p)
}

// shaken are the credentials of connections whose handshake of TLS, if any, is over.
type shaken struct {
	credentials.TransportCredentials
}

func newShaken() credentials.TransportCredentials { return shaken{insecure.NewCredentials()} }

// Clone implements credentials.TransportCredentials.
func (s shaken) Clone() credentials.TransportCredentials { return s }

// ServerHandshake implements credentials.TransportCredentials.
func (s shaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if secure, ok := c.(*tls.Conn); ok {
		return c, credentials.TLSInfo{State: secure.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
	return s.TransportCredentials.ServerHandshake(c)
}
