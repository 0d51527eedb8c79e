package examples_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPython plays the Python client against a running peer.
func TestPython(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	binary, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no Python: its client does not run")
	}
	seller, buyer := pair(t)
	cmd := exec.CommandContext(t.Context(), binary, "-B", "test_blackholed.py", seller, buyer)
	cmd.Dir = "../sdk/python"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
