package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/blackhole/blackhole/internal/sim/loopback"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// TestGreedyTokens: five tokens of role service take all identities and leases that they get at a peer. A peer that joins then
// registers, is found at both, grants a lease and locks, as does the first, also after a restart of both.
func TestGreedyTokens(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts two peers, twice")
	}
	const admin = "the-token-of-the-admin-0123456789"
	greedy := func(n int) string { return fmt.Sprint("the-greedy-token-0123456789abcdef-", n) }
	settings := "auth: {enabled: true, method: token, tokens: [{token: " + admin + ", name: admin, role: admin}"
	for n := range 5 {
		settings += fmt.Sprintf(", {token: %s, name: greedy-%d, role: service, services: [greedy-%d]}", greedy(n), n, n)
	}
	settings += "]}\ncoordination: {voters: 1, limits: {clients: 500, clients_per_owner: 100, leases: 500, leases_per_owner: 100}}\n"
	first := &greedyPeer{t: t, dir: t.TempDir(), token: admin}
	require.NoError(t, os.WriteFile(filepath.Join(first.dir, "blackhole.yaml"), []byte(settings), 0o600))
	second := &greedyPeer{t: t, dir: t.TempDir()}
	for _, p := range []*greedyPeer{first, second} {
		_, port, err := net.SplitHostPort(loopback.Free(t))
		require.NoError(t, err)
		p.listen = "/ip4/127.0.0.1/tcp/" + port
	}
	stop := first.start()
	first.room("a", first)
	first.limited()
	for n := range 5 {
		first.takeAll(greedy(n))
	}
	first.room("b", first)
	line := succeeds(t, blackholed(t, []string{"BLACKHOLE_AUTH_TOKEN=" + admin}, "invite", "--data", first.dir, "--grpc", first.grpc))
	stopSecond := second.start("--join", regexp.MustCompile(`bh1_\S+`).FindString(line))
	second.room("c", first, second)
	stopSecond()
	stop()
	defer first.start()()
	defer second.start()()
	second.room("d", first, second)
	first.room("e", first, second)
}

// greedyPeer is a peer of the test.
type greedyPeer struct {
	t                  *testing.T
	dir, listen, token string
	http, grpc         string
	log                string // path
}

// start runs the peer until stop is called.
func (p *greedyPeer) start(args ...string) (stop func()) {
	log, err := os.Create(filepath.Join(p.t.TempDir(), "log"))
	require.NoError(p.t, err)
	cmd := blackholed(p.t, []string{
		"BLACKHOLE_NETWORK=greedy-" + strconv.Itoa(os.Getpid()), "BLACKHOLE_DATA=" + p.dir, "BLACKHOLE_PROFILE=dev", "BLACKHOLE_LISTEN=" + p.listen,
		"BLACKHOLE_HTTP=127.0.0.1:0", "BLACKHOLE_GRPC=127.0.0.1:0", "BLACKHOLE_DNS=off",
	}, append([]string{"run"}, args...)...)
	cmd.Stderr, p.log = log, log.Name()
	require.NoError(p.t, cmd.Start())
	p.t.Cleanup(func() { _ = cmd.Process.Kill() }) // after a failure
	up := regexp.MustCompile(`peer is up.* http=(\S+).* grpc=(\S+)`)
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		text, err := os.ReadFile(log.Name())
		require.NoError(c, err)
		found := up.FindSubmatch(text)
		require.NotNil(c, found, "%s", text)
		p.http, p.grpc = string(found[1]), string(found[2])
	}, time.Minute, 20*time.Millisecond)
	return func() { end(p.t, cmd, log) }
}

// limited waits until the leader has set the configured limits, a moment after the group began.
func (p *greedyPeer) limited() {
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		text, err := os.ReadFile(p.log)
		require.NoError(c, err)
		require.Contains(c, string(text), "changed the limits of the group")
	}, time.Minute, 20*time.Millisecond)
}

func end(t *testing.T, cmd *exec.Cmd, log io.Closer) {
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
	require.NoError(t, log.Close())
}

// takeAll opens more identities than there are, and grants leases until the pool refuses.
func (p *greedyPeer) takeAll(token string) {
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(p.t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(p.t.Context(), "authorization", "Bearer "+token)
	for range 510 {
		_, err := api.NewCoordinationServiceClient(conn).OpenClient(ctx, &api.OpenClientRequest{})
		require.NoError(p.t, err, "an identity is never refused")
	}
	for n := 0; err == nil; n++ {
		require.LessOrEqual(p.t, n, 100)
		_, err = api.NewLockServiceClient(conn).LeaseGrant(ctx, &api.LeaseGrantRequest{TtlMs: 3600_000})
	}
	for _, detail := range status.Convert(err).Details() {
		if e, ok := detail.(*api.Error); ok {
			require.Equal(p.t, fault.PoolExhausted, fault.Kind(e.GetKind()))
			require.Equal(p.t, "pool.leases.share", e.GetField())
			return
		}
	}
	require.Fail(p.t, "the refusal has no detail", "%v", err)
}

// room requires that this peer locks, grants a lease and registers, and that others find the instance.
func (p *greedyPeer) room(name string, others ...*greedyPeer) {
	var id string
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		text := p.ask(c, http.MethodPost, "/v1/coordination/leases", `{"ttl_ms":60000}`)
		found := regexp.MustCompile(`"id": ?"(\w+)"`).FindStringSubmatch(text)
		require.NotNil(c, found, text)
		id = found[1]
	}, time.Minute, 50*time.Millisecond)
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		require.Contains(c, p.ask(c, http.MethodPost, "/v1/coordination/locks/"+name, `{"lease_id":"`+id+`","timeout_ms":1000}`), `"acquired":true`)
		require.Contains(c, p.ask(c, http.MethodPost, "/v1/services/shop/instances?require_commit=true", `{"id":"`+name+`","host":"127.0.0.1","port":80}`), `"committed":true`)
	}, time.Minute, time.Second)
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		for _, other := range others {
			require.Contains(c, other.ask(c, http.MethodGet, "/v1/services/shop/instances", ""), `"id":"`+name+`"`)
		}
	}, time.Minute, 50*time.Millisecond)
}

func (p *greedyPeer) ask(c require.TestingT, method, path, body string) string {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.http+path, bytes.NewBufferString(body))
	require.NoError(c, err)
	if p.token != "" {
		r.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(c, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(c, err)
	require.Less(c, resp.StatusCode, 300, "%s", text)
	return string(text)
}
