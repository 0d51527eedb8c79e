package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/guard"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// patient bounds every wait of a test. A passing test does not depend on it.
const patient = 30 * time.Second

// pipe receives the output of a command line by line.
type pipe struct {
	io.Writer
	lines chan string
}

func newPipe() *pipe {
	r, w := io.Pipe()
	p := &pipe{Writer: w, lines: make(chan string, 100)}
	go func() {
		for s := bufio.NewScanner(r); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	return p
}

func (p *pipe) line(t *testing.T) string {
	t.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-time.After(patient):
		require.FailNow(t, "the command prints nothing")
		return ""
	}
}

// lockRun is a run of the command lock.
type lockRun struct {
	t      *testing.T
	solo   *coordtest.Solo
	out    *pipe
	stderr bytes.Buffer
	told   *pipe // standard error, instead of stderr
	stop   context.CancelFunc
	code   chan int
}

// runLock starts "lock ARGS" against a group.
func runLock(t *testing.T, solo *coordtest.Solo, args ...string) *lockRun {
	l := &lockRun{t: t, solo: solo}
	return l.start(&l.stderr, args)
}

// waitLock is runLock with a pipe for what the command tells while it waits.
func waitLock(t *testing.T, solo *coordtest.Solo, args ...string) *lockRun {
	l := &lockRun{t: t, solo: solo, told: newPipe()}
	return l.start(l.told, args)
}

func (l *lockRun) start(stderr io.Writer, args []string) *lockRun {
	ctx, cancel := context.WithCancel(l.t.Context())
	l.t.Cleanup(cancel)
	l.out, l.stop, l.code = newPipe(), cancel, make(chan int, 1)
	app := testApp(strings.NewReader(""), l.out, stderr, os.Environ())
	args = append([]string{"lock", "hold", "--grpc", serveGroup(l.t, l.solo)}, args...)
	go func() { l.code <- app.Execute(ctx, args) }()
	return l
}

// end waits for the end of the command and checks its exit code.
func (l *lockRun) end(code int) {
	l.t.Helper()
	select {
	case got := <-l.code:
		require.Equal(l.t, code, got, "%s", l.stderr.String())
	case <-time.After(patient):
		require.FailNow(l.t, "the command does not end")
	}
}

// free reports whether the lock db has neither holders nor waiters.
func (l *lockRun) free() bool {
	_, _, err := ops.Of(l.solo).Locks(context.Background(), ops.LockQuery{Name: "db"})
	return err != nil
}

// shell is a command line for sh after flags of lock.
func shell(script string, flags ...string) []string {
	return append(flags, "db", "--", "/bin/sh", "-c", script)
}

// other takes the lock db for another client.
func other(t *testing.T, solo *coordtest.Solo) coord.Token {
	lease, _, err := ops.Of(solo).Do(t.Context(), ops.Command{Owner: stranger, Op: &ops.LeaseGrant{TTL: 3_600_000}})
	require.NoError(t, err)
	r, _, err := ops.Of(solo).Do(t.Context(), ops.Command{Owner: stranger, Op: &ops.Lock{Name: "db", Lease: lease.Lease}})
	require.NoError(t, err)
	require.True(t, r.Lock.Granted)
	return r.Lock.Token
}

func TestLockRuns(t *testing.T) {
	solo := liveGroup()
	l := runLock(t, solo, shell(`echo $BLACKHOLE_LOCK_NAME $BLACKHOLE_LOCK_TOKEN $BLACKHOLE_LOCK_LEASE; echo $BLACKHOLE_LOCK_DEADLINE; exit 7`, "--ttl", "1h")...)
	require.Equal(t, "db 2 1", l.out.line(t))
	deadline, err := strconv.ParseInt(l.out.line(t), 10, 64)
	require.NoError(t, err)
	require.InDelta(t, time.Now().Add(57*time.Minute).Unix(), deadline, 60)
	l.end(7)
	require.Empty(t, l.stderr.String())
	require.True(t, l.free())
}

func TestLockExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
	}{
		{shell("exit 0"), 0},
		{shell("kill -KILL $$"), 137},
		{shell("exit 5", "-n", "2"), 5},
		{shell("exit 6", "--shared"), 6},
		{[]string{"db", "--", "no-such-command-here"}, 127},
		{[]string{"db", "echo"}, 2},
		{shell("", "--shared", "-n", "2"), 2},
		{[]string{}, 2},
		{shell("", "--try", "--wait", "1s"), 2},
		{shell("", "-n", "0"), 2},
		{shell("", "--ttl", "0s"), 2},
		{shell("", "--wait", "-1s"), 2},
		{shell("", "--timeout", "-1s"), 2},
	} {
		t.Run(fmt.Sprint(c.args), func(t *testing.T) {
			l := runLock(t, liveGroup(), c.args...)
			l.end(c.code)
			require.True(t, l.free())
		})
	}
}

func TestLockHeldByOthers(t *testing.T) {
	t.Parallel()
	solo := liveGroup()
	token := other(t, solo)
	runLock(t, solo, shell("echo never", "--try")...).end(75)
	runLock(t, solo, shell("echo never", "--wait", "0")...).end(75)
	l := runLock(t, solo, shell("echo never", "--wait", "50ms")...)
	l.end(75)
	require.Equal(t, "blackholed: db: others hold the lock\n", l.stderr.String())
	require.Empty(t, l.out.lines)
	l = waitLock(t, solo, shell("echo mine")...)
	require.Regexp(t, "^waiting for the lock db: held by "+stranger+" for [0-9]+s; next in line$", l.told.line(t))
	_, _, err := ops.Of(solo).Do(t.Context(), ops.Command{Owner: stranger, Op: &ops.Unlock{Name: "db", Lease: 1, Token: token}})
	require.NoError(t, err)
	require.Equal(t, "mine", l.out.line(t))
	l.end(0)
}

func TestLockWithoutQuorum(t *testing.T) {
	t.Parallel()
	solo := liveGroup()
	solo.Halt("no majority")
	l := runLock(t, solo, shell("echo never", "--timeout", "2s")...)
	l.end(69)
	require.Contains(t, l.stderr.String(), "no majority")
	require.NotContains(t, l.stderr.String(), "no peer answers", "a peer has answered")
}

// deaf is a group whose majority is lost after the grant of a lease.
type deaf struct{ *coordtest.Solo }

func (d deaf) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	if cmd.GetLock() != nil || cmd.GetTryLock() != nil {
		return nil, fault.New("", fault.Unavailable, "no majority")
	}
	return d.Solo.Execute(ctx, cmd)
}

// TestLockTryWithoutQuorum: what does not wait for others waits for a majority no longer than --timeout.
func TestLockTryWithoutQuorum(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--try", "--wait=0"} {
		var errs bytes.Buffer
		app := testApp(strings.NewReader(""), io.Discard, &errs, os.Environ())
		code := make(chan int, 1)
		go func() {
			code <- app.Execute(t.Context(), []string{"lock", "hold", "--grpc", serveGroup(t, deaf{liveGroup()}), flag, "--timeout", "1s", "db", "--", "false"})
		}()
		select {
		case got := <-code:
			require.Equal(t, 69, got, errs.String())
			require.Contains(t, errs.String(), "no majority")
		case <-time.After(patient):
			require.FailNow(t, "the command does not end")
		}
	}
}

// gone reports whether a process has ended. A zombie counts as ended.
func gone(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// TestLockLost expects the command and its children to end before another client can hold the
// lock, even if they ignore SIGTERM.
func TestLockLost(t *testing.T) {
	for name, lose := range map[string]func(l *lockRun){
		"no quorum": func(l *lockRun) { l.solo.Halt("no majority") },
		"revoked": func(l *lockRun) {
			_, _, err := ops.Of(l.solo).Do(context.Background(), ops.Command{Owner: provider, Op: &ops.LeaseRevoke{ID: 1}})
			require.NoError(l.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := runLock(t, liveGroup(), shell(`trap '' TERM; sleep 1000 & echo $!; echo $$; while :; do wait; done`, "--ttl", "5s")...)
			grandchild, child := l.out.line(t), l.out.line(t)
			require.False(t, gone(child))
			lose(l)
			l.end(76)
			require.True(t, gone(child))
			require.Eventually(t, func() bool { return gone(grandchild) }, patient, time.Millisecond)
			require.Contains(t, l.stderr.String(), "the lock is lost")
			require.NotContains(t, l.stderr.String(), "no peer answers")
		})
	}
}

func TestLockTermComesFirst(t *testing.T) {
	t.Parallel()
	l := runLock(t, liveGroup(), shell(`trap 'echo leaving; exit 3' TERM; echo ready; while :; do sleep 0.01; done`, "--ttl", "10s")...)
	require.Equal(t, "ready", l.out.line(t))
	l.solo.Halt("no majority")
	require.Equal(t, "leaving", l.out.line(t))
	l.end(76)
}

// TestLockInterrupted expects the interrupt to reach the command, and the lock to be held until
// the command has ended.
func TestLockInterrupted(t *testing.T) {
	t.Parallel()
	looked := filepath.Join(t.TempDir(), "looked")
	script := `trap 'echo term; until [ -e "$0" ]; do sleep 0.01; done; echo done; exit 9' TERM; echo ready; while :; do sleep 0.01; done`
	l := runLock(t, liveGroup(), append(shell(script), looked)...)
	require.Equal(t, "ready", l.out.line(t))
	l.stop()
	require.Equal(t, "term", l.out.line(t))
	require.False(t, l.free())
	require.NoError(t, os.WriteFile(looked, nil, 0o600))
	require.Equal(t, "done", l.out.line(t))
	l.end(9)
	require.True(t, l.free())
}

func TestLockAlone(t *testing.T) {
	t.Parallel()
	l := runLock(t, liveGroup(), "db", "-o", "ndjson")
	require.Equal(t, `{"fencing_token":2,"key":"`+coord.LockKey("db", 1)+`","lease_id":"1","name":"db"}`, l.out.line(t))
	require.False(t, l.free())
	l.stop()
	l.end(0)
	require.True(t, l.free())

	l = runLock(t, liveGroup(), "db", "--ttl", "3s", "-o", "ndjson")
	l.out.line(t)
	l.solo.Halt("no majority")
	l.end(76)
}

// TestLockChildDiesWithParent expects the command to die with the process that renews its lock.
func TestLockChildDiesWithParent(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs Linux")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), lockArgsOf+"="+serveGroup(t, liveGroup()))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	child := strings.TrimSpace(line)
	require.False(t, gone(child))
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	var exit *exec.ExitError
	require.True(t, errors.As(cmd.Wait(), &exit))
	require.Eventually(t, func() bool { return gone(child) }, patient, time.Millisecond)
}

// The environment variables that turn this test binary into a lock holder.
const (
	lockArgsOf   = "BLACKHOLE_TEST_LOCK"
	lockScriptOf = "BLACKHOLE_TEST_SCRIPT" // the script of that holder
)

func TestMain(m *testing.M) {
	app, peer, args := testApp(os.Stdin, os.Stdout, os.Stderr, os.Environ()), os.Getenv(lockArgsOf), os.Args[1:]
	if len(args) == 0 || args[0] != guard.Arg {
		if peer == "" {
			if err := flag.Set("test.parallel", "6"); err != nil { // most tests wait for others
				panic(err)
			}
			os.Exit(m.Run())
		}
		args = append([]string{"lock", "hold", "--grpc", peer}, shell(cmp.Or(os.Getenv(lockScriptOf), `echo $$; exec sleep 1000`), "--ttl", "4s")...)
	}
	os.Exit(app.Execute(context.Background(), args))
}
