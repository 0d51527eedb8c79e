package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// sdk lists the sources of the TypeScript client, with more files of its folder.
func sdk(t *testing.T, more ...string) []string {
	t.Helper()
	const folder = "../sdk/typescript/"
	files, err := filepath.Glob(folder + "*.ts")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(name string) bool { return name == folder+"test.ts" || name == folder+"check_types.ts" })
	for _, name := range append(more, "package.json", "tsconfig.json") {
		files = append(files, folder+name)
	}
	return files
}

// TestTypeScript compiles the client of the SDK in strict mode, compares its types with the document of a running
// peer, and plays it against the peer.
func TestTypeScript(t *testing.T) {
	run := typescript(t, sdk(t, "test.ts", "check_types.ts", "tsconfig.test.json")...)
	seller, buyer := pair(t)
	run("node_modules/openapi-typescript/bin/cli.js", seller+"/openapi.json", "--default-non-nullable", "false", "-o", "openapi.d.ts")
	run("node_modules/typescript/bin/tsc", "-p", "tsconfig.test.json")
	t.Setenv("BLACKHOLED", seller)
	t.Setenv("BUYER", buyer)
	require.Contains(t, run("--test-timeout=100000", "out/test.js"), "# fail 0")
}

// TestTypeScriptPackage packs the client as npm does, and compiles a program that uses the package, in strict mode.
func TestTypeScriptPackage(t *testing.T) {
	t.Parallel()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("no npm: nothing is packed")
	}
	run := typescript(t, sdk(t, "README.md")...)
	dir := strings.TrimSpace(run("-p", "process.cwd()"))
	cmd := exec.CommandContext(t.Context(), npm, "pack", "--offline")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "node_modules/.bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	packed, err := filepath.Glob(filepath.Join(dir, "blackholed-*.tgz"))
	require.NoError(t, err)
	require.Len(t, packed, 1)
	user := filepath.Join(dir, "user/node_modules")
	require.NoError(t, os.MkdirAll(user, 0o700))
	out, err = exec.CommandContext(t.Context(), "tar", "-xzf", packed[0], "-C", user).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Rename(filepath.Join(user, "package"), filepath.Join(user, "blackholed")))
	const program = `import { Client, type Grant, type KeyValue } from "blackholed"

const peer = new Client({ timeout: 1 }), stop = new AbortController()
export async function use(): Promise<void> {
  const session = await peer.locks().session(15), held = await session.lock("jobs", { wait: 30, signal: stop.signal })
  const lead = await session.campaign("boss", "me", { wait: 0 })
  const found: KeyValue | undefined = await peer.kv().get("a")
  for await (const batch of peer.kv().watch({ prefix: "app/" })) console.log(found?.value.length, batch.events.map((e) => e.kv?.value))
  console.log(BigInt(held.token), lead.token)
  const { results } = await peer.offers().query({ type: "compute", near: "berlin", radius_km: 100 })
  const grant: Grant = await peer.offers().reserve(results[0].record.key ?? "")
  console.log(grant.units + 1, results[0].record.location?.city)
}
console.log(typeof peer.services().discover)
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "user/user.mts"), []byte(program), 0o600))
	run("node_modules/typescript/bin/tsc", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "user/user.mts")
	require.Equal(t, "function\n", run("user/user.mjs"))
}
