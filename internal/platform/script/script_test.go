//go:build unix

package script_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/script"
	"github.com/blackhole/blackhole/pkg/fault"
)

func sh(ctx context.Context, in, text string) (script.Result, error) {
	return script.Run(ctx, []string{"sh", "-c", text}, []string{"GIVEN=1"}, []byte(in), 8)
}

func TestRun(t *testing.T) {
	t.Setenv("BLACKHOLE_AUTH_TOKEN", "secret")
	r, err := sh(t.Context(), "in", `cat; echo "$GIVEN$BLACKHOLE_AUTH_TOKEN" >&2; exit 42`)
	require.NoError(t, err)
	require.Equal(t, script.Result{Code: 42, Out: []byte("in"), Err: []byte("1\n")}, r)
	r, err = sh(t.Context(), strings.Repeat("i", 1<<20), "exec <&-; head -c 1000000 /dev/zero | tr '\\0' o")
	require.NoError(t, err, "it neither reads all nor is kept from writing")
	require.Equal(t, "ooooooooo", string(r.Out), "one more than the bound")
	_, err = script.Run(t.Context(), []string{filepath.Join(t.TempDir(), "none")}, nil, nil, 8)
	require.ErrorIs(t, err, fault.Unavailable)
	_, err = sh(t.Context(), "", "kill -9 $$")
	require.ErrorContains(t, err, "signal: killed")
	_, err = sh(t.Context(), "", "sleep 1000 & echo $! >&2")
	require.ErrorContains(t, err, "keeps its output open")
}

// TestEnd: the end of the context kills the whole group.
func TestEnd(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := sh(ctx, "", "sleep 1000 & echo $! > "+trace+".new; mv "+trace+".new "+trace+"; sleep 1000")
		done <- err
	}()
	var text []byte
	require.Eventually(t, func() (ok bool) {
		var err error
		text, err = os.ReadFile(trace)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, fault.Canceled)
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return dead(child) }, time.Minute, 10*time.Millisecond)
}

// dead reports whether a process has ended, reaped or not.
func dead(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}
