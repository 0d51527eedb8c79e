package outside_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/testnet/process"
)

// TestLibraries plays the own tests of stores of other programs over etcd or Consul, each with peers in a network namespace of its own. OUTSIDE has the
// kind go: they take minutes to compile.
func TestLibraries(t *testing.T) {
	binary := other(t)
	for name, l := range map[string]struct {
		module, version, pkg string
		running              []string          // the program that its tests want running, and its port; none: they start it
		but                  map[string]string // tests that are left out, and why
	}{
		"Traefik by etcd": {module: "github.com/kvtools/etcdv3", version: "v1.0.3", running: []string{"etcd", "4001"}},
		"Vitess by etcd": {module: "vitess.io/vitess", version: "v0.24.4", pkg: "/go/vt/topo/etcd2topo", but: map[string]string{
			"TestEtcd2TopoGetTabletsPartialResults": "calls a program of Vitess, vtctldclient",
		}},
		"Vitess by Consul": {module: "vitess.io/vitess", version: "v0.24.4", pkg: "/go/vt/topo/consultopo"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := module(t, l.module, l.version)
			tests := filepath.Join(folder, "tests")
			output(t, folder, "go", "test", "-mod=mod", "-vet=off", "-c", "-o", tests, l.module+l.pkg)
			at := strings.TrimSpace(output(t, folder, "go", "list", "-mod=mod", "-f", "{{.Dir}}", l.module+l.pkg))
			words := append([]string{"-n", "testdata/library.sh", binary, tests, at}, l.running...)
			for test, why := range l.but {
				t.Logf("without %s, which %s", test, why)
				words = append(words, "-test.skip", "^"+test+"$")
			}
			out := output(t, ".", "unshare", words...)
			t.Logf("%s %s: %d tests pass", l.module+l.pkg, l.version, strings.Count(out, "\n--- PASS"))
			require.Contains(t, out, "--- PASS")
		})
	}
}

// TestTemplates plays consul-template.
func TestTemplates(t *testing.T) {
	const path = "github.com/hashicorp/consul-template"
	binary := other(t)
	folder := module(t, path, "v0.39.1")
	program := filepath.Join(folder, "consul-template")
	output(t, folder, "go", "build", "-mod=mod", "-o", program, path)
	t.Log(output(t, ".", "unshare", "-n", "testdata/template.sh", binary, program))
}

// other builds the peer, if OUTSIDE has the kind go.
func other(t *testing.T) string {
	t.Helper()
	if !slices.Contains(strings.Split(os.Getenv("OUTSIDE"), ","), "go") {
		t.Skip("compiles programs of others for minutes: set OUTSIDE=go")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine makes no network namespace: %v: %s", err, out)
	}
	binary, err := process.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	return binary
}

// module makes a module that requires one of others.
func module(t *testing.T, path, version string) string {
	t.Helper()
	folder := t.TempDir()
	text := "module outside\n\ngo 1.26\n\nrequire " + path + " " + version + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(text), 0o600))
	return folder
}

func output(t *testing.T, folder, name string, words ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, words...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
