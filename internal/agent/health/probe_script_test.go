//go:build unix

package health_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

func TestScript(t *testing.T) {
	t.Setenv("BLACKHOLE_AUTH_TOKEN", "secret")
	trace := filepath.Join(t.TempDir(), "trace")
	scripts := map[string][]string{
		"pass": {"true"},
		"fail": {"false"},
		"none": {filepath.Join(t.TempDir(), "none")},
		"env":  {"sh", "-c", "env > " + trace},
		"loud": {"sh", "-c", "head -c 1000000 /dev/zero; cat"},
		"hang": {"sh", "-c", "sleep 1000 & echo $! > " + trace + "; sleep 1000"},
	}
	script := func(name string) health.Report {
		check := instance.Check{Type: instance.Script, Endpoint: name, Timeout: time.Minute, Interval: time.Minute}
		if name == "hang" {
			check.Timeout = 3 * time.Second // time to start
		}
		one := health.Target{
			Key: instance.Key{Namespace: "default", Service: "web", ID: "web-1"}, Host: "10.0.0.1", Port: 80, Check: check,
		}
		return once(t, one, func(cfg *health.Config) { cfg.Scripts = scripts })
	}
	require.True(t, script("pass").Passing)
	require.False(t, script("fail").Passing)
	require.False(t, script("none").Passing)
	require.True(t, script("loud").Passing)
	require.True(t, script("env").Passing)
	env, err := os.ReadFile(trace)
	require.NoError(t, err)
	require.NotContains(t, string(env), "secret")
	require.Contains(t, string(env), "BLACKHOLE_HOST=10.0.0.1\n")
	given := map[string]string{}
	for line := range strings.Lines(string(env)) {
		name, value, _ := strings.Cut(line, "=")
		given[name] = value
	}
	for name := range given {
		require.Equal(t, strings.HasPrefix(name, environ.Prefix), environ.IsForeign(given, name), name)
	}

	r := script("hang")
	require.ErrorIs(t, r.Err, fault.Timeout)
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return dead(child) }, time.Minute, 10*time.Millisecond, "the whole group is killed")
}

// dead reports whether a process has ended, reaped or not.
func dead(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}
