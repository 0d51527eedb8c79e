package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

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
	from                  net.Dialer // the address of a caller
	web                   *http.Client
	trust                 *x509.CertPool
}

// Addresses of the peer, which the honest caller has too, and of the attackers.
const honestAddress, attackAddress = "10.0.0.1", "10.0.0.2"

// caller is the peer as a caller with an address sees it.
func (b *besieged) caller(address string) *besieged {
	one := *b
	one.from = net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	one.web = &http.Client{Transport: &http.Transport{DialContext: one.from.DialContext, TLSClientConfig: &tls.Config{RootCAs: b.trust}, DisableKeepAlives: true}}
	return &one
}

// certify gives the peer a certificate: it serves addresses beyond loopback by TLS alone.
func (b *besieged) certify() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(b.t, err)
	one := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.ParseIP(honestAddress)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, one, one, key.Public(), key)
	require.NoError(b.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(b.t, err)
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: der}, "server.key": {Type: "PRIVATE KEY", Bytes: secret}} {
		require.NoError(b.t, os.WriteFile(filepath.Join(b.dir, name), pem.EncodeToMemory(block), 0o600))
	}
	one, err = x509.ParseCertificate(der)
	require.NoError(b.t, err)
	b.trust = x509.NewCertPool()
	b.trust.AddCert(one)
}

// raw opens a connection with TLS.
func (b *besieged) raw(address, protocol string) (net.Conn, error) {
	return (&tls.Dialer{NetDialer: &b.from, Config: &tls.Config{RootCAs: b.trust, NextProtos: []string{protocol}}}).DialContext(b.t.Context(), "tcp", address)
}

const honestToken = "the-token-of-the-honest-0123456789"

func attackToken(n int) string { return fmt.Sprint("the-greedy-token-0123456789abcdef-", n) }

func (b *besieged) start() (stop func()) {
	log, err := os.Create(filepath.Join(b.t.TempDir(), "log"))
	require.NoError(b.t, err)
	cmd := blackholed(b.t, []string{
		"GOMEMLIMIT=512MiB", "BLACKHOLE_NETWORK=siege-" + strconv.Itoa(os.Getpid()), "BLACKHOLE_DATA=" + b.dir, "BLACKHOLE_PROFILE=dev", "BLACKHOLE_LISTEN=/ip4/127.0.0.1/tcp/0",
		"BLACKHOLE_HTTP=" + honestAddress + ":0", "BLACKHOLE_GRPC=" + honestAddress + ":0", "BLACKHOLE_DNS=" + honestAddress + ":0", "BLACKHOLE_ETCD_LISTEN=" + honestAddress + ":0",
	}, "run")
	cmd.Stderr = log
	require.NoError(b.t, cmd.Start())
	b.t.Cleanup(func() { // after a failure
		if b.t.Failed() {
			_ = cmd.Process.Kill()
			text, _ := os.ReadFile(log.Name())
			b.t.Logf("log of the peer: %s", text[max(len(text)-4096, 0):])
		}
	})
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
	r, err := http.NewRequestWithContext(ctx, method, "https://"+b.http+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := b.web.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// dial connects over gRPC, to the front for clients of etcd too.
func (b *besieged) dial(address string) *grpc.ClientConn {
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: b.trust})), grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		return b.from.DialContext(ctx, "tcp", to)
	}))
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
func (b *besieged) others(ctx context.Context, rpc, front *grpc.ClientConn) (took map[string]time.Duration, err error) {
	took = map[string]time.Duration{}
	locks, etcd := api.NewCoordinationServiceClient(rpc), pb.NewKVClient(front)
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
	for name, watch := range map[string]func(context.Context) error{
		"watch":        func(ctx context.Context) error { return b.watch(ctx, api.NewLockServiceClient(rpc)) },
		"etcd watch":   func(ctx context.Context) error { return watchOfEtcd(ctx, pb.NewWatchClient(front), etcd) },
		"Consul watch": b.watchOfConsul,
	} {
		began = time.Now()
		if err = told(as(ctx, honestToken), watch); err != nil {
			return took, fmt.Errorf("%s: %w", name, err)
		}
		took[name] = time.Since(began)
	}
	began = time.Now()
	if err = b.look("udp"); err != nil {
		return took, fmt.Errorf("DNS: %w", err)
	}
	took["DNS"] = time.Since(began)
	return took, nil
}

// told runs a watch that ends when it is told of a change.
func told(ctx context.Context, watch func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return watch(ctx)
}

func (b *besieged) watch(ctx context.Context, locks api.LockServiceClient) error {
	w, err := locks.Watch(ctx)
	if err == nil {
		err = w.Send(&api.WatchKeysRequest{Key: "shop/0"})
	}
	if err == nil {
		_, err = w.Recv() // created
	}
	if err != nil {
		return err
	}
	if code, text, err := b.rest(ctx, honestToken, "PUT", "/v1/coordination/keys/shop%2F0", "value"); err != nil || code >= 300 {
		return fmt.Errorf("%d %s %w", code, text, err)
	}
	for {
		if told, err := w.Recv(); err != nil || len(told.Events) > 0 {
			return err
		}
	}
}

func watchOfEtcd(ctx context.Context, watches pb.WatchClient, keys pb.KVClient) error {
	w, err := watches.Watch(ctx)
	if err == nil {
		err = w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("shop/e")}}})
	}
	if err == nil {
		_, err = w.Recv() // created
	}
	if err == nil {
		_, err = keys.Put(ctx, &pb.PutRequest{Key: []byte("shop/e"), Value: []byte("v")})
	}
	for err == nil {
		told, failed := w.Recv()
		if failed == nil && len(told.Events) > 0 {
			return nil
		}
		err = failed
	}
	return err
}

func (b *besieged) watchOfConsul(ctx context.Context) error {
	text := ""
	ask := func(method, query, body string) (err error) {
		code := 0
		if code, text, err = b.rest(ctx, honestToken, method, "/v1/kv/shop/c"+query, body); err == nil && code >= 300 {
			err = fmt.Errorf("%d %s", code, text)
		}
		return err
	}
	if err := ask("PUT", "", "v"); err != nil {
		return err
	}
	if err := ask("GET", "", ""); err != nil {
		return err
	}
	at := regexp.MustCompile(`"ModifyIndex": ?(\d+)`).FindStringSubmatch(text)
	if at == nil {
		return fmt.Errorf("no index in %s", text)
	}
	changed := make(chan error, 1)
	go func() {
		code, text, err := b.rest(ctx, honestToken, "PUT", "/v1/kv/shop/c", "w")
		if err == nil && code >= 300 {
			err = fmt.Errorf("%d %s", code, text)
		}
		changed <- err
	}()
	err := ask("GET", "?wait=15s&index="+at[1], "")
	if err == nil && !strings.Contains(text, `"Value":"dw=="`) {
		err = fmt.Errorf("not told: %s", text)
	}
	return errors.Join(err, <-changed)
}

func question() []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 1}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName("fixed.service.blackhole."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	text, _ := m.Pack()
	return text
}

func (b *besieged) look(network string) error {
	from := b.from
	if network == "udp" {
		from.LocalAddr = &net.UDPAddr{IP: from.LocalAddr.(*net.TCPAddr).IP}
	}
	c, err := from.Dial(network, b.dns)
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

// halfCalls writes what begins calls with a request of a size, and of each so many frames of 16 KiB.
func halfCalls(token, method string, calls, size, frames int) []byte {
	part := make([]byte, frames*frame)
	if size > 0 {
		binary.BigEndian.PutUint32(part[1:], uint32(size))
	}
	return begunCalls(token, method, calls, part, false)
}

const frame = 16 << 10 // the most that a peer takes in one frame of HTTP/2

// wholeCalls writes calls with a request each.
func wholeCalls(token, method string, calls int, request []byte) []byte {
	return begunCalls(token, method, calls, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...), true)
}

func begunCalls(token, method string, calls int, part []byte, whole bool) []byte {
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
		for rest := part; len(rest) > 0; rest = rest[min(frame, len(rest)):] {
			_ = frames.WriteData(stream, whole && len(rest) <= frame, rest[:min(frame, len(rest))])
		}
	}
	return wire.Bytes()
}

// attack is what a caller with a token does until the context ends; many of it run at once.
type attack func(b *besieged, ctx context.Context, token string, n int)

// open keeps connections open on which a text was sent, and reads nothing.
func open(address func(b *besieged) string, protocol string, most int, text func(token string) []byte) attack {
	return func(b *besieged, ctx context.Context, token string, n int) {
		var all []net.Conn
		defer func() {
			for _, c := range all {
				c.Close()
			}
		}()
		for ctx.Err() == nil {
			dial := b.from.Dial
			if protocol != "tcp" {
				dial = func(_, address string) (net.Conn, error) { return b.raw(address, protocol) }
			}
			c, err := dial("tcp", address(b))
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			if secure, ok := c.(*tls.Conn); ok {
				_ = secure.NetConn().(*net.TCPConn).SetReadBuffer(4 << 10)
			}
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
		"bodies at once": open(web, "http/1.1", 1000, func(token string) []byte {
			return []byte("PUT /v1/coordination/keys/greedy-0%2Fb" + head(token) + "Content-Length: 1048576\r\n\r\n" + large)
		}),
		"silent lists": open(web, "http/1.1", 500, func(token string) []byte {
			return []byte("GET /v1/coordination/keys?prefix=true" + head(token) + "\r\n")
		}),
		"events": open(web, "http/1.1", 1000, func(token string) []byte {
			return []byte("GET /v1/events" + head(token) + "Accept: text/event-stream\r\n\r\n")
		}),
		"watches of services": open(web, "http/1.1", 2000, func(token string) []byte {
			return []byte("GET /v1/services/shop/watch" + head(token) + "Accept: text/event-stream\r\n\r\n")
		}),
		"watches of Consul": open(web, "http/1.1", 2000, func(token string) []byte {
			return []byte("GET /v1/kv/none?wait=10m&index=1000000000" + head(token) + "\r\n")
		}),
		"silent lists of Consul": open(web, "http/1.1", 500, func(token string) []byte {
			return []byte("GET /v1/kv/greedy-0?recurse" + head(token) + "\r\n")
		}),
		"large keys of Consul": resting(func(name string, n int) (string, string, string) {
			return "PUT", "/v1/kv/" + name + "/" + strconv.Itoa(n%4), large
		}),
		"sessions of Consul": resting(func(string, int) (string, string, string) {
			return "PUT", "/v1/session/create", `{"TTL":"86400s"}`
		}),
		"registrations of Consul": resting(func(name string, n int) (string, string, string) {
			return "PUT", "/v1/agent/service/register", fmt.Sprintf(`{"Name":%q,"ID":"%d","Address":"192.0.2.2","Port":80,"Check":{"TTL":"60s"}}`, name, n)
		}),
		"calls of MCP": resting(func(name string, n int) (string, string, string) {
			arguments := []string{`"list_services","arguments":{}`, `"hold","arguments":{"names":["` + name + `"],"agent":"` + name + strconv.Itoa(n) + `","ttl":3600}`, `"find_offers","arguments":{"type":"compute"}`}
			return "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":` + arguments[n%len(arguments)] + `}}`
		}),
		"silent ranges of etcd": open(etcd, "h2", 500, func(token string) []byte {
			request, _ := proto.Marshal(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
			return wholeCalls(token, "/etcdserverpb.KV/Range", 20, request)
		}),
		"silent connections": open(web, "tcp", 3000, func(string) []byte { return nil }),
		"half calls": open(rpc, "h2", 500, func(token string) []byte {
			return halfCalls(token, api.CoordinationService_Txn_FullMethodName, 20, 8<<20, 1)
		}),
		"begun calls": open(rpc, "h2", 100, func(token string) []byte {
			return halfCalls(token, api.CoordinationService_Txn_FullMethodName, 2000, 0, 0)
		}),
		"half calls of etcd": open(etcd, "h2", 500, func(token string) []byte {
			return halfCalls(token, "/etcdserverpb.KV/Put", 20, 4<<20, 1)
		}),
		"begun calls of etcd": open(etcd, "h2", 100, func(token string) []byte { return halfCalls(token, "/etcdserverpb.Watch/Watch", 2000, 0, 0) }),
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
		"DNS connections": open(dns, "tcp", 1000, func(string) []byte { return []byte{0} }),
	}
}

// TestFiveTokens: five tokens of role service attack every pool in their reach, one way after another. An honest caller is refused nothing.
// TEST_SIEGE is the time of each attack, such as 5s; with -v the test says how long the honest caller waited.
func TestFiveTokens(t *testing.T) {
	text := os.Getenv("TEST_SIEGE")
	if text == "" {
		t.Skip("takes minutes and all processors: set TEST_SIEGE")
	}
	span, err := time.ParseDuration(text)
	require.NoError(t, err)
	if name := os.Getenv("TEST_SIEGE_ATTACK"); name != "" {
		(&besieged{t: t}).attack(name, os.Getenv("TEST_SIEGED"))
		return
	}
	if os.Getenv("TEST_SIEGED") == "" {
		shell := `ip link set lo up && ip addr add ` + honestAddress + `/32 dev lo && ip addr add ` + attackAddress + `/32 dev lo`
		if out, err := exec.Command(needs(t, "unshare"), "-rn", "sh", "-c", shell).CombinedOutput(); err != nil {
			t.Skipf("no network with addresses of its own: %v: %s", err, out)
		}
		cmd := exec.Command("unshare", append([]string{"-rn", "sh", "-c", shell + ` && exec "$0" "$@"`}, os.Args...)...)
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "TEST_SIEGED=1"), os.Stdout, os.Stderr
		require.NoError(t, cmd.Run())
		return
	}
	b := &besieged{t: t, dir: t.TempDir()}
	b.certify()
	b = b.caller(honestAddress)
	settings := "hosts: [" + honestAddress + "]\nauth: {server_cert: " + b.dir + "/server.crt, server_key: " + b.dir + "/server.key, enabled: true, method: token, tokens: [{token: " + honestToken + ", name: honest, role: service, services: [shop, fixed, etcd/shop, consul/shop]}"
	for n := range 5 {
		settings += fmt.Sprintf(", {token: %s, name: greedy-%d, role: service, services: [greedy-%d, etcd/greedy-%d, consul/greedy-%d]}", attackToken(n), n, n, n, n)
	}
	settings += "]}\nconsul: {enabled: true}\nagent: {registrations_per_minute: 0, limits: {instances: 500}}\ncoordination: {limits: {leases: 2000, leases_per_owner: 200, keys: 20000, bytes: 200000000}}\n"
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "blackhole.yaml"), []byte(settings), 0o600))
	stop := b.start()
	b.ready()
	all := b.attacks()
	names := []string{"quiet"}
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names[1:])
	for _, name := range names {
		if only := os.Getenv("TEST_SIEGE_ONLY"); only != "" && !regexp.MustCompile(only).MatchString(name) {
			continue
		}
		b.siege(name, all[name] != nil, span)
	}
	stop()
	defer b.start()()
	b.ready()
	b.siege("after the restart", false, span)
}

// cpu returns the processor time of a process, in the ticks of Linux (proc_pid_stat(5)).
func cpu(t *testing.T, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	ticks := 0
	for _, field := range fields[12:14] { // utime, stime
		n, err := strconv.Atoi(field)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// ready waits until the honest caller is served.
func (b *besieged) ready() {
	var err error
	served := func() bool { _, err = b.honest(b.t.Context(), 0); return err == nil }
	require.Eventually(b.t, served, time.Minute, 100*time.Millisecond, "%v", &err)
}

// attackers starts an attack from a process of its own, so that the honest caller waits for nothing but the peer and the processors.
func (b *besieged) attackers(name string) (pid int, end func()) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestFiveTokens$")
	cmd.Env = append(os.Environ(), "TEST_SIEGE_ATTACK="+name, "TEST_SIEGED="+strings.Join([]string{b.dir, b.http, b.grpc, b.etcd, b.dns}, " "))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, cmd.Start())
	b.t.Cleanup(func() { _ = cmd.Process.Kill() }) // after a failure
	return cmd.Process.Pid, func() {
		require.NoError(b.t, in.Close())
		require.NoError(b.t, cmd.Wait())
	}
}

// attack is the process of the attackers. They attack until its standard input ends.
func (b *besieged) attack(name, known string) {
	at := strings.Fields(known)
	b.dir, b.http, b.grpc, b.etcd, b.dns = at[0], at[1], at[2], at[3], at[4]
	text, err := os.ReadFile(filepath.Join(b.dir, "server.crt"))
	require.NoError(b.t, err)
	b.trust = x509.NewCertPool()
	require.True(b.t, b.trust.AppendCertsFromPEM(text))
	ctx, cancel := context.WithCancel(b.t.Context())
	var all sync.WaitGroup
	for n := range 5 {
		for worker := range 2 {
			all.Go(func() { b.attacks()[name](b.caller(attackAddress), ctx, attackToken(n), worker) })
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
}

func (b *besieged) siege(name string, attack bool, span time.Duration) {
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	attackers, end := 0, func() {}
	if attack {
		attackers, end = b.attackers(name)
	}
	rpc, etcd := b.dial(b.grpc), b.dial(b.etcd)
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
	peer, greedy, began := cpu(b.t, b.pid), time.Duration(0), time.Now()
	rounds := 0
	for ; time.Since(began) < span || rounds < 5; rounds++ {
		note(b.honest(ctx, rounds))
		note(b.others(ctx, rpc, etcd))
	}
	peer = cpu(b.t, b.pid) - peer
	if attack {
		greedy = cpu(b.t, attackers)
	}
	lasted := time.Since(began).Round(time.Second / 10)
	end()
	var worst []string
	for step, all := range took {
		slices.Sort(all)
		worst = append(worst, fmt.Sprintf("%s %v/%v", step, all[len(all)/2].Round(time.Millisecond/10), all[len(all)-1].Round(time.Millisecond/10)))
	}
	slices.Sort(worst)
	v := victim{t: b.t, pid: b.pid}
	b.t.Logf("%s: %d rounds in %v, %d failed, at most %d MiB so far; processor time of the peer %v, of the attackers %v; median/most: %s", name, rounds, lasted, failed.Load(), v.peak(), peer, greedy, strings.Join(worst, ", "))
	if failed.Load() > 0 {
		b.t.Errorf("%s: the honest caller was refused %d times", name, failed.Load())
	}
}
