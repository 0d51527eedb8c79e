package etcdclient

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/require"
)

// TestRobustness checks a history of calls at a group whose leaders are killed by etcd's model of itself: see testdata/suites/robustness. The length
// of the history is that of ETCD_ROBUSTNESS.
func TestRobustness(t *testing.T) {
	if os.Getenv("ETCD_ROBUSTNESS") == "" {
		t.Skip("kills peers for minutes: set ETCD_ROBUSTNESS=3m")
	}
	program, tree := peers.Build(t), unpack(t)
	tests := filepath.Join(t.TempDir(), "tests")
	peers.Output(t, tree, "go", "test", "-c", "-o", tests, "./robustness")
	run := exec.CommandContext(t.Context(), tests, "-test.v", "-test.timeout", "60m")
	run.Env, run.Dir = append(os.Environ(), "ETCD_SUITE_PROGRAM="+program), t.TempDir()
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}
