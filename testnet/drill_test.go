package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// TestBackupDrill plays the drill of docs/group.md on processes: a backup of a running group, a loss, a restoration on one
// peer, and the return of the others.
func TestBackupDrill(t *testing.T) {
	binary := built(t)
	n, err := network.Start(t.Context(), network.Config{Peers: 3, Founders: 3, Binary: binary, Dir: t.TempDir()})
	require.NoError(t, err)
	defer n.Stop()
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		return string(out)
	}
	grouped := func(voters int) client.GroupState {
		t.Helper()
		var state client.GroupState
		err := await.Until(t.Context(), 2*time.Minute, "a group", func(ctx context.Context) (err error) {
			for _, p := range n.Living() {
				if state, err = p.Coordination().Group(ctx); err != nil {
					return err
				}
				if state.Leader == "" || state.Missing != "" || len(state.Voters) != voters {
					return fault.New(p.Name, fault.Unavailable, "%d voters, missing: %s", len(state.Voters), state.Missing)
				}
			}
			return nil
		})
		require.NoError(t, err)
		return state
	}
	before := grouped(3)
	chosen, file := n.Peers[1], filepath.Join(t.TempDir(), "group.backup")
	run("kv", "put", "app/a", "before", "--grpc", chosen.GRPC)
	run("group", "backup", file, "--grpc", chosen.GRPC)
	run("kv", "put", "app/a", "after", "--grpc", chosen.GRPC)
	lost := token(t, n.Peers[0])
	for _, p := range n.Peers {
		p.Interrupt()
	}
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	cut := file + ".cut"
	require.NoError(t, os.WriteFile(cut, whole[:len(whole)-9], 0o600))
	out, err := exec.CommandContext(t.Context(), binary, "group", "restore", cut, "--data", chosen.Data, "--yes").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "FILE: the state in the backup is damaged, cut off")
	require.Contains(t, run("group", "restore", file, "--data", chosen.Data), "nothing was changed")
	require.Contains(t, run("group", "restore", file, "--data", chosen.Data, "--yes"), "done: start this peer")

	require.NoError(t, n.Restart(t.Context(), chosen))
	alone := grouped(1)
	require.Equal(t, before.ID, alone.ID)
	require.EqualValues(t, 1, alone.Incarnation)
	chosen = n.Peers[1]
	require.Equal(t, "before", run("kv", "get", "app/a", "--grpc", chosen.GRPC))
	require.Greater(t, token(t, chosen), lost, "no token is given twice")
	for _, i := range []int{0, 2} {
		require.NoError(t, os.RemoveAll(filepath.Join(n.Peers[i].Data, "coordination")))
		require.NoError(t, n.Restart(t.Context(), n.Peers[i]))
	}
	after := grouped(3)
	require.Equal(t, before.ID, after.ID)
	require.Equal(t, "before", run("kv", "get", "app/a", "--grpc", n.Peers[0].GRPC))
}

// token takes and gives back a lock, and returns its fencing token.
func token(t *testing.T, p *network.Peer) coord.Token {
	t.Helper()
	granted, _, err := p.Coordination().Do(t.Context(), coord.Command{Op: &coord.LeaseGrant{TTL: 30_000}})
	require.NoError(t, err)
	held, _, err := p.Coordination().Do(t.Context(), coord.Command{Op: &coord.Lock{Name: "drill", Lease: granted.Lease}})
	require.NoError(t, err)
	require.True(t, held.Lock.Granted)
	_, _, err = p.Coordination().Do(t.Context(), coord.Command{Op: &coord.LeaseRevoke{ID: granted.Lease}})
	require.NoError(t, err)
	return held.Lock.Token
}
