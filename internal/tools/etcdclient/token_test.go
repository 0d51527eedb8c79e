package etcdclient

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// TestRevokedToken: a client whose token ends under way learns it at each call, after a few messages, and goes on
// with its token given back.
func TestRevokedToken(t *testing.T) {
	peers.Long(t)
	program := peers.Build(t)
	t.Parallel()
	token := filepath.Join(t.TempDir(), "app.token")
	write := func(text string) { require.NoError(t, os.WriteFile(token, []byte(text+"\n"), 0o600)) }
	write("the-token-of-the-application")
	g := peers.New(t, 1, peers.Options{Program: program, Env: []string{enabled}, Config: fmt.Sprintf("auth:\n  enabled: true\n  method: token\n  tokens:\n"+
		"    - {token_file: %s, name: app, role: service, services: [\"etcd/*\"]}\n", token)})

	var calls atomic.Int64
	count := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		calls.Add(1)
		return call(ctx, method, req, reply, conn, o...)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{g.Peers[0].Front}, DialTimeout: 10 * time.Second, Username: "app", Password: "the-token-of-the-application",
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	require.NoError(t, err)
	defer c.Close()
	put := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := c.Put(ctx, "a", "1")
		return err
	}
	require.NoError(t, put())
	w := c.Watch(t.Context(), "a")

	write("another-token-of-nobody-at-all")
	require.Eventually(t, func() bool { return put() != nil }, time.Minute, 100*time.Millisecond)
	calls.Store(0)
	const tries = 20
	for range tries {
		require.ErrorIs(t, put(), rpctypes.ErrAuthFailed)
	}
	require.LessOrEqual(t, calls.Load(), int64(4*tries), "each call authenticates once and fails")
	time.Sleep(15 * time.Second) // the peer ends the watch meanwhile: it looks at credentials each 10 s
	require.LessOrEqual(t, calls.Load(), int64(8*tries), "nor is there a storm beside")

	write("the-token-of-the-application")
	require.Eventually(t, func() bool { return put() == nil }, time.Minute, 100*time.Millisecond)
	if r := receive(t, w); len(r.Events) == 0 { // it goes on, or its end has a reason
		require.Error(t, r.Err())
	}
}
