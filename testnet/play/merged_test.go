package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/groups"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

// TestSeparateGroupsBecomeOne starts three peers that found a group each, and then connects them. The empty group ends by
// itself, the one with a key by an order. Instances of all are found at all, and later tokens are above all earlier ones.
func TestSeparateGroupsBecomeOne(t *testing.T) {
	t.Parallel()
	binary := built(t)
	var bootstrap []string
	alone := func() *network.Network {
		n, err := network.Start(t.Context(), network.Config{
			Peers: 1, Binary: binary, Dir: t.TempDir(), Adapt: func(_ int, s *process.Spec) { s.Bootstrap = bootstrap },
		})
		require.NoError(t, err)
		t.Cleanup(n.Stop)
		return n
	}
	first, empty, full := alone(), alone(), alone()
	highest := coord.Token(0)
	for i, n := range []*network.Network{first, empty, full} {
		_, err := n.Peers[0].Services().Register(t.Context(), instance.Registration{
			Key: instance.Key{Service: "pay", ID: []string{"a", "b", "c"}[i]}, Spec: instance.Spec{Host: "127.0.0.1", Port: 9, UnhealthyAfter: 10 * time.Minute},
		})
		require.NoError(t, err)
		highest = max(highest, taken(t, n.Peers[0]))
	}
	for _, n := range []*network.Network{first, full} {
		_, _, err := coord.OpsOf(n.Peers[0].Coordination()).Do(t.Context(), coord.Command{Op: &coord.Txn{Then: []coord.Step{{Put: &coord.Put{Key: "app/x", Value: []byte("kept")}}}}})
		require.NoError(t, err)
	}

	bootstrap = first.Peers[0].Listen
	for _, n := range []*network.Network{empty, full} {
		n.Peers[0].Interrupt()
		require.NoError(t, n.Restart(t.Context(), n.Peers[0]))
	}
	group := func(n *network.Network) string {
		g, err := n.Peers[0].Coordination().Group(t.Context())
		if err != nil || g.Leader == "" {
			return ""
		}
		return g.ID
	}
	until := func(what string, holds func(context.Context) bool) {
		t.Helper()
		require.NoError(t, await.Until(t.Context(), time.Minute, what, func(ctx context.Context) error {
			if !holds(ctx) {
				return fault.New("testnet", fault.Unavailable, "not yet")
			}
			return nil
		}))
	}
	until("the empty group ends", func(context.Context) bool {
		g := group(empty)
		return g != "" && (g == group(first) || g == group(full))
	})
	require.NotEqual(t, group(first), group(full))
	until("the other one is told", func(ctx context.Context) bool {
		_, err := full.Peers[0].Coordination().ChangeMembers(ctx, coord.MemberChange{Action: coord.JoinGroup, Group: group(first), DryRun: true})
		return fault.KindOf(err) == fault.Conflict && fault.FieldOf(err) == "force"
	})
	require.NoError(t, groups.JoinGroups(t.Context(), full.Peers[0].Coordination(), first.Peers[0].Coordination()))
	until("one group", func(context.Context) bool { return group(full) == group(first) })
	for _, n := range []*network.Network{first, empty, full} {
		until("all instances", func(ctx context.Context) bool {
			r, err := n.Peers[0].Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "pay"}})
			return err == nil && len(r.Instances) == 3
		})
		require.Greater(t, taken(t, n.Peers[0]), highest)
	}
}

// taken takes a lock, gives it back, and returns the token.
func taken(t *testing.T, p *network.Peer) coord.Token {
	t.Helper()
	s, err := p.Session(t.Context(), client.TTL(5*time.Second))
	require.NoError(t, err)
	l, err := s.Lock(t.Context(), "jobs")
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
	return l.Token()
}
