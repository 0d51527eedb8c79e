package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// typescript copies sources into a folder with the packages of the example, and returns a function that runs Node there.
func typescript(t *testing.T, files ...string) func(args ...string) string {
	t.Helper()
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
		t.Skip("no Node: no client in TypeScript runs")
	}
	dir := t.TempDir() // generated files stay out of the checkout
	for _, name := range files {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600))
	}
	require.NoError(t, os.Symlink(packages, filepath.Join(dir, "node_modules")))
	return func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
}

// TestGeneratedClient generates a TypeScript client from the document of a running peer, compiles the example with it in strict
// mode, and runs it against the peer.
func TestGeneratedClient(t *testing.T) {
	t.Parallel()
	run := typescript(t, "typescript/client.ts", "typescript/tsconfig.json", "typescript/package.json")
	address := "http://" + daemon(t, t.TempDir()).HTTP
	run("node_modules/openapi-typescript/bin/cli.js", address+"/openapi.json", "--default-non-nullable", "false", "-o", "blackholed.d.ts")
	run("node_modules/typescript/bin/tsc")
	require.Equal(t, "instance mail-1 10.0.0.9:25, renewed for 30 s\n"+
		"offer gpu-1 at 253 km\n"+
		"lock true, other false, token above 0: true\n"+
		"error 400 validation_error host\n", run("out/client.js", address))
}

// TestTypeScript compiles the client of the SDK in strict mode and plays it against a running peer.
func TestTypeScript(t *testing.T) {
	const sdk = "../sdk/typescript/"
	run := typescript(t, sdk+"blackholed.ts", sdk+"test.ts", sdk+"tsconfig.json", sdk+"package.json")
	run("node_modules/typescript/bin/tsc")
	seller, buyer := pair(t)
	t.Setenv("BLACKHOLED", seller)
	t.Setenv("BUYER", buyer)
	require.Contains(t, run("--test-timeout=100000", "out/test.js"), "# pass 14")
}
