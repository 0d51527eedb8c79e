package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// The victim of the tests, with another address of its /64, and what stands for one more address that refuses
// connections each time.
const victim, victim6, beside6, refuses = "11.1.1.1", "2a00:1::1", "2a00:1::2:1", "11.2.0.0"

func isRefusing(host string) bool { return strings.HasPrefix(host, "11.2.") }

// counted is a network that counts the connections to each host.
type counted struct {
	mu    sync.Mutex
	to    map[string]int
	serve func(net.Conn) // an accepted connection; nil: it ends at once
}

func (c *counted) dial(_ context.Context, _, address string) (net.Conn, error) {
	host := netip.MustParseAddrPort(address).Addr().String()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to[host]++
	switch {
	case isRefusing(host):
		return nil, syscall.ECONNREFUSED
	case c.serve == nil:
		return nil, io.EOF
	}
	near, far := net.Pipe()
	go c.serve(far)
	return near, nil
}

// listen opens a socket to nobody.
func (c *counted) listen() (net.PacketConn, error) {
	return &socket{net: c, end: make(chan struct{})}, nil
}

type socket struct {
	net.PacketConn
	net  *counted
	once sync.Once
	end  chan struct{}
}

func (s *socket) WriteTo(_ []byte, to net.Addr) (int, error) {
	s.once.Do(func() {
		_, _ = s.net.dial(context.Background(), "udp", to.String())
		close(s.end)
	})
	return 0, io.ErrClosedPipe
}

func (s *socket) ReadFrom([]byte) (int, net.Addr, error) {
	<-s.end
	return 0, nil, io.ErrClosedPipe
}

func (s *socket) LocalAddr() net.Addr             { return &net.UDPAddr{IP: net.IPv4zero, Port: 1} }
func (s *socket) SetReadDeadline(time.Time) error { return nil }
func (s *socket) Close() error                    { return nil }

func resolves(list ...string) func(context.Context, string) ([]netip.Addr, error) {
	next := netip.MustParseAddr(refuses)
	return func(context.Context, string) (all []netip.Addr, _ error) {
		for _, text := range list {
			a := netip.MustParseAddr(text)
			if isRefusing(text) {
				a, next = next, next.Next()
			}
			all = append(all, a)
		}
		return all, nil
	}
}

// A name with several addresses, in any order, costs each of them as much as an offer of the address itself: 8
// connections at once and 10 a minute, whatever the protocol. Many names, each below a registered domain of its own,
// change nothing.
func TestEachConnectionCounts(t *testing.T) {
	for _, list := range [][]string{
		{victim}, {refuses, victim}, {victim, refuses}, {refuses, refuses, victim}, {refuses, victim, refuses}, {victim, refuses, refuses},
		{victim6}, {victim6, beside6}, {refuses, beside6},
	} {
		for _, endpoint := range []string{"http://%s", "grpc://%s:1", "ws://%s", "socks5://%s", "mcp://%s/mcp", "tcp://%s:1", "/dns/%s/tcp/1", "/dns/%s/udp/1/quic-v1", "quic://%s:1"} {
			synctest.Test(t, func(t *testing.T) {
				net := &counted{to: map[string]int{}}
				p := New(Config{Dial: net.dial, Resolve: resolves(list...)})
				p.listen = net.listen
				began := time.Now()
				for i := range 60 {
					target, ok := Parse(fmt.Sprintf(endpoint, fmt.Sprintf("a%d.net", i)), nil)
					require.True(t, ok)
					p.Probe(t.Context(), target)
					if i == 31 {
						require.LessOrEqual(t, net.to[victim]+net.to[victim6]+net.to[beside6], burst, "at once: %v %s", list, endpoint)
						time.Sleep(time.Minute - time.Since(began))
					}
				}
				n := net.to[victim] + net.to[victim6] + net.to[beside6]
				require.LessOrEqual(t, n, burst+10, "%v %s", list, endpoint)
				require.True(t, n >= burst || slices.Index(list, victim) >= maxAddresses, "%v %s", list, endpoint)
			})
		}
	}
}

// A session of MCP over three connections takes three places, and over a kept one it takes one.
func TestConnectionsOfASessionCount(t *testing.T) {
	for _, kept := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			network, sessions := &counted{to: map[string]int{}}, 0
			var lock sync.Mutex
			network.serve = func(c net.Conn) {
				defer func() { _ = c.Close() }()
				for r := bufio.NewReader(c); ; {
					q, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					body, _ := io.ReadAll(q.Body)
					lock.Lock()
					answer := httpAnswer(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
					switch {
					case q.Method == http.MethodDelete:
						sessions++
					case strings.Contains(string(body), "server/discover"):
						answer = httpAnswer(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"unknown"}}`)
					default:
						answer = strings.Replace(answer, "\r\n", "\r\nMcp-Session-Id: a\r\n", 1)
					}
					lock.Unlock()
					_, _ = io.WriteString(c, answer)
					if !kept {
						return
					}
				}
			}
			p := New(Config{Dial: network.dial})
			for i := range 60 {
				target, _ := Parse(fmt.Sprintf("mcp+http://%s:%d/mcp", victim, i+1), nil)
				p.Probe(t.Context(), target)
				synctest.Wait()
			}
			require.Equal(t, burst, network.to[victim])
			require.Equal(t, map[bool]int{false: burst / 3, true: burst}[kept], sessions)
		})
	}
}

func closing(serve func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) { serve(c); _ = c.Close() }
}

func httpAnswer(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// What could not be tried is not refused: a check says nothing about a name with an address that it had no place for.
func TestUntriedAddressIsUnmeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, list := range [][]string{{victim, refuses}, {refuses, victim}} {
			net := &counted{to: map[string]int{}, serve: closing(says(httpAnswer("")))}
			p := New(Config{Dial: net.dial, Resolve: resolves(list...)})
			for i := range burst {
				target, _ := Parse(fmt.Sprintf("http://%s:%d", victim, i+1), nil)
				p.Probe(t.Context(), target)
			}
			target, _ := Parse("http://shop.net", nil)
			_, measured := p.Probe(t.Context(), target)
			require.False(t, measured, list)
		}
	})
}

// The search list of the resolver and names without a domain tell strangers nothing of the network of this peer.
func TestNamesAreAbsolute(t *testing.T) {
	asked := make(chan string, 64)
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for packet := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil {
				continue
			}
			asked <- m.Questions[0].Name.String()
			m.Response, m.RCode, m.Additionals = true, dnsmessage.RCodeNameError, nil
			text, _ := m.Pack()
			_, _ = server.WriteTo(text, from)
		}
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	p := New(Config{Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}})
	for _, host := range []string{"jenkins", "jenkins.", "jenkins.corp.internal", "printer.local", "nas.lan", "router.home.arpa", "abc.onion", "shop.victim.net"} {
		target, ok := Parse("http://"+host, nil)
		require.True(t, ok)
		o, measured := p.Probe(t.Context(), target)
		require.Equal(t, host == "shop.victim.net", measured, host)
		if measured {
			require.Equal(t, NoSuchName, o.State, host)
		}
	}
	for range 2 { // A and AAAA
		require.Equal(t, "shop.victim.net.", <-asked)
	}
	require.Empty(t, asked)
}

// Look-ups share a bound by registered domain, whatever asks for them.
func TestLookUpsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		absent := func(host string) error {
			require.True(t, strings.HasSuffix(host, "."), host)
			asked[host[strings.Index(host, "victim"):]]++
			return &net.DNSError{Err: "no such host", IsNotFound: true}
		}
		p := New(Config{
			Resolve: func(_ context.Context, host string) ([]netip.Addr, error) { return nil, absent(host) },
			Texts:   func(_ context.Context, name string) ([]string, error) { return nil, absent(name) },
		})
		for i := range 200 {
			target, _ := Parse(fmt.Sprintf("http://a%d.victim.co.uk", i), nil)
			p.Probe(t.Context(), target)
			domain, _ := Domain(fmt.Sprintf("b%d.victim.co.uk", i), "12D3a")
			p.Probe(t.Context(), domain)
			target, _ = Parse(fmt.Sprintf("http://a%d.victim2.co.uk", i), nil)
			p.Probe(t.Context(), target)
		}
		require.Equal(t, map[string]int{"victim.co.uk.": nameBurst, "victim2.co.uk.": nameBurst}, asked)
		time.Sleep(time.Minute)
		for i := range 200 {
			target, _ := Parse(fmt.Sprintf("http://c%d.victim.co.uk", i), nil)
			p.Probe(t.Context(), target)
		}
		require.LessOrEqual(t, asked["victim.co.uk."], 2*nameBurst+20)
	})
}

// Before its host consents, a check asks for what any client of the protocol asks for: a stranger's link is not
// followed.
func TestNoLinkIsFollowed(t *testing.T) {
	const link = "/unsubscribe/all?user=7"
	for _, c := range []struct{ scheme, protocol, bare, whole string }{
		{"http", "", "/", link},
		{"http", "s3", "/", link},
		{"http", "mcp", "/unsubscribe/all", link},
		{"http", "websocket", "/unsubscribe/all", link},
		{"ws", "", "/unsubscribe/all", link},
		{"http", "grpc", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Check"},
		{"http", "a2a", "/unsubscribe/all/.well-known/agent-card.json", "/unsubscribe/all/.well-known/agent-card.json"},
	} {
		for _, bare := range []bool{true, false} {
			seen := make(chan string, 8)
			s := &http.Server{ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				seen <- r.URL.RequestURI()
			})}
			s.Protocols.SetHTTP1(true)
			s.Protocols.SetUnencryptedHTTP2(true)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			done := make(chan struct{})
			go func() { defer close(done); _ = s.Serve(l) }()
			target, ok := Parse(c.scheme+"://"+l.Addr().String()+link, []string{c.protocol})
			require.True(t, ok)
			want := c.whole
			if bare {
				want = c.bare
				require.NotEmpty(t, target.Withheld())
				target = target.Bare()
				require.Empty(t, target.Withheld())
				require.Equal(t, target.String(), target.Bare().String())
			}
			o, _ := New(Config{Loopback: true}).Probe(t.Context(), target)
			require.Equal(t, bare, strings.Contains(o.Detail, "has not named"), o.Detail)
			require.Equal(t, want, <-seen, c.protocol)
			_ = s.Close()
			<-done
		}
	}
}
