package etcdclient

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
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// TestOutage takes the majority of a group of three away, and gives it back. The plain watch and the waiting mutex of Go's client go on; a watch
// that requires a leader ends with etcd's error, and calls that require one fail so.
func TestOutage(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	c := g.client(t, 0)
	ctx := t.Context()
	plain := c.Watch(ctx, "w/", clientv3.WithPrefix())
	strict := c.Watch(clientv3.WithRequireLeader(ctx), "w/", clientv3.WithPrefix())
	held, waiting := g.session(t, c), g.session(t, c)
	first, second := concurrency.NewMutex(held, "m"), concurrency.NewMutex(waiting, "m")
	require.NoError(t, first.Lock(ctx))
	locked := make(chan error, 1)
	go func() { locked <- second.Lock(ctx) }()
	_, err := c.Put(ctx, "w/before", "")
	require.NoError(t, err)
	require.Equal(t, []string{"w/before"}, keys(t, plain))
	require.Equal(t, []string{"w/before"}, keys(t, strict))

	g.kill(1)
	g.kill(2)
	last := receive(t, strict)
	require.ErrorIs(t, last.Err(), rpctypes.ErrNoLeader)
	for name, call := range map[string]func(context.Context) error{
		"put":   func(ctx context.Context) error { _, err := c.Put(ctx, "w/x", ""); return err },
		"get":   func(ctx context.Context) error { _, err := c.Get(ctx, "w/x"); return err },
		"watch": func(ctx context.Context) error { r := receive(t, c.Watch(ctx, "w/x")); return r.Err() },
	} {
		require.ErrorIs(t, call(clientv3.WithRequireLeader(ctx)), rpctypes.ErrNoLeader, name)
	}
	late := make(chan clientv3.WatchChan, 1)
	go func() { late <- c.Watch(ctx, "w/", clientv3.WithPrefix()) }()
	select { // longer than any time of the peer: a watch that is to end has ended
	case r, open := <-plain:
		require.Fail(t, "the plain watch ends", "%v %v %v", r, r.Err(), open)
	case err := <-locked:
		require.Fail(t, "the lock no longer waits", "%v", err)
	case <-time.After(20 * time.Second):
	}
	g.start(t, 1)
	g.start(t, 2)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := c.Put(ctx, "w/after", "")
		return err == nil
	}, 2*time.Minute, 100*time.Millisecond)
	require.Equal(t, "w/after", keys(t, plain)[0])
	begun := <-late
	_, err = c.Put(ctx, "w/last", "")
	require.NoError(t, err)
	for got := ""; got != "w/last"; {
		all := keys(t, begun)
		got = all[len(all)-1]
	}
	require.NoError(t, first.Unlock(ctx))
	require.NoError(t, <-locked)
}

// TestRestart: the only voter restarts cleanly, and the watch at the other peer goes on.
func TestRestart(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	g.add(t)
	c := g.client(t, 1)
	w := c.Watch(t.Context(), "w/", clientv3.WithPrefix())
	_, err := c.Put(t.Context(), "w/before", "")
	require.NoError(t, err)
	require.Equal(t, []string{"w/before"}, keys(t, w))
	g.stop(t, 0)
	select {
	case r, open := <-w:
		require.Fail(t, "the watch ends", "%v %v %v", r, r.Err(), open)
	case <-time.After(15 * time.Second):
	}
	g.start(t, 0)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.Put(ctx, "w/after", "")
		return err == nil
	}, 2*time.Minute, 100*time.Millisecond)
	require.Equal(t, "w/after", keys(t, w)[0])
}

// receive takes the next answer of a watch.
func receive(t *testing.T, w clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case r, open := <-w:
		require.True(t, open || r.Err() != nil, "the watch ended in silence")
		return r
	case <-time.After(time.Minute):
		require.Fail(t, "the watch tells nothing")
		return clientv3.WatchResponse{}
	}
}

// keys returns those of the next events of a watch.
func keys(t *testing.T, w clientv3.WatchChan) (all []string) {
	t.Helper()
	for len(all) == 0 {
		r := receive(t, w)
		require.NoError(t, r.Err())
		for _, e := range r.Events {
			all = append(all, string(e.Kv.Key))
		}
	}
	return all
}

// group is a network of peers of this tree on loopback.
type group struct {
	program, dir string
	first        string // address of the first peer
	peers        []*member
}

type member struct {
	listen, etcd, api, grpc string
	run                     *exec.Cmd
}

// newGroup starts peers, and waits until as many are members as can be.
func newGroup(t *testing.T, voters int) *group {
	g := &group{program: build(t), dir: t.TempDir()}
	for range voters {
		g.add(t)
	}
	return g
}

// add adds a peer, and waits until the group knows it.
func (g *group) add(t *testing.T) {
	t.Helper()
	n := len(g.peers)
	g.peers = append(g.peers, &member{
		listen: "/ip4/127.0.0.1/tcp/" + port(t), etcd: "127.0.0.1:" + port(t), api: "127.0.0.1:" + port(t),
		grpc: "127.0.0.1:" + port(t),
	})
	g.start(t, n)
	t.Cleanup(func() { g.kill(n) })
	if n == 0 {
		out := output(t, ".", g.program, "status", "--grpc", g.peers[0].grpc, "-o", "json")
		at := strings.Index(out, g.peers[0].listen+"/p2p/")
		require.Positive(t, at, out)
		g.first, _, _ = strings.Cut(out[at:], `"`)
	}
	c := g.client(t, n)
	require.Eventually(t, func() bool {
		list, err := c.MemberList(t.Context())
		voters := 0
		if err == nil {
			for _, m := range list.Members {
				if !m.IsLearner {
					voters++
				}
			}
		}
		return err == nil && len(list.Members) == n+1 && (n != 2 || voters == 3)
	}, 2*time.Minute, 100*time.Millisecond)
}

// start runs a peer, and waits until it answers.
func (g *group) start(t *testing.T, n int) {
	t.Helper()
	p := g.peers[n]
	_, network, _ := strings.Cut(g.peers[0].etcd, ":") // none but these peers have it
	args := []string{
		"run", "--network", "outage-" + network, "--data", filepath.Join(g.dir, fmt.Sprint(n)),
		"--http", p.api, "--grpc", p.grpc, "--dns", "off", "--listen", p.listen,
	}
	if n > 0 {
		args = append(args, "--bootstrap", g.first)
	}
	p.run = exec.Command(g.program, args...)
	p.run.Env = append(os.Environ(), "BLACKHOLE_ETCD_LISTEN="+p.etcd)
	require.NoError(t, p.run.Start())
	require.Eventually(t, func() bool {
		answer, err := http.Get("http://" + p.api + "/livez")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
}

// stop ends a peer as an operator does.
func (g *group) stop(t *testing.T, n int) {
	require.NoError(t, g.peers[n].run.Process.Signal(os.Interrupt))
	require.NoError(t, g.peers[n].run.Wait())
}

// kill ends a peer at once.
func (g *group) kill(n int) {
	_ = g.peers[n].run.Process.Kill()
	_ = g.peers[n].run.Wait()
}

// client is one of a peer.
func (g *group) client(t *testing.T, n int) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{g.peers[n].etcd}, DialTimeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// session is one that outlasts the outage.
func (g *group) session(t *testing.T, c *clientv3.Client) *concurrency.Session {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(600))
	require.NoError(t, err)
	return s
}

// port returns a free one.
func port(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}
