package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAPeerThatDoesNotStartFailsNoInstallation plays what a package runs after its installation, with a systemctl
// that fails.
func TestAPeerThatDoesNotStartFailsNoInstallation(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("packages are of Linux")
	}
	script, err := os.ReadFile("../../deploy/packages/installed.sh")
	require.NoError(t, err)
	folder := t.TempDir()
	for _, fails := range []string{"daemon-reload", "try-restart", "nothing"} {
		tool := "#!/bin/sh\n[ \"$1\" != " + fails + " ]\n"
		require.NoError(t, os.WriteFile(filepath.Join(folder, "systemctl"), []byte(tool), 0o700))
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", strings.ReplaceAll(string(script), "/run/systemd/system", folder))
		cmd.Env = []string{"PATH=" + folder}
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", fails, said)
		require.Equal(t, fails != "nothing", len(said) > 0, string(said))
	}
}
