package cli

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/requirement"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/instance"
)

// alwaysLeader is always the leader.
type alwaysLeader struct{}

func (alwaysLeader) Leading() (uint64, string, <-chan struct{}) { return 1, provider, nil }

// groupWithEvaluator is a group with a requirement evaluator.
func groupWithEvaluator(t *testing.T) *coordtest.Solo {
	solo := liveGroup()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	d := requirement.New(requirement.Config{Counter: instances.Counter, Self: provider, Leader: alwaysLeader{}, Member: solo})
	go func() { defer close(done); d.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return solo
}

// supply registers instances by names of the form SERVICE/ID.
func supply(t *testing.T, solo *coordtest.Solo, names ...string) {
	lease, _, err := ops.Of(solo).Do(t.Context(), ops.Command{Owner: stranger, Op: &ops.LeaseGrant{TTL: 3_600_000}})
	require.NoError(t, err)
	op := &ops.RegisterBatch{Lease: lease.Lease, Generation: uint64(lease.Lease)}
	for _, name := range names {
		service, id, _ := strings.Cut(name, "/")
		i := &instance.Instance{
			Key:  instance.Key{Namespace: "default", Service: service, ID: id},
			Spec: instance.Spec{Host: "10.0.0.1", Port: 80, Zone: "eu", Version: "2.1.0", Tags: []string{"v2"}}, Status: instance.StatusUp,
		}
		op.Puts = append(op.Puts, directory.Entry{Key: directory.Key(i.Namespace, i.Service, i.ID), Value: i.Marshal()})
	}
	_, _, err = ops.Of(solo).Do(t.Context(), ops.Command{Owner: stranger, Op: op})
	require.NoError(t, err)
}

// runRequire starts "require ARGS" against a group.
func runRequire(t *testing.T, solo *coordtest.Solo, args ...string) *lockRun {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	l := &lockRun{t: t, solo: solo, out: newPipe(), stop: cancel, code: make(chan int, 1)}
	app := testApp(strings.NewReader(""), l.out, &l.stderr, os.Environ())
	args = append([]string{"service", "require", "--grpc", serveGroup(t, solo)}, args...)
	go func() { l.code <- app.Execute(ctx, args) }()
	return l
}

// required returns the names of all requirements.
func required(t *testing.T, solo *coordtest.Solo) []string {
	all, _, err := requirements.List(t.Context(), solo)
	require.NoError(t, err)
	names := []string{}
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}

// TestRequireRuns expects the command to wait for all services, and its requirements to be removed.
func TestRequireRuns(t *testing.T) {
	solo := groupWithEvaluator(t)
	supply(t, solo, "storage/1", "storage/2")
	l := runRequire(t, solo, "storage=3", "billing=1@zone=eu,tag=v2,version=2.x", "--", "/bin/sh", "-c", "echo runs; exit 7")
	require.Eventually(t, func() bool { return len(required(t, solo)) == 2 }, patient, time.Millisecond)
	supply(t, solo, "storage/3")
	require.Empty(t, l.out.lines)
	supply(t, solo, "billing/1")
	require.Equal(t, "runs", l.out.line(t))
	l.end(7)
	require.Empty(t, l.stderr.String())
	require.Empty(t, required(t, solo))
}

// TestRequireTooFew expects the wait to end with a list of the missing instances.
func TestRequireTooFew(t *testing.T) {
	t.Parallel()
	solo := groupWithEvaluator(t)
	supply(t, solo, "storage/1", "billing/1")
	l := runRequire(t, solo, "--wait", "2s", "storage=3", "billing=1", "--", "/bin/sh", "-c", "echo never")
	l.end(75)
	require.Equal(t, "blackholed: storage: 3 needed, 1 available\n", l.stderr.String())
	require.Empty(t, l.out.lines)
	require.Empty(t, required(t, solo))

	l = runRequire(t, liveGroup(), "--wait", "50ms", "storage=3")
	l.end(75)
	require.Equal(t, "blackholed: storage: 3 needed, number of available instances unknown\n", l.stderr.String())
}

// TestRequireNamed expects a named requirement to stay unless --rm is set.
func TestRequireNamed(t *testing.T) {
	solo := groupWithEvaluator(t)
	supply(t, solo, "storage/1", "billing/1")
	runRequire(t, solo, "--name", "up", "storage=1", "billing=1").end(0)
	require.Equal(t, []string{"up", "up.2"}, required(t, solo))
	runRequire(t, solo, "--name", "up", "--rm", "storage=1@health=any", "billing=1").end(0)
	require.Empty(t, required(t, solo))
}

func TestRequireInterrupted(t *testing.T) {
	solo := groupWithEvaluator(t)
	l := runRequire(t, solo, "storage=1")
	require.Eventually(t, func() bool { return len(required(t, solo)) == 1 }, patient, time.Millisecond)
	l.stop()
	l.end(130)
	require.Empty(t, required(t, solo))

	supply(t, solo, "storage/1")
	l = runRequire(t, solo, "storage=1", "--", "/bin/sh", "-c", `trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.01; done`)
	require.Equal(t, "ready", l.out.line(t))
	require.Len(t, required(t, solo), 1)
	l.stop()
	require.Equal(t, "term", l.out.line(t))
	l.end(9)
	require.Empty(t, required(t, solo))
}

func TestRequireExitCodes(t *testing.T) {
	t.Parallel()
	solo := groupWithEvaluator(t)
	supply(t, solo, "storage/1")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"storage=1 -- true", 0, ""},
		{"storage=1 -- false", 1, ""},
		{"storage=1 -- no-such-command-here", 127, "no-such-command-here"},
		{"", 2, "SERVICE=N"},
		{"-- true", 2, "SERVICE=N"},
		{"storage", 2, "SERVICE=N"},
		{"storage=0", 2, "SERVICE=N"},
		{"storage=x", 2, "SERVICE=N"},
		{"storage=1000000", 2, "SERVICE=N"},
		{"Sto/rage=1", 2, "SERVICE=N"},
		{"storage=1@", 2, "FIELD=VALUE"},
		{"storage=1@zone", 2, "FIELD=VALUE"},
		{"storage=1@colour=red", 2, "colour"},
		{"storage=1@health=fine", 2, "health"},
		{"storage=1@version=?", 2, "version"},
		{"storage=1 --wait -1s", 2, "--wait"},
		{"storage=1 --name a/b", 2, "--name"},
		{"storage=1 --name=", 2, "--name"},
		{"storage=1 --namespace A", 2, "--namespace"},
	} {
		t.Run(c.args, func(t *testing.T) {
			l := runRequire(t, solo, strings.Fields(c.args)...)
			l.end(c.code)
			require.Contains(t, l.stderr.String(), c.says)
			require.Empty(t, required(t, solo))
		})
	}
	halted := liveGroup()
	halted.Halt("no majority")
	l := runRequire(t, halted, "storage=1", "--timeout", "2s")
	l.end(69)
	require.Contains(t, l.stderr.String(), "no majority")
}

// TestRequirementsCommand lists requirements and removes one.
func TestRequirementsCommand(t *testing.T) {
	solo := groupWithEvaluator(t)
	supply(t, solo, "storage/1")
	runRequire(t, solo, "--name", "up", "storage=1@zone=eu,version=2.x,tag=v2,health=UP", "-o", "json").end(0)
	peer := serveGroup(t, solo)
	run := func(args ...string) (string, string, int) {
		var out, stderr strings.Builder
		code := testApp(strings.NewReader(""), &out, &stderr, nil).Execute(t.Context(), append([]string{"service", "requirements", "--grpc", peer}, args...))
		return out.String(), stderr.String(), code
	}
	out, _, code := run()
	require.Zero(t, code)
	require.Equal(t, "REQUIREMENT  SERVICE  SELECTOR                              STATE      NEEDED  AVAILABLE\n"+
		"up           storage  zone=eu,version=2.x,tag=v2,health=UP  satisfied  1       1\n", out)
	out, _, _ = run("-o", "ndjson")
	require.Regexp(t, `^{"name":"up","namespace":"default","service":"storage","selector":"[^"]*","state":"satisfied","needed":1,"available":1,"revision":\d+}\n$`, out)
	_, _, code = run("--rm", "up")
	require.Zero(t, code)
	_, stderr, code := run("--rm", "up")
	require.Equal(t, 3, code)
	require.Contains(t, stderr, "--rm")
	out, _, _ = run("-o", "json")
	require.JSONEq(t, `{"requirements":[]}`, out)
}
