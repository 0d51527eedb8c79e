package main

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/disk"
	"github.com/blackhole/blackhole/testnet/network"
)

// TestDiskFull: a full disk stops the member of a lone peer and nothing else. A start on the full disk ends soon with the
// reason. After space is freed, a restart has everything that was acknowledged.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small, err := disk.Mount(dir, 24<<20)
	if err != nil {
		t.Skip(err)
	}
	defer func() { require.NoError(t, small.Close()) }()
	binary := built(t)
	n, err := network.Start(t.Context(), network.Config{Peers: 1, Founders: 1, Binary: binary, Dir: dir, Keep: true})
	require.NoError(t, err)
	defer n.Stop()
	p := n.Peers[0]
	api := p.API
	eventually := func(what string, f func(context.Context) error) {
		t.Helper()
		require.NoError(t, await.Until(t.Context(), time.Minute, what, f))
	}
	eventually("registered", func(ctx context.Context) error {
		_, err := api.Register(ctx, "pay", app.Registration{ID: "pay-1", Host: "127.0.0.1", Port: 80}, true)
		return err
	})
	require.NoError(t, small.Fill())
	acknowledged := 0
	for err = nil; err == nil && acknowledged < 1000; acknowledged++ {
		err = put(t.Context(), p, acknowledged)
	}
	acknowledged--
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "no space left on device")

	require.NoError(t, api.Heartbeat(t.Context(), "pay", "pay-1"))
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGHUP), "a hangup ends nothing")
	list, err := api.Instances(t.Context(), "pay", false)
	require.NoError(t, err)
	require.Equal(t, []string{"pay-1"}, list.IDs())
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, p.DNS)
	}}
	hosts, err := resolver.LookupHost(t.Context(), "pay.service.consul.")
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1"}, hosts)
	status, err := p.Status(t.Context())
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(status.Conditions), "member_stopped")

	p.Interrupt()
	require.ErrorContains(t, n.Restart(t.Context(), p), "Free or repair")
	require.NoError(t, small.Free())
	require.NoError(t, n.Restart(t.Context(), n.Peers[0]))
	p = n.Peers[0]
	eventually("everything is there", func(ctx context.Context) error {
		page, _, err := ops.Of(p.Coordination()).Range(ctx, ops.Query{Span: coord.Under("app/")}, ops.Linearizable)
		if err == nil && len(page.Keys) < acknowledged {
			return await.Never(fault.New("", fault.Internal, "%d of %d keys", len(page.Keys), acknowledged))
		}
		return err
	})
	require.NoError(t, put(t.Context(), p, acknowledged+1))
}

// put writes a key with a long value.
func put(ctx context.Context, p *network.Peer, i int) error {
	_, _, err := ops.Of(p.Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{
		Then: []ops.Step{{Put: &ops.Put{Key: fmt.Sprintf("app/%d", i), Value: make([]byte, 60_000)}}},
	}})
	return err
}
