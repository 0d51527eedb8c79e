package etcdclient

import (
	"context"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// TestOutage takes the majority of a group of three away, and gives it back. The plain watch and the waiting mutex of
// Go's client go on; a watch that requires a leader ends with etcd's error, and calls that require one fail so.
func TestOutage(t *testing.T) {
	peers.Long(t)
	program := peers.Build(t)
	t.Parallel()
	g := peers.New(t, 3, peers.Options{Program: program, Env: []string{enabled}})
	c := client(t, g.Peers[0])
	ctx := t.Context()
	plain := c.Watch(ctx, "w/", clientv3.WithPrefix())
	strict := c.Watch(clientv3.WithRequireLeader(ctx), "w/", clientv3.WithPrefix())
	held, waiting := session(t, c), session(t, c)
	first, second := concurrency.NewMutex(held, "m"), concurrency.NewMutex(waiting, "m")
	require.NoError(t, first.Lock(ctx))
	locked := make(chan error, 1)
	go func() { locked <- second.Lock(ctx) }()
	_, err := c.Put(ctx, "w/before", "")
	require.NoError(t, err)
	require.Equal(t, []string{"w/before"}, keys(t, plain))
	require.Equal(t, []string{"w/before"}, keys(t, strict))

	g.Kill(1)
	g.Kill(2)
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
	g.Start(t, 1)
	g.Start(t, 2)
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
	peers.Long(t)
	program := peers.Build(t)
	t.Parallel()
	g := peers.New(t, 1, peers.Options{Program: program, Env: []string{enabled}})
	g.Add(t)
	c := client(t, g.Peers[1])
	w := c.Watch(t.Context(), "w/", clientv3.WithPrefix())
	_, err := c.Put(t.Context(), "w/before", "")
	require.NoError(t, err)
	require.Equal(t, []string{"w/before"}, keys(t, w))
	g.Stop(t, 0)
	select {
	case r, open := <-w:
		require.Fail(t, "the watch ends", "%v %v %v", r, r.Err(), open)
	case <-time.After(15 * time.Second):
	}
	g.Start(t, 0)
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

// client is one of a peer.
func client(t *testing.T, p *peers.Peer) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Front}, DialTimeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// session is one that outlasts the outage.
func session(t *testing.T, c *clientv3.Client) *concurrency.Session {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(600))
	require.NoError(t, err)
	return s
}
