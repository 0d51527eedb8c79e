package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/disk"
	"github.com/blackhole/blackhole/testnet/network"
)

// TestDiskFull: a full disk stops the member of a lone peer and its registrations, and nothing else. Once there is
// space again both go on by themselves with everything that was acknowledged. A start on a full disk ends soon with
// the reason.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small, err := disk.Mount(dir, 48<<20)
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
	stopped := func(c discovery.Condition) bool { return c.Name == "member_stopped" }
	require.True(t, slices.ContainsFunc(status.Conditions, stopped))
	require.Contains(t, fmt.Sprint(status.Conditions), "when 20 MiB are free")
	_, err = api.Register(t.Context(), "pay", app.Registration{ID: "pay-2", Host: "127.0.0.1", Port: 80}, false)
	require.ErrorContains(t, err, "the disk is full")

	require.NoError(t, small.Free())
	whole := func(ctx context.Context) error {
		page, _, err := ops.Of(p.Coordination()).Range(ctx, ops.Query{Span: coord.Under("app/")}, ops.Linearizable)
		if err == nil && len(page.Keys) < acknowledged {
			return await.Never(fault.New("", fault.Internal, "%d of %d keys", len(page.Keys), acknowledged))
		}
		return err
	}
	eventually("everything is there", whole)
	_, err = api.Register(t.Context(), "pay", app.Registration{ID: "pay-2", Host: "127.0.0.1", Port: 80}, false)
	require.NoError(t, err)
	require.NoError(t, put(t.Context(), p, acknowledged))
	status, err = p.Status(t.Context())
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(status.Conditions, stopped))

	require.NoError(t, small.Fill())
	p.Interrupt()
	require.ErrorContains(t, n.Restart(t.Context(), p), "Free or repair")
	require.NoError(t, small.Free())
	require.NoError(t, n.Restart(t.Context(), n.Peers[0]))
	p = n.Peers[0]
	eventually("everything is there", whole)
	require.NoError(t, put(t.Context(), p, acknowledged+1))
}

// TestDiskFullOfMember: the disks of the leader, of another voter and of a learner are full one after the other. The
// others go on, and each is a member again, in the same process, once its disk has space.
func TestDiskFullOfMember(t *testing.T) {
	long(t)
	t.Parallel()
	const peers = 4
	dir, disks := t.TempDir(), make([]*disk.Disk, peers)
	for i := range disks {
		data := filepath.Join(dir, fmt.Sprintf("peer-%d", i+1))
		require.NoError(t, os.Mkdir(data, 0o700))
		var err error
		if disks[i], err = disk.Mount(data, 96<<20); err != nil {
			t.Skip(err)
		}
		defer func() { require.NoError(t, disks[i].Close()) }()
	}
	n, err := network.Start(t.Context(), network.Config{Peers: peers, Founders: peers, Binary: built(t), Dir: dir, Keep: true})
	require.NoError(t, err)
	defer n.Stop()
	written, at := 0, n.Peers[0]
	eventually := func(what string, f func(context.Context, coord.GroupState) error) {
		t.Helper()
		require.NoError(t, await.Until(t.Context(), 2*time.Minute, what, func(ctx context.Context) error {
			g, err := at.Coordination().Group(ctx)
			if err == nil {
				err = f(ctx, g)
			}
			return err
		}))
	}
	write := func(ctx context.Context) error {
		err := put(ctx, at, written)
		if err == nil {
			written++
		}
		return err
	}
	for _, role := range []string{"leader", "voter", "learner"} {
		victim := -1
		eventually("a "+role, func(_ context.Context, g coord.GroupState) error {
			if g.Leader == "" || len(g.Voters) != 3 || len(g.Learners) != 1 || g.Survives != 1 {
				return fault.New("", fault.Unavailable, "%+v", g)
			}
			victim = slices.IndexFunc(n.Peers, func(p *network.Peer) bool {
				learns := g.Learners[0].Peer == p.ID.String()
				return (role == "learner") == learns && (role == "leader") == (g.Leader == p.ID.String())
			})
			return nil
		})
		p := n.Peers[victim]
		at = n.Peers[(victim+1)%peers]
		pid := p.PID()
		require.NoError(t, disks[victim].Fill())
		eventually("the member of the "+role+" has stopped, and others take writes", func(ctx context.Context, _ coord.GroupState) error {
			status, err := p.Status(ctx)
			if err == nil && !strings.Contains(fmt.Sprint(status.Conditions), "when 20 MiB are free") {
				err = fault.New("", fault.Unavailable, "%v", status.Conditions)
			}
			return errors.Join(err, write(ctx))
		})
		require.NoError(t, disks[victim].Free())
		eventually("it is a member again, and has everything", func(ctx context.Context, _ coord.GroupState) error {
			g, err := p.Coordination().Group(ctx)
			if err == nil && g.Phase != "member" {
				err = fault.New("", fault.Unavailable, "phase %s: %s", g.Phase, g.Missing)
			}
			if err != nil {
				return err
			}
			page, _, err := ops.Of(p.Coordination()).Range(ctx, ops.Query{Span: coord.Under("app/")}, ops.Linearizable)
			if err == nil && len(page.Keys) < written {
				err = await.Never(fault.New("", fault.Internal, "%d of %d keys", len(page.Keys), written))
			}
			return err
		})
		require.Equal(t, pid, p.PID())
	}
}

// put writes a key with a value of 60,000 bytes.
func put(ctx context.Context, p *network.Peer, i int) error {
	_, _, err := ops.Of(p.Coordination()).Do(ctx, ops.Command{Op: &ops.Txn{
		Then: []ops.Step{{Put: &ops.Put{Key: fmt.Sprintf("app/%d", i), Value: make([]byte, 60_000)}}},
	}})
	return err
}
