package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// TestJoinedPeersHaveOneGroup starts peers as the README says, without a list of founders: a lock has one holder at all
// of them, an instance of one is found at all, and both outlive the leader.
func TestJoinedPeersHaveOneGroup(t *testing.T) {
	t.Parallel()
	binary := built(t)
	n, err := network.Start(t.Context(), network.Config{Peers: 3, Binary: binary, Dir: t.TempDir()})
	require.NoError(t, err)
	defer n.Stop()
	first, second, third := n.Peers[0], n.Peers[1], n.Peers[2]
	await3(t, n, "one group with three voters", func(ctx context.Context, p *network.Peer) error {
		g, err := p.Coordination().Group(ctx)
		if err == nil && (g.Leader == "" || len(g.Voters) != 3) {
			return fault.New(p.Name, fault.Unavailable, "%d voters", len(g.Voters))
		}
		return err
	})

	holder, err := first.Session(t.Context(), client.TTL(5*time.Second))
	require.NoError(t, err)
	held, err := holder.Lock(t.Context(), "jobs")
	require.NoError(t, err)
	other, err := second.Session(t.Context(), client.TTL(5*time.Second))
	require.NoError(t, err)
	_, err = other.TryLock(t.Context(), "jobs")
	require.ErrorIs(t, err, client.ErrNotAcquired)

	_, err = third.Services().Register(t.Context(), instance.Registration{
		Key: instance.Key{Service: "pay", ID: "pay-1"}, Spec: instance.Spec{Host: "127.0.0.1", Port: 9},
	})
	require.NoError(t, err)
	await3(t, n, "the instance at every peer", func(ctx context.Context, p *network.Peer) error {
		r, err := p.Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "pay"}})
		if err == nil && len(r.Instances) != 1 {
			return fault.New(p.Name, fault.NotFound, "%d instances", len(r.Instances))
		}
		return err
	})

	first.Kill() // the founder, and the holder's peer
	next, err := other.Lock(t.Context(), "jobs")
	require.NoError(t, err)
	require.Greater(t, next.Token(), held.Token())
}

// await3 waits until a condition holds at every living peer.
func await3(t *testing.T, n *network.Network, what string, holds func(context.Context, *network.Peer) error) {
	t.Helper()
	require.NoError(t, await.Until(t.Context(), 2*time.Minute, what, func(ctx context.Context) error {
		for _, p := range n.Living() {
			if err := holds(ctx, p); err != nil {
				return err
			}
		}
		return nil
	}))
}
