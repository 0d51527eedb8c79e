package probe

import (
	"bufio"
	"context"
	"crypto/sha1" //nolint:gosec // RFC 6455 requires it
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve accepts connections on loopback until the end of the test, and returns HOST:PORT.
func serve(t *testing.T, each func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			each(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// web serves one answer under a path.
func webServer(t *testing.T, path, body string, status int, header ...string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func mcpServer(t *testing.T, events bool) string {
	open := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.Method == http.MethodDelete && r.Header.Get("Mcp-Session-Id") == "s1":
			open--
			return
		case !strings.Contains(string(body), `"initialize"`):
			http.Error(w, "Bad Request: No valid session ID provided", http.StatusBadRequest)
			return
		}
		open++
		answer := `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`
		w.Header().Set("Mcp-Session-Id", "s1")
		if events {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": hello\n\nevent: message\ndata: "+answer+"\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(func() {
		s.Close()
		require.Zero(t, open, "a check ends its session")
	})
	return s.URL + "/mcp"
}

func grpcServer(t *testing.T, status grpc_health_v1.HealthCheckResponse_ServingStatus, withHealth bool) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	if withHealth {
		h := health.NewServer()
		h.SetServingStatus("", status)
		grpc_health_v1.RegisterHealthServer(s, h)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return "grpc://" + l.Addr().String()
}

func webSocket(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455 requires it
	_, _ = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
}

// An endpoint that wants to answer probes alone does not know them by a name.
func TestProbesHaveNoName(t *testing.T) {
	seen := make(chan string, 16)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- fmt.Sprint(r.UserAgent(), r.Header, string(body))
	})}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	for _, protocol := range []string{"http", "mcp", "a2a", "openai", "ollama", "s3", "websocket", "grpc"} {
		target, ok := Parse("http://"+l.Addr().String(), []string{protocol})
		require.True(t, ok, protocol)
		_, _ = New(Config{Loopback: true}).Probe(t.Context(), target)
		said := <-seen
		require.Regexp(t, "^(Go-http-client|grpc-go)/", said, protocol)
		require.NotContains(t, strings.ToLower(said), "blackhole", protocol)
	}
}

// says answers the first bytes of any client.
func says(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 512))
		_, _ = io.WriteString(c, text)
	}
}

func quicServer(t *testing.T, c tls.Certificate, protocol string) string {
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	require.NoError(t, err)
	transport := &quic.Transport{Conn: socket}
	l, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{c}, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close(); _ = transport.Close(); _ = socket.Close() })
	return l.Addr().String()
}

func TestEachKind(t *testing.T) {
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(secure.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	p := New(Config{Loopback: true, Roots: roots})
	strict := New(Config{Loopback: true})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := closed.Addr().String()
	require.NoError(t, closed.Close())
	ssh := serve(t, says("SSH-2.0-OpenSSH_9.6\r\n"))
	plain := webServer(t, "/", "hello", 200)
	multistream := serve(t, says("\x13/multistream/1.0.0\n"))
	host, port, _ := net.SplitHostPort(multistream)
	quicAt := quicServer(t, secure.TLS.Certificates[0], "libp2p")
	_, quicPort, _ := net.SplitHostPort(quicAt)

	for name, c := range map[string]struct {
		endpoint  string
		protocols []string
		want      State
		kind      string
		detail    string
	}{
		"http":               {plain, nil, Answers, "http", "answered 200"},
		"http broken":        {webServer(t, "/", "", 503), nil, Refuses, "http", "answered 503"},
		"http closed":        {"http://" + nobody, nil, Refuses, "http", "nothing listens"},
		"http is ssh":        {"http://" + ssh, nil, Wrong, "http", "speaks no HTTP"},
		"https":              {secure.URL, nil, Answers, "http", "answered 200"},
		"https at http":      {strings.Replace(plain, "http:", "https:", 1), nil, Wrong, "http", ""},
		"mcp":                {mcpServer(t, false), []string{"mcp"}, Answers, "mcp", "initialized 2025-06-18"},
		"mcp events":         {mcpServer(t, true), []string{"http", "mcp"}, Answers, "mcp", "initialized 2025-06-18"},
		"mcp at http":        {plain, []string{"MCP"}, Wrong, "mcp", "answered 200, and not in the form of mcp"},
		"a2a":                {webServer(t, "/.well-known/agent-card.json", `{"name":"x","url":"http://x/a2a","skills":[]}`, 200) + "/a2a", []string{"a2a"}, Answers, "a2a", "answered 200"},
		"a2a card elsewhere": {webServer(t, "/old/agent.json", `{"name":"x","skills":[{"id":"a"}]}`, 200) + "/old/agent.json", []string{"A2A"}, Answers, "a2a", "answered 200"},
		"openai":             {webServer(t, "/v1/models", `{"object":"list","data":[]}`, 200) + "/v1", []string{"openai"}, Answers, "openai", "answered 200"},
		"openai with key":    {webServer(t, "/v1/models", `{"error":{}}`, 401), []string{"openai"}, Closed, "openai", "answered 401"},
		"ollama":             {webServer(t, "/api/tags", `{"models":[{"name":"x"}]}`, 200), []string{"ollama"}, Answers, "ollama", ""},
		"ollama cut":         {webServer(t, "/api/tags", `{"models":[`+strings.Repeat(`"x",`, maxAnswer), 200), []string{"ollama"}, Answers, "ollama", ""},
		"s3":                 {webServer(t, "/", `<Error><Code>AccessDenied</Code></Error>`, 403), []string{"s3"}, Closed, "s3", "answered 403"},
		"s3 at http":         {plain, []string{"s3"}, Wrong, "s3", ""},
		"grpc":               {grpcServer(t, grpc_health_v1.HealthCheckResponse_SERVING, true), nil, Answers, "grpc", "is SERVING"},
		"grpc not serving":   {grpcServer(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, true), nil, Refuses, "grpc", "is NOT_SERVING"},
		"grpc without":       {grpcServer(t, 0, false), nil, Answers, "grpc", "answered status Unimplemented"},
		"grpc at http":       {strings.Replace(plain, "http:", "grpc:", 1), nil, Wrong, "grpc", ""},
		"websocket":          {"ws://" + serve(t, webSocket), nil, Answers, "websocket", "upgraded"},
		"websocket at http":  {plain, []string{"websocket"}, Wrong, "websocket", "answered 200"},
		"socks5":             {"socks5://" + serve(t, says("\x05\x00")), nil, Answers, "socks5", ""},
		"socks5 is ssh":      {"socks5://" + ssh, nil, Wrong, "socks5", ""},
		"tcp":                {ssh, nil, Answers, "tcp", "connected"},
		"tcp closed":         {"tcp://" + nobody, nil, Refuses, "tcp", ""},
		"quic":               {"quic://" + quicServer(t, secure.TLS.Certificates[0], "h3"), nil, Answers, "quic", "handshake"},
		"quic of another":    {"quic://" + quicServer(t, secure.TLS.Certificates[0], "moq"), nil, Answers, "quic", "another protocol"},
		"libp2p":             {"/ip4/" + host + "/tcp/" + port + "/p2p/12D3KooW", nil, Answers, "libp2p", "multistream"},
		"libp2p over quic":   {"/ip4/127.0.0.1/udp/" + quicPort + "/quic-v1", nil, Answers, "libp2p", "handshake"},
		"libp2p is ssh":      {"/ip4/" + strings.Replace(ssh, ":", "/tcp/", 1), nil, Wrong, "libp2p", ""},
		"declared and known": {plain, []string{"http", "grpc"}, Answers, "http", ""},
	} {
		t.Run(name, func(t *testing.T) {
			target, ok := Parse(c.endpoint, c.protocols)
			require.True(t, ok, c.endpoint)
			require.Equal(t, c.kind, target.Kind)
			o, ok := p.Probe(t.Context(), target)
			require.True(t, ok)
			require.Equal(t, c.want, o.State, o.Detail)
			require.Contains(t, o.Detail, c.detail)
			require.Equal(t, o.State == Answers, o.RoundTrip > 0)
		})
	}

	target, _ := Parse(secure.URL, nil)
	o, ok := strict.Probe(t.Context(), target)
	require.True(t, ok)
	require.Equal(t, Certificate, o.State, "nobody vouches for it")
	named := New(Config{Loopback: true, Roots: roots, Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}})
	target.Host = "nowhere.net"
	o, _ = named.Probe(t.Context(), target)
	require.Equal(t, Certificate, o.State, "a certificate of another name: %s", o.Detail)
}

func TestSilenceAndNames(t *testing.T) {
	mute := serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	p := New(Config{Loopback: true, Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
		return nil, &net.DNSError{Name: host, Err: "no such host", IsNotFound: host == "gone.nowhere.net."}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	target, _ := Parse("http://"+mute, nil)
	o, ok := p.Probe(ctx, target)
	require.True(t, ok)
	require.Equal(t, Silent, o.State, o.Detail)
	target, _ = Parse("https://gone.nowhere.net/x", nil)
	o, ok = p.Probe(t.Context(), target)
	require.True(t, ok)
	require.Equal(t, NoSuchName, o.State)
	target, _ = Parse("https://flaky.nowhere.net/x", nil)
	_, ok = p.Probe(t.Context(), target)
	require.False(t, ok, "the own resolver says nothing about the target")
}

// The addresses of this machine are its interfaces' ones, read again after a minute, in all forms: a wildcard
// listener, a specific one, a leaf without any and a tunnel are no cases of their own. Each row says whether a public
// peer and one of a LAN speak to it.
func TestAddressesOfNobody(t *testing.T) {
	dialed, now, broken := 0, time.Unix(1e9, 0), true
	dial := func(context.Context, string, string) (net.Conn, error) {
		dialed++
		return nil, io.EOF
	}
	interfaces := []net.Addr{}
	for _, text := range []string{"127.0.0.1/8", "::1/128", "12.0.0.7/24", "192.168.7.7/24", "100.64.7.7/10", "2a01:7::7/64", "fd00:7::7/64", "fe80::7/64"} {
		ip, one, err := net.ParseCIDR(text)
		require.NoError(t, err)
		interfaces = append(interfaces, &net.IPNet{IP: ip, Mask: one.Mask})
	}
	interfaces = append(interfaces, &net.IPAddr{IP: net.ParseIP("2a01:9::9"), Zone: "eth0"})
	machine := NewInterfaces(func() ([]net.Addr, error) {
		if broken {
			return nil, io.ErrUnexpectedEOF
		}
		return interfaces, nil
	}, func() time.Time { return now })
	public := New(Config{Dial: dial, Own: func(a netip.Addr) bool { return machine.Have(a, true) }})
	lan := New(Config{Private: true, Dial: dial, Own: func(a netip.Addr) bool { return machine.Have(a, false) }})
	check := func(rows map[string][2]bool) {
		t.Helper()
		for endpoint, allowed := range rows {
			target, ok := Parse(endpoint, nil)
			require.True(t, ok, endpoint)
			for i, p := range []*Prober{public, lan} {
				p.listen = func() (net.PacketConn, error) { dialed++; return nil, io.EOF }
				dialed = 0
				_, measured := p.Probe(t.Context(), target)
				require.Equal(t, allowed[i], dialed > 0, "%s %d", endpoint, i)
				require.Equal(t, allowed[i] && !strings.Contains(endpoint, "udp"), measured, "%s %d", endpoint, i)
			}
		}
	}
	check(map[string][2]bool{"http://13.0.0.8": {false, false}, "http://192.168.1.1": {false, false}})
	broken = false
	check(map[string][2]bool{
		"http://127.0.0.1":              {false, false},
		"http://[::1]":                  {false, false},
		"http://0.0.0.0":                {false, false},
		"http://169.254.169.254/latest": {false, false},
		"http://[fd00:ec2::254]":        {false, false},
		"http://10.0.0.1":               {false, true},
		"http://192.168.1.1":            {false, true},
		"http://100.64.0.1":             {false, true},
		"http://198.18.0.1":             {false, true},
		"http://192.0.0.1":              {false, false},
		"http://192.0.2.1":              {false, true},
		"http://[2001:db8::1]":          {false, true},
		"http://[fd00::1]":              {false, true},
		"http://[100::1]":               {false, false},
		"http://[5f00::1]":              {false, true},
		"http://[::ffff:10.0.0.1]":      {false, true},
		"http://[64:ff9b::127.0.0.1]":   {false, false},
		"http://[64:ff9b::10.0.0.1]":    {false, true},
		"http://[64:ff9b::13.0.0.8]":    {true, true},
		"http://[2002:a00:1::1]":        {false, true},
		"http://224.0.0.1":              {false, false},
		"http://[fe80::1]":              {false, false},

		"http://12.0.0.7:25":           {false, false}, // own ones
		"http://192.168.7.7:6379":      {false, false},
		"http://100.64.7.7":            {false, false},
		"http://[2a01:7::7]:25":        {false, false},
		"http://[fd00:7::7]":           {false, false},
		"http://[64:ff9b::12.0.0.7]":   {false, false},
		"http://[::ffff:12.0.0.7]":     {false, false},
		"http://[2002:c00:7::1]":       {false, false},
		"/ip4/12.0.0.7/tcp/22":         {false, false},
		"/ip4/12.0.0.7/udp/1/quic-v1":  {false, false},
		"ws://12.0.0.7":                {false, false},
		"socks5://12.0.0.7":            {false, false},
		"grpc://12.0.0.7:1":            {false, false},
		"mcp://12.0.0.7":               {false, false},
		"http://[2a01:9::9]":           {false, false},
		"http://[2a01:7::8]":           {false, true}, // behind the same firewall
		"http://12.0.0.8":              {true, true},
		"http://[2a01:8::8]":           {true, true},
		"/ip4/13.0.0.9/tcp/4001":       {true, true},
		"/ip4/13.0.0.9/udp/1/quic-v1":  {true, true},
		"/ip4/127.0.0.1/udp/1/quic-v1": {false, false},
	})
	interfaces = append(interfaces, &net.IPNet{IP: net.IPv4(14, 0, 0, 1), Mask: net.CIDRMask(32, 32)}) // a tunnel comes up
	now = now.Add(readAgain)
	check(map[string][2]bool{"http://14.0.0.1": {false, false}})
	interfaces = nil
	now = now.Add(readAgain)
	check(map[string][2]bool{"http://12.0.0.7": {true, true}})
}

func TestParseRefuses(t *testing.T) {
	for _, endpoint := range []string{
		"", "://", "http://", "ftp://a", "wireguard://vpn.nowhere.net:51820", "grpc://a", "a", "http://user@a", "http://a:99999", "/ip4/1.2.3.4", "/ip4/1.2.3.4/udp/1",
		"/ip4/1.2.3.4/tcp/1/ws", "/p2p/12D3", "https://" + strings.Repeat("a", 300), "http://a b", "https://gpu.example.com", "http://x.test",
	} {
		target, ok := Parse(endpoint, nil)
		require.False(t, ok, "%q is %+v", endpoint, target.Kind)
	}
}
