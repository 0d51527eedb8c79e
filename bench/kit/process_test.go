package kit

import (
	"bytes"
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// TestProcess: it can be ended in both ways, and started again as it was.
func TestProcess(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no shell here")
	}
	p := &Process{Binary: shell, Args: []string{"-c", "exec sleep 60"}}
	require.False(t, p.Runs())
	require.Zero(t, p.ID())
	require.Zero(t, p.Spent())
	p.Stop() // of what never ran
	for _, end := range []func(){p.Stop, p.Kill} {
		require.NoError(t, p.Start())
		require.True(t, p.Runs())
		require.NotZero(t, p.ID())
		end()
		require.False(t, p.Runs())
		require.Zero(t, p.Spent())
	}
	require.ErrorIs(t, (&Process{Binary: "/no/such/file"}).Start(), fault.Unavailable)
}

// TestProcessSays: it has its own variables, and what it says goes to its log.
func TestProcessSays(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no shell here")
	}
	var log bytes.Buffer
	p := &Process{Binary: shell, Args: []string{"-c", `echo "$WHO says"`}, Env: []string{"WHO=child"}, Log: &log}
	require.NoError(t, p.Start())
	<-p.exited
	require.Equal(t, "child says\n", log.String())
}

func TestBuildTellsWhatTheCompilerSays(t *testing.T) {
	err := Build(context.Background(), ".", t.TempDir()+"/x", "./no-such-folder")
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "no-such-folder")
}
