package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/coordination"
	"github.com/blackhole/blackhole/internal/cli/group"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
)

// serveGroup serves a coordination plane on loopback and returns its address. All callers are one owner.
func serveGroup(t *testing.T, solo interface {
	coord.Service
	coord.Admin
}) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpcapi.New(grpcapi.Config{Coordination: &grpcapi.Coordination{
		Service: solo, Admin: solo,
		Owner: func(context.Context) (string, error) { return provider, nil },
	}})
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Close(); require.NoError(t, <-done) })
	return l.Addr().String()
}

// groupWithHistory is a group with leases, locks and keys. Its clock stands still.
func groupWithHistory(t *testing.T) *coordtest.Solo {
	solo := coordtest.New(coordtest.Config{})
	do := func(op ops.Op) ops.Result {
		r, _, err := ops.Of(solo).Do(t.Context(), ops.Command{Owner: stranger, Op: op})
		require.NoError(t, err)
		return r
	}
	put := func(key, value string) *ops.Txn {
		return &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: key, Value: []byte(value)}}}}
	}
	for range 3 {
		do(&ops.LeaseGrant{TTL: 60_000})
	}
	do(&ops.Lock{Name: "db/users", Lease: 1, Metadata: []byte("migration")})
	go func() { // until the end of the test
		_, _, _ = ops.Of(solo).Acquire(t.Context(), ops.Command{Owner: stranger, Op: &ops.Lock{Name: "db/users", Lease: 2, Wait: true}}, coord.NoLimit)
	}()
	require.Eventually(t, func() bool {
		locks, _, err := ops.Of(solo).Locks(t.Context(), ops.LockQuery{Name: "db/users"})
		return err == nil && len(locks) == 1 && len(locks[0].Waiting) == 1
	}, time.Minute, time.Millisecond)
	do(&ops.Lock{Name: "pool", Lease: 1, Mode: coord.Permit, Permits: 3})
	do(put("app/a", "1"))
	do(put("app/a", "2"))
	do(put("app/evil", "\x1b[2J\xff"))
	span := coord.Exactly("app/a")
	do(&ops.Txn{Then: []ops.Step{{Delete: &span}}})
	do(&ops.Compact{Revision: 2})
	return solo
}

// TestCoordinationTranscripts plays the dialogues about leases and locks: see TestTranscripts.
func TestCoordinationTranscripts(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/coordination/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			got := play(t, string(data), serveGroup(t, groupWithHistory(t)))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			}
			require.Equal(t, string(data), got)
		})
	}
}

// leaderless is a group whose leader is lost.
type leaderless struct{ *coordtest.Solo }

func (l leaderless) Group(ctx context.Context) (coord.GroupState, error) {
	s, err := l.Solo.Group(ctx)
	s.Leader, s.Missing = "", "2 of the voters a, b and c are needed"
	return s, err
}

// TestMembersWithoutALeader: the list says that nobody leads.
func TestMembersWithoutALeader(t *testing.T) {
	shown := execute(t, "BLACKHOLE_GRPC="+serveGroup(t, leaderless{groupWithHistory(t)})+" blackholed group members")
	require.Contains(t, shown, "! warning: nobody leads, and the list may be outdated: 2 of the voters a, b and c are needed\n")
	require.NotContains(t, shown, "leader  up")
}

// TestBackupStreams: a backup goes from standard output of one command to standard input of another, and nothing else does.
func TestBackupStreams(t *testing.T) {
	t.Chdir(t.TempDir())
	solo := groupWithHistory(t)
	var backup, want, errs bytes.Buffer
	app := testApp(nil, &backup, &errs, []string{"BLACKHOLE_GRPC=" + serveGroup(t, solo)})
	require.Zero(t, app.Execute(t.Context(), []string{"group", "backup", "-"}), errs.String())
	require.NoError(t, solo.Backup(t.Context(), &want))
	require.Equal(t, want.Bytes(), backup.Bytes())
	var restored []byte
	app = testApp(&backup, io.Discard, &errs, nil)
	app.Restore = func(_ string, r io.Reader, _ uint64, _ bool) (_ group.Restoration, err error) {
		restored, err = io.ReadAll(r)
		return group.Restoration{}, err
	}
	require.Zero(t, app.Execute(t.Context(), []string{"group", "restore", "-"}), errs.String())
	require.Equal(t, want.Bytes(), restored)
	require.NoFileExists(t, "-")
}

// TestWithoutACoordinationGroup expects the same single error from every command that needs a group.
func TestWithoutACoordinationGroup(t *testing.T) {
	t.Parallel()
	peer := serve(t, new(fake))
	for _, command := range []string{
		"service require storage=1", "service require storage=1 -- false", "service require --name up storage=1 billing=1", "service requirements", "service requirements --rm up",
		"lock hold a", "lock hold --try a -- false", "lock ls", "lease grant", "lease ls", "lease show 1", "lease revoke 1", "lease keepalive 1",
		"kv put a b", "kv get a", "kv del a", "kv ls a", "kv watch app/", "group status", "group members", "group transfer 7",
		"group add 7", "group remove 7", "group promote 7", "group replace 7 8", "group leave",
	} {
		t.Run(command, func(t *testing.T) {
			var out, stderr strings.Builder
			app := testApp(strings.NewReader(""), &out, &stderr, []string{"BLACKHOLE_GRPC=" + peer})
			require.Equal(t, 69, app.Execute(t.Context(), strings.Fields(command)))
			require.Equal(t, "blackholed: the peer takes no part in a coordination group: see its setting coordination.enabled\n", stderr.String())
			require.Empty(t, out.String())
		})
	}
}

// liveGroup is a group with the real clock and short leases.
func liveGroup() *coordtest.Solo {
	limits := coord.DefaultLimits()
	limits.MinTTL = 100
	return coordtest.New(coordtest.Config{
		Limits: limits, Now: time.Now,
		After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
	})
}

// TestLeaseKeepAlive expects the command to renew the lease, and to end with the lease.
func TestLeaseKeepAlive(t *testing.T) {
	t.Parallel()
	solo := liveGroup()
	peer := serveGroup(t, solo)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	granted, _, err := ops.Of(solo).Do(ctx, ops.Command{Owner: provider, Op: &ops.LeaseGrant{TTL: 4500}})
	require.NoError(t, err)
	out := newPipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- testApp(strings.NewReader(""), out, &stderr, nil).Execute(ctx,
			[]string{"lease", "keepalive", "--grpc", peer, "-o", "ndjson", coordination.LeaseID(granted.Lease)})
	}()
	for range 5 { // longer than the time to live
		require.Equal(t, `{"id":"1","granted_ttl_ms":4500}`, out.line(t))
	}
	_, _, err = ops.Of(solo).Do(ctx, ops.Command{Owner: provider, Op: &ops.LeaseRevoke{ID: granted.Lease}})
	require.NoError(t, err)
	require.Equal(t, 3, <-code, "%s", stderr.String())
}

// run starts a command against a peer. stop interrupts it and returns its exit code.
func run(t *testing.T, peer string, args ...string) (out *pipe, stop func() (code int)) {
	ctx, cancel := context.WithCancel(t.Context())
	out = newPipe()
	code := make(chan int, 1)
	go func() {
		code <- testApp(strings.NewReader(""), out, io.Discard, []string{"BLACKHOLE_GRPC=" + peer}).Execute(ctx, args)
	}()
	return out, func() int { cancel(); return <-code }
}

func TestKeyWatch(t *testing.T) {
	peer := serveGroup(t, groupWithHistory(t))
	for _, c := range []struct {
		args  []string
		lines []string
	}{
		{[]string{"--from", "5"}, []string{
			"put            5  app/a  1",
			"put            6  app/a  2",
			"put            7  app/evil  G1sySv8=",
			"delete         8  app/a",
		}},
		{[]string{"--from", "6", "--prev", "-o", "ndjson"}, []string{
			`{"next_revision":6}`,
			`{"revision":6,"key":"app/a","kv":{"key":"app/a","value":"2","create_revision":5,"mod_revision":6,"version":2},"prev_kv":{"key":"app/a","value":"1","create_revision":5,"mod_revision":5,"version":1}}`,
			`{"revision":7,"key":"app/evil","kv":{"key":"app/evil","value_base64":"G1sySv8=","create_revision":7,"mod_revision":7,"version":1}}`,
			`{"revision":8,"key":"app/a","prev_kv":{"key":"app/a","value":"2","create_revision":5,"mod_revision":6,"version":2}}`,
		}},
		{[]string{"--from", "8", "-o", "yaml"}, []string{
			"---", "next_revision: 8", "---", "revision: 8", "key: app/a",
		}},
	} {
		out, stop := run(t, peer, append([]string{"kv", "watch", "app/"}, c.args...)...)
		for _, line := range c.lines {
			require.Equal(t, line, out.line(t))
		}
		require.Equal(t, 130, stop())
	}
}
