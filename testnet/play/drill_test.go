package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// TestBackupDrill plays docs/howto/backup.md on processes: a backup of a running group, a loss, a restoration on one
// peer, and the return of the others.
func TestBackupDrill(t *testing.T) {
	t.Parallel()
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
	grouped := func(voters int) coord.GroupState {
		t.Helper()
		var state coord.GroupState
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

// TestPromoteDrill plays "The majority is gone for good" of docs/group.md with two peers, the group of which has one voter and
// one learner: the voter is killed for good, and the learner goes on by order.
func TestPromoteDrill(t *testing.T) {
	t.Parallel()
	binary := built(t)
	n, err := network.Start(t.Context(), network.Config{Peers: 2, Binary: binary, Dir: t.TempDir()})
	require.NoError(t, err)
	defer n.Stop()
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
		return string(out), err
	}
	var voter, rest *network.Peer
	require.NoError(t, await.Until(t.Context(), 2*time.Minute, "a voter and a learner", func(ctx context.Context) error {
		g, err := n.Peers[1].Coordination().Group(ctx)
		if err == nil && (len(g.Voters) != 1 || len(g.Learners) != 1 || g.Learners[0].Lag > 0) {
			err = fault.New("drill", fault.Unavailable, "%d voters, %d learners", len(g.Voters), len(g.Learners))
		}
		if err != nil {
			return err
		}
		voter, rest = n.Peers[0], n.Peers[1]
		if g.Voters[0].Peer == rest.ID.String() {
			voter, rest = rest, voter
		}
		return nil
	}))
	_, err = run("kv", "put", "app/a", "kept", "--grpc", rest.GRPC)
	require.NoError(t, err)
	lost := token(t, voter)
	require.NoError(t, await.Until(t.Context(), time.Minute, "the learner's copy", func(ctx context.Context) error {
		_, h, err := coord.OpsOf(rest.Coordination()).Range(ctx, coord.Query{Span: coord.Exactly("app/a")}, coord.Local)
		if err == nil && coord.Token(h.Revision) < lost {
			err = fault.New("drill", fault.Unavailable, "revision %d, the token is %d", h.Revision, lost)
		}
		return err
	}))
	voter.Kill()

	said, err := run("kv", "put", "app/a", "nobody counts it", "--grpc", rest.GRPC)
	require.Error(t, err)
	require.Contains(t, said, "no_quorum")
	order := []string{"group", "promote", rest.ID.String(), "--grpc", rest.GRPC}
	require.NoError(t, await.Until(t.Context(), 2*time.Minute, "an order is taken", func(context.Context) error {
		said, err = run(append(order, "--dry-run")...)
		return err
	}))
	require.Contains(t, said, "lose every write that only "+voter.ID.String())
	require.Contains(t, said, "1 keys, as of revision ")
	said, err = run(order...)
	require.Error(t, err, "%s", said)
	require.Contains(t, said, "--force")
	said, err = run(append(order, "--force")...)
	require.NoError(t, err, "%s", said)
	require.Contains(t, said, "1 of 1 voter: no failure")

	require.NoError(t, await.Until(t.Context(), time.Minute, "the key", func(context.Context) error {
		said, err = run("kv", "get", "app/a", "--grpc", rest.GRPC)
		return err
	}))
	require.Equal(t, "kept", said, "the write that failed is not there")
	require.Greater(t, token(t, rest), lost, "no token is given twice")

	require.NoError(t, n.Restart(t.Context(), voter)) // although it was gone for good
	back := n.Peers[slices.IndexFunc(n.Peers, func(p *network.Peer) bool { return p.ID == voter.ID })]
	require.NoError(t, await.Until(t.Context(), time.Minute, "the former voter takes no part", func(context.Context) error {
		said, err = run("status", "--grpc", back.GRPC)
		if err == nil && !strings.Contains(said, "outlived") {
			err = fault.New("drill", fault.Unavailable, "status: %s", said)
		}
		return err
	}))
	require.Greater(t, token(t, back), lost+1<<40, "its callers are served by the group that went on")
}

// token takes and gives back a lock, and returns its fencing token.
func token(t *testing.T, p *network.Peer) coord.Token {
	t.Helper()
	granted, _, err := coord.OpsOf(p.Coordination()).Do(t.Context(), coord.Command{Op: &coord.LeaseGrant{TTL: 30_000}})
	require.NoError(t, err)
	held, _, err := coord.OpsOf(p.Coordination()).Do(t.Context(), coord.Command{Op: &coord.Lock{Name: "drill", Lease: granted.Lease}})
	require.NoError(t, err)
	require.True(t, held.Lock.Granted)
	_, _, err = coord.OpsOf(p.Coordination()).Do(t.Context(), coord.Command{Op: &coord.LeaseRevoke{ID: granted.Lease}})
	require.NoError(t, err)
	return held.Lock.Token
}
