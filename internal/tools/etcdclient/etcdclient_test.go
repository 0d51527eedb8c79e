// Package etcdclient plays etcd's own Go client against a peer that serves etcd's API.
package etcdclient

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// TestClient: keys, transactions, watches, leases, mutexes, elections and software transactions, unchanged.
func TestClient(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	address := peer(t)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 5 * time.Second})
	require.NoError(t, err)
	defer c.Close()
	w := c.Watch(ctx, "p/", clientv3.WithPrefix(), clientv3.WithPrevKV())
	_, err = c.Put(ctx, "p/a", "1")
	require.NoError(t, err)
	_, err = c.Put(ctx, "p/a", "2")
	require.NoError(t, err)
	n := 0
	for r := range w {
		require.NoError(t, r.Err())
		n += len(r.Events)
		if n == 2 {
			require.Equal(t, "1", string(r.Events[len(r.Events)-1].PrevKv.Value))
			break
		}
	}
	tr, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision("p/b"), "=", 0)).Then(clientv3.OpPut("p/b", "x")).Else(clientv3.OpGet("p/b")).Commit()
	require.NoError(t, err)
	require.True(t, tr.Succeeded)
	l, err := c.Grant(ctx, 10)
	require.NoError(t, err)
	ka, err := c.KeepAlive(ctx, l.ID)
	require.NoError(t, err)
	require.EqualValues(t, 10, (<-ka).TTL)
	_, err = c.Put(ctx, "p/l", "v", clientv3.WithLease(l.ID))
	require.NoError(t, err)
	g, err := c.Get(ctx, "p/l")
	require.NoError(t, err)
	require.Equal(t, int64(l.ID), g.Kvs[0].Lease, "its owner reads the id")
	counter := 0
	var wg sync.WaitGroup
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s, err := concurrency.NewSession(c, concurrency.WithTTL(10))
			if !assert.NoError(t, err) {
				return
			}
			defer s.Close()
			m := concurrency.NewMutex(s, "m/lock")
			for j := 0; j < 5; j++ {
				assert.NoError(t, m.Lock(ctx))
				counter++
				assert.NoError(t, m.Unlock(ctx))
			}
		}()
	}
	wg.Wait()
	require.Equal(t, 40, counter)
	s, err := concurrency.NewSession(c)
	require.NoError(t, err)
	e := concurrency.NewElection(s, "e")
	require.NoError(t, e.Campaign(ctx, "me"))
	ld, err := e.Leader(ctx)
	require.NoError(t, err)
	require.Equal(t, "me", string(ld.Kvs[0].Value))
	require.NoError(t, e.Resign(ctx))
	for i := 0; i < 4; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 5; j++ {
				_, err := concurrency.NewSTM(c, func(s concurrency.STM) error { s.Put("stm", s.Get("stm")+"x"); return nil })
				assert.NoError(t, err)
			}
		}()
	}
	wg.Wait()
	g, err = c.Get(ctx, "stm")
	require.NoError(t, err)
	require.Len(t, g.Kvs[0].Value, 20)
	_, err = c.Compact(ctx, g.Header.Revision)
	require.NoError(t, err)
	_, err = c.Get(ctx, "stm", clientv3.WithRev(3))
	require.ErrorIs(t, err, rpctypes.ErrCompacted)
	_, err = c.Revoke(ctx, l.ID)
	require.NoError(t, err)
	g, err = c.Get(ctx, "p/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(t, err)
	require.EqualValues(t, 2, g.Count, "a key under a revoked lease is gone")
}

// TestManyWatches: ten thousand watches of one client, which go over one stream, each get their events.
func TestManyWatches(t *testing.T) {
	const many = 10_000
	c := client(t, peers.New(t, 1, peers.Options{Env: []string{enabled}}).Peers[0])
	watches := make([]clientv3.WatchChan, many)
	for n := range watches {
		watches[n] = c.Watch(t.Context(), strconv.Itoa(n))
	}
	for n := 0; n < many; n += 100 {
		_, err := c.Put(t.Context(), strconv.Itoa(n), "")
		require.NoError(t, err)
		require.Equal(t, []string{strconv.Itoa(n)}, keys(t, watches[n]))
	}
}

// peer starts a peer of this tree, and returns the address where it serves etcd's clients.
func peer(t *testing.T) string {
	return peers.New(t, 1, peers.Options{Env: []string{enabled}}).Peers[0].Front
}

// enabled is the setting of a peer that serves etcd's clients.
const enabled = "BLACKHOLE_ETCD_LISTEN=FRONT"
