package truth

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/records"
)

var (
	market        = flag.Int("market", 120, "offers of TestWhatIsShownServes, with a tenth as many consumers")
	realEndpoints = flag.Bool("real", false, "play TestWhatIsShownServes in real time, with endpoints that listen on 127.0.0.0/8 and liars")
)

// world is the endpoints of many offers behind one socket, each at an address of its own in 127.0.0.0/8. What an endpoint speaks follows
// from its number, and whether it does so now from goods.fate.
type world struct {
	port  uint16
	peers int // of the society; the first ones may be witnesses
	roots *x509.CertPool
	kinds map[string]func(net.Conn) // by name: serve one connection
	fate  func(host string) (death probe.State, alive bool)
	all   sync.WaitGroup
}

// speaks are the schemes or protocols in use. Plain TCP is none: the one socket connects for the dead too.
func speaks() []string {
	return []string{"http", "https", "grpc", "tls", "ws", "socks5", "mcp", "openai", "ollama", "s3", "libp2p"}
}

const worldName = ".shop.net"

// at is the address of endpoint n, and hostAt its name.
func at(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + n>>16), byte(n >> 8), byte(n)})
}
func hostAt(n int) string   { return fmt.Sprintf("o%05d%s", n, worldName) }
func from(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 200, byte(n >> 8), byte(n)}) }

// endpoint is that of offer n, with the protocols that the offer declares.
func (w *world) endpoint(n int) records.Metadata {
	kind := speaks()[n%len(speaks())]
	m := records.Metadata{Type: "relay", Endpoints: []string{fmt.Sprintf("%s://%s:%d", kind, hostAt(n), w.port)}}
	switch kind {
	case "mcp", "openai", "ollama", "s3":
		m.Endpoints, m.Protocols = []string{fmt.Sprintf("http://%s:%d", hostAt(n), w.port)}, []string{kind}
	case "libp2p":
		m.Endpoints = []string{fmt.Sprintf("/dns4/%s/tcp/%d", hostAt(n), w.port)}
	}
	return m
}

// prober speaks from an address of its own, as peer n.
func (w *world) prober(n int) *probe.Prober {
	d := net.Dialer{KeepAlive: -1, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from(n), 0))}
	return probe.New(probe.Config{Loopback: true, Roots: w.roots, Dial: d.DialContext, Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
		var i int
		_, err := fmt.Sscanf(host, "o%d"+worldName, &i)
		return []netip.Addr{at(i)}, err
	}})
}

func newWorld(t *testing.T, ctx context.Context, peers int) *world {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	w := &world{peers: peers, port: uint16(l.Addr().(*net.TCPAddr).Port), roots: x509.NewCertPool()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fakes"}, DNSNames: []string{"*" + worldName}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	authority, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	w.roots.AddCert(authority)
	secured := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}

	rpc, web := newInlet(), newInlet()
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	pages := &http.Server{Handler: http.HandlerFunc(page), ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	w.all.Go(func() { _ = server.Serve(rpc) })
	w.all.Go(func() { _ = pages.Serve(web) })
	w.kinds = map[string]func(net.Conn){
		"http": web.take, "mcp": web.take, "openai": web.take, "ollama": web.take, "s3": web.take, "grpc": rpc.take,
		"https": func(c net.Conn) { web.take(tls.Server(c, secured)) },
		"tls": func(c net.Conn) {
			secure := tls.Server(c, secured)
			_ = secure.Handshake()
			_ = secure.Close()
		},
		"socks5": says("\x05\x00"), "libp2p": says("\x13/multistream/1.0.0\n"), "ws": upgrade,
	}
	w.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.all.Go(func() { w.serve(ctx, c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		server.Stop()
		_ = pages.Close()
		w.all.Wait()
	})
	return w
}

// serve does with a connection what its endpoint does now.
func (w *world) serve(ctx context.Context, c net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	to := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().As4()
	n := int(to[1]-1)<<16 | int(to[2])<<8 | int(to[3])
	death, alive := w.fate(hostAt(n))
	by := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().As4()
	switch {
	case alive && death == slowly:
		pass(ctx, 3*time.Second)
		fallthrough
	case alive, death == toWitnesses && int(by[2])<<8|int(by[3]) < w.peers:
		w.kinds[speaks()[n%len(speaks())]](c)
	case death == probe.Wrong:
		says("SSH-2.0-OpenSSH_9.6\r\n")(c)
	case death == probe.Refuses:
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	default:
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
}

// Ways to lie, beside the states of an endpoint.
const (
	slowly      probe.State = "slowly"       // lives, and takes three seconds
	toWitnesses probe.State = "to witnesses" // answers those who may be witnesses alone
)

// listen sells n offers whose endpoints listen. Of every 20 one claims all and answers nobody, one answers another protocol, one answers
// slowly, and one answers witnesses alone. Every fifth peer says the opposite of what it measures.
func (s *society) listen(n, peers int) {
	ctx, cancel := context.WithCancel(s.t.Context())
	w := newWorld(s.t, ctx, peers)
	s.t.Cleanup(cancel) // before the world's own
	s.sell(n, s.peers[:peers], w.endpoint)
	w.fate = func(host string) (probe.State, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.goods.fate(host)
	}
	for i, r := range s.goods.offers {
		how := map[int]probe.State{0: probe.Silent, 1: probe.Wrong, 2: slowly, 3: toWitnesses}[i/len(speaks())%20]
		if s.goods.how[hostOf(r)] = how; how != "" && how != slowly {
			s.goods.dies[hostOf(r)] = time.Time{}
		}
	}
	for i, m := range s.peers {
		m.real, m.inverts = w.prober(i), i < peers && i%5 == 0
	}
}

// restarts has a fifth of the peers forget what they know, and a tenth of the dying endpoints come back after 20 s.
func (s *society) restarts(peers int) {
	for i, m := range s.peers[:peers] {
		if i%5 == 1 {
			m.restart()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.goods.offers {
		if at, dies := s.goods.dies[hostOf(r)]; dies && !at.IsZero() && i%10 == 0 {
			s.goods.back[hostOf(r)] = at.Add(20 * time.Second)
		}
	}
}

// inlet is a listener whose connections another one accepted.
type inlet struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newInlet() *inlet { return &inlet{conns: make(chan net.Conn), ended: make(chan struct{})} }

func (l *inlet) take(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.ended:
		_ = c.Close()
	}
}

func (l *inlet) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *inlet) Close() error { l.once.Do(func() { close(l.ended) }); return nil }

func (l *inlet) Addr() net.Addr { return &net.TCPAddr{} }

// page is an HTTP server in all its dialects.
func page(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	text := "hello"
	switch {
	case strings.HasSuffix(r.URL.Path, "/models"):
		text = `{"object":"list","data":[]}`
	case r.URL.Path == "/api/tags":
		text = `{"models":[]}`
	case strings.Contains(string(body), "tools/list"):
		text = `{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"a"}]}}`
	case strings.Contains(string(body), "initialize"):
		text = `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("X-Amz-Request-Id", "1")
	_, _ = io.WriteString(rw, text)
}

// says answers the first bytes of any client.
func says(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 512))
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}
}

// upgrade accepts a WebSocket (RFC 6455).
func upgrade(c net.Conn) {
	defer func() { _ = c.Close() }()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455 requires it
	_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
}

// Each endpoint of the world answers in its own protocol, and lies as it should.
func TestWorldSpeaks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := newWorld(t, ctx, 1)
	t.Cleanup(cancel)
	fates := map[int]probe.State{12: probe.Refuses, 13: probe.Wrong, 14: toWitnesses}
	w.fate = func(host string) (probe.State, bool) {
		var n int
		_, _ = fmt.Sscanf(host, "o%d"+worldName, &n)
		return fates[n], fates[n] == ""
	}
	for n := range 15 {
		m := w.endpoint(n)
		target, ok := probe.Parse(m.Endpoints[0], m.Protocols)
		require.True(t, ok, m)
		o, ok := w.prober(0).Probe(ctx, target)
		require.True(t, ok, m)
		require.Equal(t, n != 12 && n != 13, o.State == probe.Answers, "%v: %v", m, o)
	}
	bounded, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	m := w.endpoint(14)
	target, _ := probe.Parse(m.Endpoints[0], m.Protocols)
	o, _ := w.prober(1).Probe(bounded, target)
	require.Equal(t, probe.Silent, o.State, "it is no witness")
}
