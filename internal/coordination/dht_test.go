package coordination_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/fault"
)

// unasking is a host without questions about the group, until its DHT had a value.
type unasking struct {
	host.Host
	values *values
}

func (u unasking) NewStream(ctx context.Context, to peer.ID, ids ...protocol.ID) (network.Stream, error) {
	if u.values.found.Load() == 0 && slices.Contains(ids, transport.AskProtocol("test")) {
		return nil, fault.New("unasking.NewStream", fault.Unavailable, "it does not ask")
	}
	return u.Host.NewStream(ctx, to, ids...)
}

// values is a peer's DHT.
type values struct {
	*dht.IpfsDHT
	gets, found atomic.Int64
}

func (v *values) PutValue(ctx context.Context, key string, value []byte) error {
	return v.IpfsDHT.PutValue(ctx, key, value)
}

func (v *values) GetValue(ctx context.Context, key string) ([]byte, error) {
	v.gets.Add(1)
	value, err := v.IpfsDHT.GetValue(ctx, key)
	if err == nil {
		v.found.Add(1)
	}
	return value, err
}

func newValues(t *testing.T, h host.Host, n bootstrap.Network) *values {
	d, err := dht.New(h, dht.ProtocolPrefix("/test"), dht.Mode(dht.ModeServer), dht.DisableAutoRefresh(), dht.DisableProviders(),
		dht.Validator(record.NamespacedValidator{announce.DHTNamespace(n.Name): announce.NewValidator(n, time.Now, nil)}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return &values{IpfsDHT: d}
}

// wire gives every peer a DHT with all other peers in its routing table.
func (w *testCluster) wire(n bootstrap.Network) {
	for _, p := range w.peers {
		p.values = newValues(w.t, p.host, n)
	}
	for i, a := range w.peers {
		for _, b := range w.peers[:i] {
			_, err := a.host.Network().DialPeer(w.t.Context(), b.host.ID())
			require.NoError(w.t, err)
		}
	}
	for _, p := range w.peers {
		w.await("the routing table is full", func() bool { return p.values.RoutingTable().Size() == len(w.peers)-1 })
	}
}

// TestFoundInDHT: a newcomer without announcements, and without questions before, finds the group and its leader in the DHT, and later
// the next leader.
func TestFoundInDHT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 5)
		n := w.listed(3)
		w.wire(n)
		for i := range 4 {
			w.start(i, n)
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		first := w.peers[w.leader()]
		late := w.peers[4]
		late.host = unasking{late.host, late.values}
		w.start(4, n)
		knows := func() string { _, leader, _ := late.Leading(); return leader }
		w.await("the newcomer finds the leader", func() bool { return knows() == first.id() })
		require.Equal(t, first.ID(), late.ID())

		first.stop(t)
		w.await("it finds the next one", func() bool { lead := knows(); return lead != "" && lead != first.id() })
	})
}

// TestDHTIsOld: a peer that returns alone finds the announcement of a leader that is gone, or its own, and believes in none.
func TestDHTIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3)
		n := w.listed(3)
		w.wire(n)
		for i := range w.peers {
			w.start(i, n)
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		at := w.leader()
		first := w.peers[at]
		time.Sleep(time.Minute) // it published
		for _, p := range w.peers {
			p.stop(t)
		}
		w.start(at, n)
		before := first.values.gets.Load()
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			_, leader, _ := first.Leading()
			require.Empty(t, leader)
		}
		require.Greater(t, first.values.gets.Load(), before)
	})
}

// TestLooksSeldom: a lonely peer without a known leader reads its DHT more and more rarely.
func TestLooksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 1)
		alone := w.peers[0]
		other, err := peer.Decode("12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp")
		require.NoError(t, err)
		n := w.listed(1)
		n.Founders = append(n.Founders, other)
		alone.values = newValues(t, alone.host, n)
		w.start(0, n)
		time.Sleep(20 * time.Minute)
		require.Greater(t, alone.values.gets.Load(), int64(5))
		require.Less(t, alone.values.gets.Load(), int64(20))
	})
}
