package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/blackhole/blackhole/internal/agent/agenttest"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// serveAgent serves an agent on loopback and returns its address. A token makes it required.
func serveAgent(t *testing.T, a *agenttest.Agent, token string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpcapi.New(grpcapi.Config{
		Agent: &grpcapi.Agent{Registrar: a, Catalog: a, Removed: a.Removed}, Operator: checker{},
		Unary: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			if got := append(md.Get("authorization"), "")[0]; token != "" && got != "Bearer "+token {
				return nil, fault.New("test", fault.Unauthentic, "the token is not known")
			}
			return call(ctx, req)
		}},
	})
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Close(); require.NoError(t, <-done) })
	return l.Addr().String()
}

// checker is a peer that has checked the instance w1.
type checker struct{ grpcapi.Operator }

func (checker) LastChecks(k instance.Key) ([]instances.LastCheck, error) {
	switch k.ID {
	case "w1":
		return []instances.LastCheck{
			{At: midnight(2), TookMs: 2.4, Status: instance.StatusDown, State: "refuses", Cause: "connection refused"},
			{At: midnight(1), TookMs: 1, Passing: true, State: "answers", Status: instance.StatusUp},
		}, nil
	case "f1":
		return nil, fault.New("test", fault.Forbidden, "needs the role admin")
	}
	return nil, nil
}

// agentWithInstances is an agent with five instances.
func agentWithInstances(t *testing.T) *agenttest.Agent {
	a := agenttest.New()
	for n, edit := range []func(r *instance.Registration){
		func(r *instance.Registration) { r.Spec.Check = &instance.Check{Type: instance.TCP} },
		func(r *instance.Registration) {
			r.Spec.Zone, r.Spec.Tags, r.Spec.Host = "us", []string{"v2"}, "2001:db8::1"
		},
		func(r *instance.Registration) {
			r.Spec.Metadata = map[string]string{"evil": "\u202e"}
			r.Status = instance.StatusStarting
		},
		func(r *instance.Registration) { r.Service, r.ID = "db", "d1" },
		func(r *instance.Registration) { r.Namespace = "other" },
	} {
		r := agenttest.Web(fmt.Sprint("w", n+1))
		edit(&r)
		_, err := a.Register(t.Context(), r)
		require.NoError(t, err)
	}
	return a
}

// TestApplicationTranscripts plays the dialogues about instances: see TestTranscripts.
func TestApplicationTranscripts(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]string{"service": "", "access": "secret", "show": ""} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata/applications", name+".txt")
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			got := play(t, string(data), serveAgent(t, agentWithInstances(t), token))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			}
			require.Equal(t, string(data), got)
		})
	}
}

// running is a running command.
type running struct {
	t      *testing.T
	out    *pipe
	stderr bytes.Buffer
	stop   context.CancelFunc
	code   chan int
}

func begin(t *testing.T, peer string, args ...string) *running {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := &running{t: t, out: newPipe(), stop: cancel, code: make(chan int, 1)}
	app := testApp(strings.NewReader(""), r.out, &r.stderr, append(os.Environ(), "BLACKHOLE_GRPC="+peer))
	go func() { r.code <- app.Execute(ctx, args) }()
	return r
}

func (r *running) end(code int) {
	r.t.Helper()
	select {
	case got := <-r.code:
		require.Equal(r.t, code, got, "%s", r.stderr.String())
	case <-time.After(patient):
		require.FailNow(r.t, "the command does not end")
	}
}

// TestServiceRegisterRuns expects an instance to be registered while its command runs.
func TestServiceRegisterRuns(t *testing.T) {
	a := agenttest.New()
	peer := serveAgent(t, a, "")
	args := []string{"instance", "register", "web", "--host", "10.0.0.1", "--port", "1"}
	r := begin(t, peer, append(args, "--id", "x", "--", "/bin/sh", "-c", `trap 'exit 7' TERM; echo $BLACKHOLE_SERVICE $BLACKHOLE_INSTANCE_ID $BLACKHOLE_LEASE; while :; do sleep 0.01; done`)...)
	require.Regexp(t, "^web x lease-[0-9a-f]{32}$", r.out.line(t))
	require.Len(t, a.Instances(), 1)
	r.stop()
	r.end(7)
	require.Empty(t, a.Instances())
	require.NotContains(t, r.stderr.String(), "warning")

	r = begin(t, peer, append(args, "--", "/bin/sh", "-c", "exit 3")...)
	r.end(3)
	require.Empty(t, a.Instances())
}

// TestRunUnderItsOwnVariables runs a peer with all variables that the commands set, and with a context.
func TestRunUnderItsOwnVariables(t *testing.T) {
	registered := begin(t, serveAgent(t, agenttest.New(), ""), "instance", "register", "web", "--host", "10.0.0.1", "--port", "1", "--", "sh", "-c", "env; echo end")
	locked := runLock(t, coordtest.New(coordtest.Config{}), "db", "--", "sh", "-c", "env; echo end")
	environ := []string{"BLACKHOLE_CONTEXT=prod", "HOME=" + t.TempDir()}
	for _, out := range []*pipe{registered.out, locked.out} {
		for line := out.line(t); line != "end"; line = out.line(t) {
			if strings.HasPrefix(line, "BLACKHOLE_") {
				environ = append(environ, line)
			}
		}
	}
	registered.end(0)
	locked.end(0)
	require.Contains(t, strings.Join(environ, "\n"), "BLACKHOLE_INSTANCE_ID=")
	require.Contains(t, strings.Join(environ, "\n"), "BLACKHOLE_LOCK_DEADLINE=")
	var errs bytes.Buffer
	require.Zero(t, testApp(nil, io.Discard, &errs, environ).Execute(t.Context(), []string{"run", "--data", t.TempDir()}), errs.String())
}

// TestServiceRegisterKeeps expects instances to stay registered until the interrupt.
func TestServiceRegisterKeeps(t *testing.T) {
	a := agenttest.New()
	r := begin(t, serveAgent(t, a, ""), "instance", "register", "-f", "testdata/instances.yaml", "--keep", "-o", "ndjson")
	require.Contains(t, r.out.line(t), `"id":"y1"`)
	require.Contains(t, r.out.line(t), `"id":"y2"`)
	require.Len(t, a.Instances(), 2)
	r.stop()
	r.end(0)
	require.Empty(t, a.Instances())
}

func TestServiceRegisterReachesNobody(t *testing.T) {
	t.Parallel()
	r := begin(t, "127.0.0.1:1", "instance", "register", "web", "--host", "10.0.0.1", "--port", "1", "--timeout", "2s", "--", "true")
	r.end(69)
	require.Contains(t, r.stderr.String(), "no peer answers at 127.0.0.1:1")
}

func TestDiscoverWatches(t *testing.T) {
	t.Parallel()
	a := agentWithInstances(t)
	r := begin(t, serveAgent(t, a, ""), "instance", "watch", "web", "--status", "any")
	require.Equal(t, "added     w1                        UP              10.0.0.1:8080             1.2.3       v1", r.out.line(t))
	require.Contains(t, r.out.line(t), "added     w2")
	require.Contains(t, r.out.line(t), "added     w3")
	_, err := a.SetStatus(t.Context(), agenttest.Web("w1").Key, instance.StatusOutOfService)
	require.NoError(t, err)
	require.Contains(t, r.out.line(t), "modified  w1                        OUT_OF_SERVICE")
	a.Lose("no majority")
	a.Find()
	_, err = a.Deregister(t.Context(), agenttest.Web("w1").Key)
	require.NoError(t, err)
	require.Contains(t, r.out.line(t), "removed   w1                        DOWN")
	r.stop()
	r.end(130)

	a.Lose("no majority")
	r = begin(t, serveAgent(t, a, ""), "instance", "watch", "web", "--timeout", "3s", "-o", "ndjson")
	require.Contains(t, r.out.line(t), `{"event":"added","index":`)
	r.end(0)
	require.Contains(t, r.stderr.String(), "warning: the answer may be outdated: no majority")
}

func TestServicesWatches(t *testing.T) {
	t.Parallel()
	a := agenttest.New()
	r := begin(t, serveAgent(t, a, ""), "service", "watch", "-o", "ndjson")
	_, err := a.Register(t.Context(), agenttest.Web("a"))
	require.NoError(t, err)
	require.Equal(t, `{"name":"web","instances":1,"up":1,"tags":["v1"]}`, r.out.line(t))
	_, err = a.Register(t.Context(), agenttest.Web("b"))
	require.NoError(t, err)
	require.Equal(t, `{"name":"web","instances":2,"up":2,"tags":["v1"]}`, r.out.line(t))
	r.stop()
	r.end(130)
}

// TestShowWithoutContact: without contact to the group an instance is not called unknown.
func TestShowWithoutContact(t *testing.T) {
	a := agentWithInstances(t)
	a.Lose("no leader answers")
	peer := "BLACKHOLE_GRPC=" + serveAgent(t, a, "") + " blackholed instance show "
	for args, text := range map[string]string{"wbe": "SERVICE: no service wbe in the namespace default; did you mean web?", "web w9": "ID: w9 is not registered"} {
		shown := execute(t, peer+args)
		require.Contains(t, shown, "! warning: the answer may be outdated")
		require.Contains(t, shown, "! blackholed: "+text+"\n? 69\n")
	}
}
