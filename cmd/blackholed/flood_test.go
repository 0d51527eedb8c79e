package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// victim is a peer under a flood.
type victim struct {
	t          *testing.T
	pid        int
	http, grpc string
	etcd       string // with the settings of TestSilentReaders
	client     *http.Client
}

// floods skips a test of a flood.
func floods(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getenv("TEST_LONG") == "" {
		t.Skip("reads /proc, and takes a while: set TEST_LONG=1, as .ci/night does")
	}
}

// startVictim runs a peer with a small limit of memory, so many descriptors (0: as many as the system gives), and
// more settings as variables.
func startVictim(t *testing.T, descriptors int, settings ...string) *victim {
	cmd := blackholed(t, append(settings,
		"GOMEMLIMIT=512MiB", "BLACKHOLE_NETWORK=flood-"+strconv.Itoa(os.Getpid()), "BLACKHOLE_DATA="+t.TempDir(), "BLACKHOLE_PROFILE=dev",
		"BLACKHOLE_HTTP=127.0.0.1:0", "BLACKHOLE_GRPC=127.0.0.1:0", "BLACKHOLE_DNS=off", "BLACKHOLE_LISTEN=/ip4/127.0.0.1/tcp/0",
	), "run")
	if descriptors > 0 {
		cmd.Args = []string{"bash", "-c", fmt.Sprintf(`ulimit -n %d && exec -a blackholed "$0" run`, descriptors), cmd.Path}
		cmd.Path = needs(t, "bash")
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(os.Interrupt), "it lives")
		require.NoError(t, cmd.Wait())
		_ = log.Close()
	})
	v := &victim{t: t, pid: cmd.Process.Pid, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	up := regexp.MustCompile(`peer is up.* http=(\S+).* grpc=(\S+)(?: etcd=(\S+))?`)
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(log.Name())
		found := up.FindSubmatch(text)
		if err != nil || found == nil {
			return false
		}
		v.http, v.grpc, v.etcd = string(found[1]), string(found[2]), string(found[3])
		return true
	}, 2*time.Minute, 20*time.Millisecond, "the peer did not start")
	commits(t, v.http)
	return v
}

// rss returns the memory of the peer, in MiB.
func (v *victim) rss() int { return v.memory("VmRSS") }

// peak returns the most memory that the peer had, in MiB.
func (v *victim) peak() int { return v.memory("VmHWM") }

func (v *victim) memory(kind string) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.pid))
	require.NoError(v.t, err)
	kib, err := strconv.Atoi(string(regexp.MustCompile(kind + `:\s+(\d+) kB`).FindSubmatch(text)[1]))
	require.NoError(v.t, err)
	return kib >> 10
}

// ask makes a request on a connection of its own.
func (v *victim) ask(method, path string, body []byte) (code int, text string) {
	req, err := http.NewRequestWithContext(v.t.Context(), method, "http://"+v.http+path, bytes.NewReader(body))
	require.NoError(v.t, err)
	resp, err := v.client.Do(req)
	require.NoError(v.t, err, path)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	require.NoError(v.t, err, path)
	return resp.StatusCode, string(all)
}

// read reads the small key. A program tries again if it meets the flood in the moment of its accept.
func (v *victim) read() bool {
	resp, err := v.client.Get("http://" + v.http + "/v1/coordination/keys/small")
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return err == nil && resp.StatusCode == 200
}

// say opens a connection, sends a text on it, and reads nothing.
func (v *victim) say(address, text string) {
	c, err := net.Dial("tcp", address)
	require.NoError(v.t, err)
	v.t.Cleanup(func() { c.Close() })
	require.NoError(v.t, c.(*net.TCPConn).SetReadBuffer(4<<10))
	_, err = io.WriteString(c, text)
	require.NoError(v.t, err)
}

// probe asks for health over HTTP and gRPC, and requires an answer to each question. It returns the longest times of both.
func (v *victim) probe(times int) (overHTTP, overGRPC time.Duration) {
	for range times {
		for _, path := range []string{"/livez", "/readyz"} {
			began := time.Now()
			code, text := v.ask("GET", path, nil)
			require.Equal(v.t, 200, code, text)
			overHTTP = max(overHTTP, time.Since(began))
		}
		began := time.Now()
		c, err := grpc.NewClient(v.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(v.t, err)
		_, err = healthpb.NewHealthClient(c).Check(v.t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(v.t, err)
		overGRPC = max(overGRPC, time.Since(began))
		require.NoError(v.t, c.Close())
	}
	return overHTTP, overGRPC
}

// silentGRPC asks for all keys, and has no room for the answer.
func (v *victim) silentGRPC(ctx context.Context) error {
	_, err := api.NewCoordinationServiceClient(v.slow(v.grpc)).Range(ctx, &api.RangeRequest{Key: []byte("big/"), Prefix: true})
	return err
}

// slow connects a client of gRPC that reads some kilobytes a second.
func (v *victim) slow(address string) *grpc.ClientConn {
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(
		func(ctx context.Context, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			return slow{c}, err
		}))
	require.NoError(v.t, err)
	v.t.Cleanup(func() { _ = c.Close() })
	return c
}

// slow reads some kilobytes a second.
type slow struct{ net.Conn }

func (s slow) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p[:min(len(p), 256)])
	if n == 256 {
		<-time.After(20 * time.Millisecond)
	}
	return n, err
}

// flood opens n connections, reads a key meanwhile unless the caller's places are all busy, and asks for health. With -v it says how
// long that took. It requires a bound of the memory.
func (v *victim) flood(name string, n int, one func(), busy bool, most int) {
	for range n {
		one()
	}
	var reads []time.Duration
	peak := v.rss()
	for n := 0; n < 200 && !busy; n++ {
		began := time.Now()
		require.Eventually(v.t, v.read, time.Minute, time.Microsecond)
		reads = append(reads, time.Since(began))
		peak = max(peak, v.rss())
	}
	overHTTP, overGRPC := v.probe(10)
	slices.Sort(reads)
	p99 := time.Duration(0)
	if len(reads) > 0 {
		p99 = reads[len(reads)*99/100]
	}
	v.t.Logf("%d %s: %d MiB, reads p99 %v, probes at most %v and %v", n, name, peak, p99, overHTTP, overGRPC)
	require.Less(v.t, peak, most, "MiB")
}

// quiet stores the small key, and measures the peer before a flood.
func (v *victim) quiet() (rss int) {
	code, text := v.ask("PUT", "/v1/coordination/keys/small", []byte("small"))
	require.Equal(v.t, 200, code, text)
	overHTTP, overGRPC := v.probe(30)
	rss = v.rss()
	v.t.Logf("quiet: %d MiB, probes at most %v and %v", rss, overHTTP, overGRPC)
	return rss
}

const head = " HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"

// TestFloodOfConnections: connections of one local caller without a request take no place from its other programs, and those
// with one none from its probes.
func TestFloodOfConnections(t *testing.T) {
	floods(t)
	v := startVictim(t, 256) // 64 connections of callers
	most := v.quiet() + 128
	v.flood("silent connections", 1000, func() { v.say(v.http, ""); v.say(v.grpc, "") }, false, most)
	v.flood("half requests", 1000, func() { v.say(v.http, "POST /v1/discovery/query"+head+"Content-Length: 9\r\n\r\n{") }, false, most)
	v.flood("streams of events", 1000, func() { v.say(v.http, "GET /v1/services/web/watch"+head+"\r\n") }, true, most)
}

// TestFloodOfRequests: one local caller begins large requests and does not end them. The peer's memory stays in its bounds, and probes and
// small reads of the same caller are answered.
func TestFloodOfRequests(t *testing.T) {
	floods(t)
	v := startVictim(t, 0)
	most := v.quiet() + 128
	half := halfCalls("", api.CoordinationService_Txn_FullMethodName, 20, 8<<20, 15) // within the window of a call
	v.flood("connections with 20 half calls of 8 MiB", 100, func() {
		c, err := net.Dial("tcp", v.grpc)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		go func() { _, _ = io.Copy(io.Discard, c) }()
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		_, _ = c.Write(half) // the rest finds no window
	}, false, most)
	body := strings.Repeat("v", 512<<10)
	v.flood("half bodies of 1 MiB", 300, func() {
		v.say(v.http, "PUT /v1/coordination/keys/large"+head+"Content-Length: 1048576\r\n\r\n"+body)
	}, false, most)
}

// TestFloodOfAnswers: one local caller reads none of the answers it asks for. The peer's memory stays in its bounds, probes and small
// reads of the same caller are answered, and the refusal of a large one names the pool.
func TestFloodOfAnswers(t *testing.T) {
	floods(t)
	v := startVictim(t, 0)
	value := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{})
	for n := range 10 {
		_, _ = random.Read(value)
		code, text := v.ask("PUT", fmt.Sprintf("/v1/coordination/keys/big%%2F%d", n), value)
		require.Equal(t, 200, code, text)
	}
	most := v.quiet() + 128
	v.flood("lists of keys", 200, func() { v.say(v.http, "GET /v1/coordination/keys?prefix=true&key=big/"+head+"\r\n") }, false, most)
	v.flood("watches from the start", 120, func() {
		v.say(v.http, "GET /v1/coordination/watch?prefix=true&key=big/&start_revision=1&prev_kv=true"+head+"\r\n")
	}, false, most)
	var refusal string
	require.Eventually(t, func() bool {
		var code int
		code, refusal = v.ask("GET", "/v1/coordination/keys?prefix=true&key=big/", nil)
		return code == 429
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, refusal, "pool.answer_bytes")

	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			if code := status.Code(v.silentGRPC(ctx)); code != codes.ResourceExhausted && code != codes.Canceled && code != codes.Unavailable {
				t.Errorf("an answer to a slow reader: %v", code)
			}
		})
	}
	overHTTP, overGRPC := v.probe(10)
	t.Logf("100 slow calls of gRPC: %d MiB, probes at most %v and %v", v.rss(), overHTTP, overGRPC)
	require.Less(t, v.rss(), most, "MiB")
	cancel()
	calls.Wait()
}

// TestSilentReaders: callers who read nothing ask each front for 50 MB. The peer's memory stays in its bounds, and
// small reads and probes are answered.
func TestSilentReaders(t *testing.T) {
	floods(t)
	v := startVictim(t, 0, "BLACKHOLE_CONSUL_ENABLED=true", "BLACKHOLE_ETCD_LISTEN=127.0.0.1:0")
	value := make([]byte, 500_000)
	random := rand.NewChaCha8([32]byte{})
	for n := range 50 {
		_, _ = random.Read(value)
		code, text := v.ask("PUT", fmt.Sprintf("/v1/kv/tree/%d", n), value)
		require.Equal(t, 200, code, text)
		code, text = v.ask("PUT", fmt.Sprintf("/v1/coordination/keys/etcd%%2Ftree%%2F%d", n), value)
		require.Equal(t, 200, code, text)
	}
	code, text := v.ask("GET", "/v1/kv/tree?recurse", nil)
	require.Contains(t, []int{200, 429}, code, "%.200s", text) // memory that one such answer takes is no flood
	most := v.quiet() + 64
	for _, n := range []int{40, 200} {
		v.flood("readers of Consul's keys", n, func() { v.say(v.http, "GET /v1/kv/tree?recurse"+head+"\r\n") }, false, most)
		v.flood("readers of keys over MCP", n, func() {
			v.say(v.http, mcpCall(`{"name":"list_services","arguments":{}}`))
		}, false, most)
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		v.flood("readers of etcd's keys", n, func() {
			calls.Go(func() {
				_, _ = pb.NewKVClient(v.slow(v.etcd)).Range(ctx, &pb.RangeRequest{Key: []byte("tree/"), RangeEnd: []byte("tree0")})
			})
		}, false, most)
		cancel()
		calls.Wait()
	}
}

// mcpCall is a request that calls a tool of MCP.
func mcpCall(params string) string {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
	return "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" +
		"Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}
