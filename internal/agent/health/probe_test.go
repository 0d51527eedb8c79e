package health_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// once checks a target over the real network and returns its first report.
func once(t *testing.T, one health.Target, change func(*health.Config)) health.Report {
	t.Helper()
	reports := make(chan health.Report, 16)
	cfg := health.Config{Random: rand.NewPCG(1, 2).Uint64, Report: func(r health.Report) {
		select {
		case reports <- r:
		default:
		}
	}}
	if change != nil {
		change(&cfg)
	}
	c := health.New(cfg)
	defer c.Close()
	require.NoError(t, c.Set(one))
	select {
	case r := <-reports:
		return r
	case <-t.Context().Done():
		t.Fatal("no report")
		return health.Report{}
	}
}

// local is a target at a loopback address, with a generous timeout by default.
func local(t *testing.T, addr string, check instance.Check) health.Target {
	t.Helper()
	to, err := netip.ParseAddrPort(addr)
	require.NoError(t, err)
	if check.Timeout == 0 {
		check.Interval, check.Timeout = time.Minute, time.Minute
	}
	return health.Target{
		Key:  instance.Key{Namespace: "default", Service: "web", ID: "web-1"},
		Host: to.Addr().String(), Port: int(to.Port()), Check: check, Local: true,
	}
}

// wire serves each connection by a function and counts them.
func wire(t *testing.T, serve func(net.Conn)) (addr string, count *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	count = new(atomic.Int64)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return l.Addr().String(), count
}

// answering reads the head of the request and writes text.
func answering(text string) func(net.Conn) {
	return func(conn net.Conn) {
		drainHead(conn)
		_, _ = io.WriteString(conn, text)
	}
}

func drainHead(conn net.Conn) string {
	var head []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); head = append(head, b[0]) {
		if _, err := conn.Read(b); err != nil {
			break
		}
	}
	return string(head)
}

func TestHTTPAnswers(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	chunks := strings.Repeat("1\r\nx\r\n", 100_000)
	for name, tc := range map[string]struct {
		answer string
		kind   fault.Kind
		passes bool
	}{
		"200":                     {answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", passes: true},
		"204":                     {answer: "HTTP/1.1 204 No Content\r\n\r\n", passes: true},
		"299":                     {answer: "HTTP/1.1 299 x\r\n\r\n", passes: true},
		"1.0":                     {answer: "HTTP/1.0 200 OK\r\n\r\nuntil closed", passes: true},
		"interim":                 {answer: "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", passes: true},
		"body of a megabyte":      {answer: "HTTP/1.1 200 OK\r\n\r\n" + big, passes: true},
		"many chunks":             {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, passes: true},
		"body cut off":            {answer: "HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\nok", kind: fault.Unavailable},
		"199":                     {answer: strings.Repeat("HTTP/1.1 199 x\r\n\r\n", 9), kind: fault.Unavailable},
		"101":                     {answer: "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", kind: fault.Unavailable},
		"300":                     {answer: "HTTP/1.1 300 x\r\n\r\n", kind: fault.Unavailable},
		"404":                     {answer: "HTTP/1.1 404 x\r\n\r\n", kind: fault.Unavailable},
		"500":                     {answer: "HTTP/1.1 500 x\r\n\r\n", kind: fault.Unavailable},
		"no HTTP":                 {answer: "SSH-2.0-OpenSSH_9.9\r\n", kind: fault.Unavailable},
		"nothing":                 {kind: fault.Unavailable},
		"head of a megabyte":      {answer: "HTTP/1.1 200 OK\r\nA: " + big + "\r\n\r\n", kind: fault.Unavailable},
		"head of many fields":     {answer: "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 50_000) + "\r\n", kind: fault.Unavailable},
		"length that overflows":   {answer: "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", kind: fault.Unavailable},
		"length below zero":       {answer: "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", kind: fault.Unavailable},
		"status of four digits":   {answer: "HTTP/1.1 2000 OK\r\n\r\n", kind: fault.Unavailable},
		"redirect without a port": {answer: "HTTP/1.1 302 x\r\nLocation: http://169.254.169.254/\r\n\r\n", kind: fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := wire(t, answering(tc.answer))
			r := once(t, local(t, addr, instance.Check{Type: instance.HTTP, Endpoint: "/health"}), nil)
			require.Equal(t, tc.passes, r.Passing, "%v", r.Err)
			if !tc.passes {
				require.ErrorIs(t, r.Err, tc.kind)
			}
		})
	}
}

func TestHTTPRequest(t *testing.T) {
	heads := make(chan string, 1)
	addr, _ := wire(t, func(conn net.Conn) {
		heads <- drainHead(conn)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	r := once(t, local(t, addr, instance.Check{Type: instance.HTTP, Endpoint: "/a%0d%0ab?q=1"}), nil)
	require.True(t, r.Passing, "%v", r.Err)
	require.Equal(t, "GET /a%0d%0ab?q=1 HTTP/1.1\r\nHost: "+addr+
		"\r\nUser-Agent: blackholed-health\r\nAccept: */*\r\nConnection: close\r\n\r\n", <-heads)
}

// TestSlowAnswers checks that the timeout cuts off dripping answers.
func TestSlowAnswers(t *testing.T) {
	drip := func(head string) func(net.Conn) {
		return func(conn net.Conn) {
			drainHead(conn)
			_, err := io.WriteString(conn, head)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for ; err == nil; <-tick.C {
				_, err = io.WriteString(conn, "x")
			}
		}
	}
	for name, serve := range map[string]func(net.Conn){
		"silent":    func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
		"slow head": drip("HTTP/1.1 200 OK\r\nA: "),
		"slow body": drip("HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n"),
	} {
		for _, kind := range []instance.CheckType{instance.HTTP, instance.GRPC} {
			t.Run(name+" "+string(kind), func(t *testing.T) {
				addr, _ := wire(t, serve)
				r := once(t, local(t, addr, instance.Check{Type: kind, Timeout: 200 * time.Millisecond}), nil)
				require.False(t, r.Passing)
				if kind == instance.HTTP || name == "silent" {
					require.ErrorIs(t, r.Err, fault.Timeout)
				}
			})
		}
	}
}

func TestHTTPS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	one := local(t, server.Listener.Addr().String(), instance.Check{Type: instance.HTTP, Endpoint: server.URL + "/"})
	require.False(t, once(t, one, nil).Passing, "an unknown certificate")
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	r := once(t, one, func(cfg *health.Config) { cfg.TLS = &tls.Config{RootCAs: roots} })
	require.True(t, r.Passing, "%v", r.Err)
}

func TestTCP(t *testing.T) {
	addr, count := wire(t, func(net.Conn) {})
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	for _, endpoint := range []string{"", port, addr, "127.0.0.1:" + port} {
		r := once(t, local(t, addr, instance.Check{Type: instance.TCP, Endpoint: endpoint}), nil)
		require.True(t, r.Passing, "%q: %v", endpoint, r.Err)
	}
	require.Eventually(t, func() bool { return count.Load() == 4 }, time.Minute, time.Millisecond)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	r := once(t, local(t, l.Addr().String(), instance.Check{Type: instance.TCP}), nil)
	require.False(t, r.Passing)
	require.ErrorIs(t, r.Err, fault.Unavailable)
}

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, state := grpc.NewServer(), grpchealth.NewServer()
	state.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	state.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, state)
	var all sync.WaitGroup
	all.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); all.Wait() })
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	for endpoint, passes := range map[string]bool{
		"": true, port: true, addr: true, port + "/up": true, addr + "/up": true, "/up": true,
		"/down": false, "/unknown": false,
	} {
		r := once(t, local(t, addr, instance.Check{Type: instance.GRPC, Endpoint: endpoint}), nil)
		require.Equal(t, passes, r.Passing, "%q: %v", endpoint, r.Err)
	}
}

func TestGRPCOfOthers(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	bare := grpc.NewServer()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() { _ = bare.Serve(l) })
	t.Cleanup(func() { bare.Stop(); all.Wait() })
	for _, addr := range []string{plain.Listener.Addr().String(), l.Addr().String()} {
		r := once(t, local(t, addr, instance.Check{Type: instance.GRPC}), nil)
		require.False(t, r.Passing)
		require.ErrorIs(t, r.Err, fault.Unavailable)
	}
}

// h2c serves a handler over HTTP/2 without TLS.
func h2c(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestGRPCHostileAnswers(t *testing.T) {
	serving := "\x00\x00\x00\x00\x02\x08\x01"
	for name, tc := range map[string]struct {
		kind, status, body string
		passes             bool
	}{
		"serving":          {"application/grpc+proto", "0", serving, true},
		"unknown":          {"application/grpc", "0", "\x00\x00\x00\x00\x00", false},
		"other type":       {"text/html", "0", serving, false},
		"other status":     {"application/grpc", "14", serving, false},
		"no status":        {"application/grpc", "", serving, false},
		"no message":       {"application/grpc", "0", "", false},
		"compressed":       {"application/grpc", "0", "\x01\x00\x00\x00\x02\x08\x01", false},
		"length that lies": {"application/grpc", "0", "\x00\xff\xff\xff\xff\x08\x01", false},
		"two messages":     {"application/grpc", "0", serving + serving, false},
		"no protobuf":      {"application/grpc", "0", "\x00\x00\x00\x00\x02\xff\xff", false},
		"megabytes":        {"application/grpc", "0", strings.Repeat("x", 4<<20), false},
	} {
		t.Run(name, func(t *testing.T) {
			addr := h2c(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.kind)
				w.Header().Set("Trailer", "Grpc-Status")
				_, _ = io.WriteString(w, tc.body)
				w.Header().Set("Grpc-Status", tc.status)
			})
			r := once(t, local(t, addr, instance.Check{Type: instance.GRPC}), nil)
			require.Equal(t, tc.passes, r.Passing, "%v", r.Err)
		})
	}
}

func TestScriptsAreOff(t *testing.T) {
	l := newFixture(t, nil)
	one := target(1)
	one.Check = instance.Check{Type: instance.Script, Endpoint: "sh"}
	err := l.Set(one)
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "health_check.endpoint", fault.FieldOf(err))
}

// canary is a listener of this host that no check may reach; it counts
// connections.
func canary(t *testing.T) (*url.URL, *atomic.Int64) {
	t.Helper()
	addr, count := wire(t, answering("HTTP/1.1 200 OK\r\n\r\n"))
	return &url.URL{Scheme: "http", Host: addr}, count
}

func TestRedirectIsNotFollowed(t *testing.T) {
	bird, reached := canary(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		addr, count := wire(t, answering(fmt.Sprintf("HTTP/1.1 %d x\r\nLocation: %s\r\nRefresh: 0; url=%s\r\n\r\n", status, bird, bird)))
		r := once(t, local(t, addr, instance.Check{Type: instance.HTTP}), nil)
		require.False(t, r.Passing)
		require.Equal(t, int64(1), count.Load())
	}
	require.Zero(t, reached.Load())
}

// TestRebinding uses an instance of another host with a name that resolves to
// this host: at once, after a first honest answer, or beside an honest one.
func TestRebinding(t *testing.T) {
	bird, reached := canary(t)
	here := netip.MustParseAddrPort(bird.Host)
	t.Run("all", func(t *testing.T) { // ends with its subtests
		for name, answers := range map[string][][]netip.Addr{
			"loopback": {{here.Addr()}},
			"mapped":   {{netip.AddrFrom16(here.Addr().As16())}},
			"later":    {{netip.MustParseAddr("192.0.2.1")}, {here.Addr()}},
			"beside":   {{here.Addr(), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("169.254.169.254")}},
			"metadata": {{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}},
			"none":     {{}},
		} {
			for _, kind := range []instance.CheckType{instance.HTTP, instance.TCP, instance.GRPC} {
				t.Run(name+" "+string(kind), func(t *testing.T) {
					t.Parallel()
					rebind(t, bird.Host, kind, answers)
				})
			}
		}
	})
	require.Zero(t, reached.Load())
}

// rebind checks an instance of another host while its name resolves to one list
// after the other.
func rebind(t *testing.T, addr string, kind instance.CheckType, answers [][]netip.Addr) {
	var mu sync.Mutex
	var asked int
	one := local(t, addr, instance.Check{Type: kind, Interval: time.Second, Timeout: 100 * time.Millisecond})
	one.Host, one.Local = "rebind.test", false
	done := make(chan health.Report, 16)
	c := health.New(health.Config{
		Random: func() uint64 { return 0 },
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return answers[min(asked, len(answers))-1], nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "192.0.2.1:") {
				return nil, io.EOF
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		Report: func(r health.Report) {
			select {
			case done <- r:
			default:
			}
		},
	})
	require.NoError(t, c.Set(one))
	for range len(answers) {
		require.False(t, (<-done).Passing)
	}
	c.Close()
}

// TestAddressesAreBounded checks that a name with many addresses does not reach
// many hosts.
func TestAddressesAreBounded(t *testing.T) {
	var many []netip.Addr
	for i := range byte(100) {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, 0, i}))
	}
	var dials atomic.Int64
	one := target(1)
	one.Host = "many.test"
	r := once(t, one, func(cfg *health.Config) {
		cfg.Resolve = func(context.Context, string) ([]netip.Addr, error) { return many, nil }
		cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			return nil, io.EOF
		}
	})
	require.False(t, r.Passing)
	require.Equal(t, int64(4), dials.Load())
}

func TestEndpointsThatAreRefused(t *testing.T) {
	l := newFixture(t, nil)
	for name, tc := range map[string]struct {
		kind           instance.CheckType
		host, endpoint string
		local          bool
	}{
		"URL of another host":         {instance.HTTP, "10.0.0.1", "http://10.0.0.2/", false},
		"URL of another name":         {instance.HTTP, "a.test", "http://b.test/", false},
		"name for the address":        {instance.HTTP, "10.0.0.1", "http://a.test/", false},
		"metadata":                    {instance.HTTP, "10.0.0.1", "http://169.254.169.254/latest/meta-data/", true},
		"metadata as its own host":    {instance.HTTP, "169.254.169.254", "/", true},
		"metadata, mapped":            {instance.TCP, "::ffff:a9fe:a9fe", "", true},
		"loopback from afar":          {instance.HTTP, "127.0.0.1", "/", false},
		"loopback by the endpoint":    {instance.HTTP, "10.0.0.1", "http://127.0.0.1:8600/", false},
		"localhost by the endpoint":   {instance.TCP, "10.0.0.1", "localhost:22", false},
		"loopback, gRPC":              {instance.GRPC, "10.0.0.1", "[::1]:50051/up", false},
		"another host, local":         {instance.TCP, "127.0.0.1", "10.0.0.1:22", true},
		"user information":            {instance.HTTP, "10.0.0.1", "http://10.0.0.1@10.0.0.2/", false},
		"user information of its own": {instance.HTTP, "10.0.0.1", "http://user:secret@10.0.0.1/", false},
		"fragment":                    {instance.HTTP, "10.0.0.1", "http://10.0.0.2#@10.0.0.1/", false},
		"backslash":                   {instance.HTTP, "10.0.0.1", `http://10.0.0.2\@10.0.0.1/`, false},
		"decimal":                     {instance.HTTP, "10.0.0.1", "http://2130706433/", true},
		"octal":                       {instance.HTTP, "10.0.0.1", "http://0177.0.0.1/", true},
		"short":                       {instance.HTTP, "10.0.0.1", "http://127.1/", true},
		"zone":                        {instance.HTTP, "10.0.0.1", "http://[fe80::1%25eth0]/", true},
		"gopher":                      {instance.HTTP, "10.0.0.1", "gopher://10.0.0.1/_x", false},
		"file":                        {instance.HTTP, "10.0.0.1", "file:///etc/passwd", false},
		"without a scheme":            {instance.HTTP, "10.0.0.1", "//10.0.0.2/", false},
		"line break":                  {instance.HTTP, "10.0.0.1", "/\r\nHost: x", false},
		"space":                       {instance.HTTP, "10.0.0.1", "/?a HTTP/1.1", false},
		"no port":                     {instance.TCP, "10.0.0.1", "10.0.0.1", false},
		"port 0":                      {instance.TCP, "10.0.0.1", "0", false},
		"no host":                     {instance.HTTP, "", "/", true},
		"no host, port":               {instance.TCP, "", "80", true},
		"multicast":                   {instance.TCP, "224.0.0.1", "", true},
		"unspecified":                 {instance.TCP, "0.0.0.0", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			one := target(1)
			one.Host, one.Local = tc.host, tc.local
			one.Check = instance.Check{Type: tc.kind, Endpoint: tc.endpoint}
			err := l.Set(one)
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, "health_check.endpoint", fault.FieldOf(err))
			require.Equal(t, err.Error()[len("health.Set: "):], l.Validate(one).Error()[len("health.Validate: "):])
		})
	}
	_, ok := l.Measured(target(1).Key)
	require.False(t, ok, "nothing was set")
}

func TestEndpointsThatFit(t *testing.T) {
	l := newFixture(t, nil)
	for name, tc := range map[string]struct {
		kind           instance.CheckType
		host, endpoint string
		local          bool
		want           string
	}{
		"path":                 {instance.HTTP, "10.0.0.1", "/health?x=1", false, "10.0.0.1:80"},
		"URL":                  {instance.HTTP, "10.0.0.1", "http://10.0.0.1:81/", false, "10.0.0.1:81"},
		"URL, standard port":   {instance.HTTP, "2001:db8::1", "http://[2001:DB8:0::1]/", false, "[2001:db8::1]:80"},
		"https":                {instance.HTTP, "10.0.0.1", "https://10.0.0.1/", false, "10.0.0.1:443"},
		"loopback of its own":  {instance.HTTP, "127.0.0.1", "/", true, "127.0.0.1:80"},
		"loopback beside host": {instance.TCP, "10.0.0.1", "127.0.0.1:9000", true, "127.0.0.1:9000"},
		"loopback, no host":    {instance.TCP, "", "127.0.0.1:9001", true, "127.0.0.1:9001"},
		"IPv6 and service":     {instance.GRPC, "2001:db8::2", "[2001:db8::2]:81/a/b", false, "[2001:db8::2]:81"},
		"mapped":               {instance.TCP, "::ffff:10.0.0.3", "82", false, "10.0.0.3:82"},
	} {
		t.Run(name, func(t *testing.T) {
			l.set(tc.want, refuse)
			one := target(1)
			one.Host, one.Local, one.Key.ID = tc.host, tc.local, name
			one.Check = instance.Check{Type: tc.kind, Endpoint: tc.endpoint}
			require.NoError(t, l.Set(one))
			require.Eventually(t, func() bool { return len(l.dialled(tc.want)) > 0 }, time.Minute, time.Millisecond)
		})
	}
}
