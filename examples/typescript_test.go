package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGeneratedClient generates a TypeScript client from the document of a running peer, compiles the example with it in strict
// mode, and runs it against the peer.
func TestGeneratedClient(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	packages, err := filepath.Abs("typescript/node_modules")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(packages, "openapi-fetch")); err != nil {
		t.Skip("no packages: run npm ci in examples/typescript")
	}
	binary, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no Node: the generated client does not run")
	}
	dir := t.TempDir() // the peer's document is not of the checkout
	for _, name := range []string{"client.ts", "tsconfig.json", "package.json"} {
		data, err := os.ReadFile(filepath.Join("typescript", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	require.NoError(t, os.Symlink(packages, filepath.Join(dir, "node_modules")))
	address := "http://" + daemon(t, t.TempDir()).HTTP
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	run("node_modules/openapi-typescript/bin/cli.js", address+"/openapi.json", "--default-non-nullable", "false", "-o", "blackholed.d.ts")
	run("node_modules/typescript/bin/tsc")
	require.Equal(t, "instance mail-1 10.0.0.9:25, renewed for 30 s\n"+
		"offer gpu-1 at 253 km\n"+
		"lock true, other false, token above 0: true\n"+
		"error 400 validation_error host\n", run("out/client.js", address))
}
