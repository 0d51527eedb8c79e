package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/exit"
)

// TestManPages: each command has a page that names it, its flags and its examples, and man(1) has nothing against any.
func TestManPages(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	var stdout, stderr bytes.Buffer
	app := testApp(strings.NewReader(""), &stdout, &stderr, nil)
	require.Equal(t, exit.OK, app.Execute(context.Background(), []string{"man", dir}), stderr.String())
	page, err := os.ReadFile(filepath.Join(dir, "blackholed-lock-hold.1"))
	require.NoError(t, err)
	for _, part := range []string{
		".TH BLACKHOLED\\-LOCK\\-HOLD 1", "blackholed\\-lock\\-hold \\- ", ".B blackholed lock hold NAME", ".B \\-\\-ttl duration\n",
		".SH EXAMPLES\n.nf\n  blackholed lock hold", ".BR blackholed\\-lock (1)",
	} {
		require.Contains(t, string(page), part)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	require.NoError(t, err)
	require.Greater(t, len(pages), 50)
	man, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed")
	}
	for _, page := range pages {
		out, err := exec.CommandContext(t.Context(), man, "-man", "-Tutf8", "-ww", "-z", page).CombinedOutput()
		require.NoError(t, err, "%s: %s", page, out)
		require.Empty(t, string(out), page)
	}
}
