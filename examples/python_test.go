package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// python returns the path of Python, or skips.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	binary, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no Python: its client does not run")
	}
	return binary
}

// TestPython plays the Python client against a running peer.
func TestPython(t *testing.T) {
	t.Parallel()
	binary := python(t)
	seller, buyer := pair(t)
	cmd := exec.CommandContext(t.Context(), binary, "-B", "test_blackholed.py", seller, buyer)
	cmd.Dir = "../sdk/python"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestPythonPackage installs the Python client as pip does, and holds it and a program that uses it to strict types.
func TestPythonPackage(t *testing.T) {
	t.Parallel()
	binary := python(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "source"), os.DirFS("../sdk/python")))
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(binary, "-m", "pip", "--version"); err != nil {
		t.Skip("no pip: nothing is installed:", out)
	}
	out, err := run(binary, "-m", "pip", "install", "--no-index", "--target", "installed", "./source")
	require.NoError(t, err, out)
	require.FileExists(t, filepath.Join(dir, "installed/blackholed/py.typed"))
	const program = `import threading

from blackholed import Client, Grant, KeyValue
from blackholed.manifest import ManifestClient

peer = Client(timeout=1.0)


def use(stop: threading.Event) -> None:
    with peer.services().register("mail", "10.0.0.9", 25, zone="a"), peer.locks().session(ttl=15) as session:
        with session.lock("jobs", wait=30, stop=stop) as held, session.campaign("boss", b"me") as lead:
            number: int = held.token + lead.token
            print(number)
    found: KeyValue | None = peer.kv().get("a")
    for batch in peer.kv().watch("app/", stop=stop):
        print(found, [e.kv.value for e in batch.events if e.kv is not None])
    record = peer.offers().query(type="compute", near="berlin", radius_km=100)["results"][0]["record"]
    grant: Grant = peer.offers().reserve(record.get("key", ""))
    city: str = record.get("location", {}).get("city", "")
    print(grant["token"] + 1, city, ManifestClient().get_service("a")["interfaces"])
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program.py"), []byte(program), 0o600))
	pyright, err := filepath.Abs("typescript/node_modules/.bin/pyright")
	require.NoError(t, err)
	if _, err := os.Stat(pyright); err != nil {
		t.Skip("no pyright: run npm ci in examples/typescript")
	}
	const settings = `{"typeCheckingMode": "strict", "pythonVersion": "3.10", "extraPaths": ["installed"], "include": ["program.py", "installed/blackholed"]}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pyrightconfig.json"), []byte(settings), 0o600))
	out, err = run(pyright, "-p", dir)
	require.NoError(t, err, out)
	require.Contains(t, out, "0 errors, 0 warnings")
}
