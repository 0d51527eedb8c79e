// Package xdsclient plays the xDS client of grpc-go against a peer: no proxy, and nothing of this project in the client.
package xdsclient

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

// TestClient follows a service from no instance over two to another one, by calls to the servers of the instances.
func TestClient(t *testing.T) {
	httpAddress, grpcAddress := start(t)
	a, b, other := server(t), server(t), server(t)
	web, shop := dial(t, grpcAddress, "web"), dial(t, grpcAddress, "shops/till")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := call(ctx, web, false)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)

	register(t, httpAddress, "web", "a", "", a)
	got, err := call(ctx, web, true)
	require.NoError(t, err)
	require.Equal(t, a, got)

	register(t, httpAddress, "web", "b", "", b)
	answering(t, web, a, b)
	register(t, httpAddress, "web", "again", "", b) // an address twice: a client would refuse the list
	send(t, http.MethodPut, httpAddress+"/v1/services/web/instances/a/status", `{"status": "OUT_OF_SERVICE"}`)
	answering(t, web, b)

	register(t, httpAddress, "till", "one", "shops", other)
	got, err = call(ctx, shop, true)
	require.NoError(t, err)
	require.Equal(t, other, got)

	send(t, http.MethodDelete, httpAddress+"/v1/services/web/instances/b", "")
	send(t, http.MethodDelete, httpAddress+"/v1/services/web/instances/again", "")
	require.Eventually(t, func() bool { _, err := call(t.Context(), web, false); return status.Code(err) == codes.Unavailable }, 20*time.Second, 20*time.Millisecond)
	send(t, http.MethodPut, httpAddress+"/v1/services/web/instances/a/status", `{"status": "UNKNOWN"}`)
	answering(t, web, a)
}

// server is an instance: a server with the health service of gRPC.
func server(t *testing.T) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func dial(t *testing.T, grpcAddress, service string) *grpc.ClientConn {
	bootstrap := fmt.Sprintf(`{"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}], "node": {"id": "test"}}`, grpcAddress)
	r, err := xds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	require.NoError(t, err)
	c, err := grpc.NewClient("xds:///"+service, grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// call returns who answered.
func call(ctx context.Context, c *grpc.ClientConn, wait bool) (string, error) {
	var from peer.Peer
	_, err := healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(wait), grpc.Peer(&from))
	if err != nil {
		return "", err
	}
	return from.Addr.String(), nil
}

// answering waits until calls are answered by all of a list, and by nobody else in twenty calls.
func answering(t *testing.T, c *grpc.ClientConn, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		seen := map[string]bool{}
		for range 20 {
			from, err := call(t.Context(), c, false)
			if err != nil {
				return false
			}
			seen[from] = true
		}
		for _, address := range want {
			if !seen[address] {
				return false
			}
		}
		return len(seen) == len(want)
	}, 20*time.Second, 20*time.Millisecond)
}

func register(t *testing.T, httpAddress, service, id, namespace, address string) {
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	path := httpAddress + "/v1/services/" + service + "/instances"
	if namespace != "" {
		path += "?namespace=" + namespace
	}
	send(t, http.MethodPost, path, fmt.Sprintf(`{"id": %q, "host": %q, "port": %s, "remove_after": "never"}`, id, host, port))
}

func send(t *testing.T, method, url, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Less(t, answer.StatusCode, 300, "%s %s", method, url)
}

// start starts a peer.
func start(t *testing.T) (httpAddress, grpcAddress string) {
	program := filepath.Join(t.TempDir(), "blackholed")
	build := exec.CommandContext(t.Context(), "go", "run", "-tags=lab", "-exec=cp", "./cmd/blackholed", program) // "go run" keeps what it has linked
	build.Dir = "../../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	httpAddress, grpcAddress = free(t), free(t)
	ctx, stop := context.WithCancel(context.Background())
	run := exec.CommandContext(ctx, program, "run", "--data", t.TempDir(), "--http", httpAddress, "--grpc", grpcAddress, "--dns", "off", "--listen", "/ip4/127.0.0.1/tcp/0")
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	require.NoError(t, run.Start())
	t.Cleanup(func() { stop(); _ = run.Wait() })
	require.Eventually(t, func() bool {
		answer, err := http.Get("http://" + httpAddress + "/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}, 30*time.Second, 100*time.Millisecond)
	return httpAddress, grpcAddress
}

// free returns an address that nobody uses yet.
func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}
