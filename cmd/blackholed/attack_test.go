package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// besieged is a peer with authentication under attack by tokens of role service.
type besieged struct {
	t                     *testing.T
	dir                   string
	pid                   int
	http, grpc, etcd, dns string
}

const honestToken = "the-token-of-the-honest-0123456789"

func attackToken(n int) string { return fmt.Sprint("the-greedy-token-0123456789abcdef-", n) }

func (b *besieged) start() (stop func()) {
	log, err := os.Create(filepath.Join(b.t.TempDir(), "log"))
	require.NoError(b.t, err)
	cmd := blackholed(b.t, []string{
		"GOMEMLIMIT=512MiB", "BLACKHOLE_NETWORK=siege-" + strconv.Itoa(os.Getpid()), "BLACKHOLE_DATA=" + b.dir, "BLACKHOLE_PROFILE=dev", "BLACKHOLE_LISTEN=/ip4/127.0.0.1/tcp/0",
		"BLACKHOLE_HTTP=127.0.0.1:0", "BLACKHOLE_GRPC=127.0.0.1:0", "BLACKHOLE_DNS=127.0.0.1:0", "BLACKHOLE_ETCD_LISTEN=127.0.0.1:0",
	}, "run")
	cmd.Stderr = log
	require.NoError(b.t, cmd.Start())
	b.t.Cleanup(func() { _ = cmd.Process.Kill() }) // after a failure
	up := regexp.MustCompile(`peer is up.* http=(\S+).* grpc=(\S+) etcd=(\S+) dns=(\S+)`)
	require.Eventually(b.t, func() bool {
		text, err := os.ReadFile(log.Name())
		found := up.FindSubmatch(text)
		if err != nil || found == nil {
			return false
		}
		b.http, b.grpc, b.etcd, b.dns = string(found[1]), string(found[2]), string(found[3]), string(found[4])
		return true
	}, time.Minute, 20*time.Millisecond)
	b.pid = cmd.Process.Pid
	return func() { end(b.t, cmd, log) }
}

// rest makes a request with a token on a connection of its own, and returns status and body.
func (b *besieged) rest(ctx context.Context, token, method, path, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+b.http+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Close = true
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// dial connects over gRPC, to the front for clients of etcd too.
func (b *besieged) dial(address string) *grpc.ClientConn {
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

func as(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// honest uses every part of the peer for a caller who holds next to nothing.
func (b *besieged) honest(ctx context.Context, n int) (took map[string]time.Duration, err error) {
	took = map[string]time.Duration{}
	step := func(name string, f func() error) {
		if err != nil {
			return
		}
		began := time.Now()
		if err = f(); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		took[name] = time.Since(began)
	}
	rest := func(method, path, body, want string) func() error {
		return func() error {
			code, text, err := b.rest(ctx, honestToken, method, path, body)
			if err == nil && (code >= 300 || !strings.Contains(text, want)) {
				err = fmt.Errorf("%d %s", code, text)
			}
			return err
		}
	}
	id := strconv.Itoa(n % 8)
	step("livez", rest("GET", "/livez", "", ""))
	step("put", rest("PUT", "/v1/coordination/keys/shop%2F"+id, "value", ""))
	step("get", rest("GET", "/v1/coordination/keys/shop%2F"+id, "", ""))
	lease := ""
	step("grant", func() error {
		code, text, err := b.rest(ctx, honestToken, "POST", "/v1/coordination/leases", `{"ttl_ms":60000}`)
		found := regexp.MustCompile(`"id": ?"(\w+)"`).FindStringSubmatch(text)
		if err != nil || found == nil {
			return fmt.Errorf("%d %s %w", code, text, err)
		}
		lease = found[1]
		return nil
	})
	step("lock", rest("POST", "/v1/coordination/locks/shop%2F"+id, `{"lease_id":"`+lease+`","timeout_ms":5000}`, `"acquired":true`))
	step("revoke", rest("DELETE", "/v1/coordination/leases/"+lease, "", ""))
	step("register", rest("POST", "/v1/services/shop/instances?require_commit=true", `{"id":"`+id+`","host":"192.0.2.1","port":80}`, `"committed":true`))
	step("find", rest("GET", "/v1/services/shop/instances", "", `"id":"`+id+`"`))
	step("deregister", rest("DELETE", "/v1/services/shop/instances/"+id, "", ""))
	return took, err
}

// others are the parts that the honest caller uses over connections of long life.
func (b *besieged) others(ctx context.Context, locks api.CoordinationServiceClient, etcd pb.KVClient) (took map[string]time.Duration, err error) {
	took = map[string]time.Duration{}
	began := time.Now()
	if _, err = locks.Range(as(ctx, honestToken), &api.RangeRequest{Key: []byte("shop/0")}); err != nil {
		return took, fmt.Errorf("gRPC: %w", err)
	}
	took["gRPC get"] = time.Since(began)
	began = time.Now()
	if _, err = etcd.Put(as(ctx, honestToken), &pb.PutRequest{Key: []byte("shop/e"), Value: []byte("v")}); err != nil {
		return took, fmt.Errorf("etcd: %w", err)
	}
	took["etcd put"] = time.Since(began)
	began = time.Now()
	if err = b.look("udp"); err != nil {
		return took, fmt.Errorf("DNS: %w", err)
	}
	took["DNS"] = time.Since(began)
	return took, nil
}

func question() []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 1}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName("fixed.service.blackhole."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	text, _ := m.Pack()
	return text
}

func (b *besieged) look(network string) error {
	c, err := net.DialTimeout(network, b.dns, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err = c.Write(question()); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1500))
	return err
}

// halfCalls writes what begins calls with half a request.
func halfCalls(token, method string, calls, size int) []byte {
	var wire, head bytes.Buffer
	fields, frames := hpack.NewEncoder(&head), http2.NewFramer(&wire, nil)
	wire.WriteString(http2.ClientPreface)
	_ = frames.WriteSettings()
	for stream := uint32(1); stream < uint32(2*calls); stream += 2 {
		head.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "localhost"}, {"content-type", "application/grpc"}, {"te", "trailers"}, {"authorization", "Bearer " + token},
		} {
			_ = fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true})
		if size > 0 {
			part := make([]byte, 16<<10)
			binary.BigEndian.PutUint32(part[1:], uint32(size))
			_ = frames.WriteData(stream, false, part)
		}
	}
	return wire.Bytes()
}

// attack is what a caller with a token does until the context ends; many of it run at once.
type attack func(b *besieged, ctx context.Context, token string, n int)

// open keeps connections open on which a text was sent, and reads nothing.
func open(address func(b *besieged) string, most int, text func(token string) []byte) attack {
	return func(b *besieged, ctx context.Context, token string, n int) {
		var all []net.Conn
		defer func() {
			for _, c := range all {
				c.Close()
			}
		}()
		for ctx.Err() == nil {
			c, err := net.DialTimeout("tcp", address(b), time.Second)
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
			_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			_, _ = c.Write(text(token))
			if all = append(all, c); len(all) >= most {
				all[0].Close()
				all = all[1:]
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}

// calling repeats a call over gRPC.
func calling(address func(b *besieged) string, call func(ctx context.Context, c *grpc.ClientConn, name string, n int) error) attack {
	return func(b *besieged, ctx context.Context, token string, n int) {
		c := b.dial(address(b))
		ctx = as(ctx, token)
		name := regexp.MustCompile(`\d+$`).FindString(token)
		for i := 0; ctx.Err() == nil; i++ {
			if call(ctx, c, "greedy-"+name, n<<32|i) != nil {
				time.Sleep(time.Millisecond) // refused
			}
		}
	}
}

func resting(request func(name string, n int) (method, path, body string)) attack {
	return func(b *besieged, ctx context.Context, token string, n int) {
		name := "greedy-" + regexp.MustCompile(`\d+$`).FindString(token)
		for i := 0; ctx.Err() == nil; i++ {
			method, path, body := request(name, n<<32|i)
			if code, _, err := b.rest(ctx, token, method, path, body); err != nil || code >= 300 {
				time.Sleep(time.Millisecond)
			}
		}
	}
}

func (b *besieged) attacks() map[string]attack {
	web, rpc, etcd := func(b *besieged) string { return b.http }, func(b *besieged) string { return b.grpc }, func(b *besieged) string { return b.etcd }
	dns := func(b *besieged) string { return b.dns }
	head := func(token string) string {
		return " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\n"
	}
	large := strings.Repeat("v", 512<<10)
	return map[string]attack{
		"leases": calling(rpc, func(ctx context.Context, c *grpc.ClientConn, _ string, _ int) error {
			_, err := api.NewLockServiceClient(c).LeaseGrant(ctx, &api.LeaseGrantRequest{TtlMs: 3600_000})
			return err
		}),
		"clients": calling(rpc, func(ctx context.Context, c *grpc.ClientConn, _ string, _ int) error {
			_, err := api.NewCoordinationServiceClient(c).OpenClient(ctx, &api.OpenClientRequest{})
			return err
		}),
		"keys": calling(rpc, func(ctx context.Context, c *grpc.ClientConn, name string, n int) error {
			_, err := api.NewCoordinationServiceClient(c).Txn(ctx, &api.TxnRequest{Then: []*api.TxnStep{{Step: &api.TxnStep_Put{Put: &api.TxnPut{Key: fmt.Appendf(nil, "%s/%d", name, n)}}}}})
			return err
		}),
		"large keys": calling(rpc, func(ctx context.Context, c *grpc.ClientConn, name string, n int) error {
			_, err := api.NewCoordinationServiceClient(c).Txn(ctx, &api.TxnRequest{Then: []*api.TxnStep{{Step: &api.TxnStep_Put{Put: &api.TxnPut{Key: fmt.Appendf(nil, "%s/%d", name, n%4), Value: []byte(large)}}}}})
			return err
		}),
		"requirements": calling(rpc, func(ctx context.Context, c *grpc.ClientConn, name string, n int) error {
			_, err := api.NewCoordinationServiceClient(c).SetRequirement(ctx, &api.SetRequirementRequest{Name: fmt.Sprintf("%s/%d", name, n), Min: 1, Query: &agentv1.DiscoverRequest{ServiceName: name}})
			return err
		}),
		"ranges": calling(rpc, func(ctx context.Context, c *grpc.ClientConn, _ string, _ int) error {
			_, err := api.NewCoordinationServiceClient(c).Range(ctx, &api.RangeRequest{Prefix: true})
			return err
		}),
		"watches": calling(rpc, func(ctx context.Context, c *grpc.ClientConn, _ string, _ int) error {
			w, err := api.NewLockServiceClient(c).Watch(ctx)
			for n := 0; err == nil && n < 200; n++ {
				err = w.Send(&api.WatchKeysRequest{Prefix: true, StartRevision: 1, PrevKv: true})
			}
			return err
		}),
		"waits for locks": func(b *besieged, ctx context.Context, token string, n int) {
			c := api.NewLockServiceClient(b.dial(b.grpc))
			ctx = as(ctx, token)
			name := "greedy-" + regexp.MustCompile(`\d+$`).FindString(token)
			var all sync.WaitGroup
			defer all.Wait()
			for i := range 2000 {
				all.Go(func() {
					for ctx.Err() == nil {
						lease, err := c.LeaseGrant(ctx, &api.LeaseGrantRequest{TtlMs: 60_000})
						if err == nil {
							_, err = c.Lock(ctx, &api.LockRequest{Name: fmt.Sprintf("%s/%d", name, i%100), LeaseId: lease.GetId(), TimeoutMs: 60_000, Metadata: make([]byte, 16_000)})
						}
						if err != nil {
							time.Sleep(100 * time.Millisecond)
						}
					}
				})
			}
		},
		"instances": resting(func(name string, n int) (string, string, string) {
			return "POST", "/v1/services/" + name + "/instances", `{"host":"192.0.2.2","port":80}`
		}),
		"offers": resting(func(name string, n int) (string, string, string) {
			if id := strconv.Itoa(n / 2); n%2 == 1 {
				return "DELETE", "/v1/services/" + name + "/instances/" + id, ""
			} else {
				return "POST", "/v1/services/" + name + "/instances", `{"id":"` + id + `","host":"192.0.2.2","port":80,"offer":{"type":"compute"}}`
			}
		}),
		"large puts": resting(func(name string, n int) (string, string, string) {
			return "PUT", "/v1/coordination/keys/" + name + "%2F" + strconv.Itoa(n%4), large
		}),
		"bodies at once": open(web, 1000, func(token string) []byte {
			return []byte("PUT /v1/coordination/keys/greedy-0%2Fb" + head(token) + "Content-Length: 1048576\r\n\r\n" + large)
		}),
		"silent lists": open(web, 500, func(token string) []byte {
			return []byte("GET /v1/coordination/keys?prefix=true" + head(token) + "\r\n")
		}),
		"events": open(web, 1000, func(token string) []byte {
			return []byte("GET /v1/events" + head(token) + "Accept: text/event-stream\r\n\r\n")
		}),
		"watches of services": open(web, 2000, func(token string) []byte {
			return []byte("GET /v1/services/shop/watch" + head(token) + "Accept: text/event-stream\r\n\r\n")
		}),
		"silent connections": open(web, 3000, func(string) []byte { return nil }),
		"half calls": open(rpc, 500, func(token string) []byte {
			return halfCalls(token, api.CoordinationService_Txn_FullMethodName, 20, 8<<20)
		}),
		"begun calls": open(rpc, 100, func(token string) []byte {
			return halfCalls(token, api.CoordinationService_Txn_FullMethodName, 2000, 0)
		}),
		"half calls of etcd": open(etcd, 500, func(token string) []byte {
			return halfCalls(token, "/etcdserverpb.KV/Put", 20, 4<<20)
		}),
		"begun calls of etcd": open(etcd, 100, func(token string) []byte { return halfCalls(token, "/etcdserverpb.Watch/Watch", 2000, 0) }),
		"watches of etcd": calling(etcd, func(ctx context.Context, c *grpc.ClientConn, name string, _ int) error {
			w, err := pb.NewWatchClient(c).Watch(ctx)
			for n := 0; err == nil && n < 200; n++ {
				err = w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 1, PrevKv: true}}})
			}
			return err
		}),
		"leases of etcd": calling(etcd, func(ctx context.Context, c *grpc.ClientConn, _ string, _ int) error {
			_, err := pb.NewLeaseClient(c).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 3600})
			return err
		}),
		"DNS": func(b *besieged, ctx context.Context, _ string, _ int) {
			for ctx.Err() == nil {
				_ = b.look("udp")
			}
		},
		"DNS connections": open(dns, 1000, func(string) []byte { return []byte{0} }),
	}
}

// TestFiveTokens: five tokens of role service attack every pool in their reach, one way after another. An honest caller is refused nothing.
// BLACKHOLE_SIEGE is the time of each attack, such as 5s; with -v the test says how long the honest caller waited.
func TestFiveTokens(t *testing.T) {
	text := os.Getenv("BLACKHOLE_SIEGE")
	if text == "" {
		t.Skip("takes minutes and all processors: set BLACKHOLE_SIEGE")
	}
	span, err := time.ParseDuration(text)
	require.NoError(t, err)
	b := &besieged{t: t, dir: t.TempDir()}
	settings := "auth: {enabled: true, method: token, tokens: [{token: " + honestToken + ", name: honest, role: service, services: [shop, fixed, etcd/shop]}"
	for n := range 5 {
		settings += fmt.Sprintf(", {token: %s, name: greedy-%d, role: service, services: [greedy-%d, etcd/greedy-%d]}", attackToken(n), n, n, n)
	}
	settings += "]}\nagent: {registrations_per_minute: 0, limits: {instances: 500}}\ncoordination: {limits: {leases: 2000, leases_per_owner: 200, keys: 20000, bytes: 200000000}}\n"
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "blackhole.yaml"), []byte(settings), 0o600))
	stop := b.start()
	require.Eventually(t, func() bool { _, err := b.honest(t.Context(), 0); return err == nil }, time.Minute, 100*time.Millisecond)
	all := b.attacks()
	names := []string{"quiet"}
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names[1:])
	for _, name := range names {
		if only := os.Getenv("BLACKHOLE_SIEGE_ONLY"); only != "" && !regexp.MustCompile(only).MatchString(name) {
			continue
		}
		b.siege(name, all[name], span)
	}
	stop()
	defer b.start()()
	require.Eventually(t, func() bool { _, err := b.honest(t.Context(), 0); return err == nil }, time.Minute, 100*time.Millisecond)
	b.siege("after the restart", nil, span)
}

func (b *besieged) siege(name string, attack attack, span time.Duration) {
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	var attackers sync.WaitGroup
	for n := range 5 {
		for worker := range 2 {
			if attack != nil {
				attackers.Go(func() { attack(b, ctx, attackToken(n), worker) })
			}
		}
	}
	locks, etcd := api.NewCoordinationServiceClient(b.dial(b.grpc)), pb.NewKVClient(b.dial(b.etcd))
	took := map[string][]time.Duration{}
	var failed atomic.Int32
	note := func(round map[string]time.Duration, err error) {
		for step, d := range round {
			took[step] = append(took[step], d)
		}
		if err != nil {
			if failed.Add(1) < 4 {
				b.t.Logf("%s: %v", name, err)
			}
		}
	}
	rounds := 0
	for began := time.Now(); time.Since(began) < span || rounds < 5; rounds++ {
		note(b.honest(ctx, rounds))
		note(b.others(ctx, locks, etcd))
	}
	cancel()
	attackers.Wait()
	var worst []string
	for step, all := range took {
		slices.Sort(all)
		worst = append(worst, fmt.Sprintf("%s %v/%v", step, all[len(all)/2].Round(time.Millisecond/10), all[len(all)-1].Round(time.Millisecond/10)))
	}
	slices.Sort(worst)
	v := victim{t: b.t, pid: b.pid}
	b.t.Logf("%s: %d rounds, %d failed, %d MiB; median/most: %s", name, rounds, failed.Load(), v.rss(), strings.Join(worst, ", "))
	if failed.Load() > 0 {
		b.t.Errorf("%s: the honest caller was refused %d times", name, failed.Load())
	}
}
