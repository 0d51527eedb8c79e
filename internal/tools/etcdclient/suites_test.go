package etcdclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/require"
)

// suitesVersion is the version of etcd whose tests are played.
const suitesVersion = "v3.7.3"

// suites are packages of etcd's tests, and the files of each; none: all.
var suites = []struct {
	folder string
	files  []string
}{
	{folder: "integration/clientv3/concurrency"},
	{folder: "integration/clientv3/experimental/recipes"},
	{folder: "integration/clientv3/lease"},
	{folder: "integration/clientv3/watch"},
	{folder: "integration/clientv3", files: []string{"kv_test.go", "txn_test.go", "main_test.go", "util.go"}},
	{folder: "framework/config"},
}

// modelled are packages of etcd's check of its robustness.
var modelled = []string{"robustness/identity", "robustness/model"}

// TestSuites plays etcd's own tests of its client, unchanged, against peers: each test with a new one. testdata/suites stands in the place of
// etcd's server, and testdata/differences.txt has the tests that must fail, with reasons. ETCD_SUITES is a pattern of the tests to play; "." is all.
func TestSuites(t *testing.T) {
	chosen := os.Getenv("ETCD_SUITES")
	if chosen == "" {
		t.Skip("takes three minutes: set ETCD_SUITES=. or a pattern of tests")
	}
	differences := readDifferences(t)
	program, tree := peers.Build(t), unpack(t)
	for _, suite := range suites[:len(suites)-1] {
		tests := filepath.Join(t.TempDir(), "tests")
		peers.Output(t, tree, "go", "test", "-c", "-o", tests, "./"+suite.folder)
		list := strings.Fields(peers.Output(t, tree, tests, "-test.list", chosen))
		list = slices.DeleteFunc(list, func(name string) bool { return !strings.HasPrefix(name, "Test") }) // examples
		passed := 0
		for _, name := range list {
			how, differs := differences[name]
			delete(differences, name)
			text, ok := play(t, tests, program, name)
			skipped := strings.Contains(text, "\n--- SKIP")
			switch {
			case differs && (ok || !strings.Contains(text, how.text)):
				t.Errorf("%s: testdata/differences.txt says that it fails with %q, because it %s; now:\n%s", name, how.text, how.reason, text)
			case differs:
				t.Logf("differs: %s: %s", name, how.reason)
			case !ok:
				t.Errorf("%s fails:\n%s", name, text)
			case skipped:
				lines := logged.FindAllStringSubmatch(text, -1)
				require.NotEmpty(t, lines, text)
				t.Logf("skipped: %s: %s", name, lines[len(lines)-1][1])
			default:
				passed++
			}
		}
		t.Logf("%s: %d of %d passed", suite.folder, passed, len(list))
	}
	if chosen == "." {
		require.Empty(t, differences, "no test has these names")
	}
}

// logged finds what a test logs. The last line of a skipped test is the reason.
var logged = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: (.*)$`)

// play runs one test of etcd.
func play(t *testing.T, tests, program, name string) (output string, ok bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	run := exec.CommandContext(ctx, tests, "-test.run", "^"+name+"$", "-test.v", "-test.timeout", "90s")
	folder := t.TempDir()
	run.Env, run.Dir = append(os.Environ(), "ETCD_SUITE_PROGRAM="+program, "TMPDIR="+folder), folder
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a test that panics leaves its peer
	run.WaitDelay = time.Second
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	out, err := run.CombinedOutput()
	if run.Process != nil {
		_ = syscall.Kill(-run.Process.Pid, syscall.SIGKILL) // most often nobody is left
	}
	return string(out), err == nil
}

// difference is how a test must fail, and why.
type difference struct{ text, reason string }

// readDifferences returns the tests that must fail.
func readDifferences(t *testing.T) map[string]difference {
	text, err := os.ReadFile("testdata/differences.txt")
	require.NoError(t, err)
	all := map[string]difference{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if parts := strings.Split(lines.Text(), " | "); len(parts) == 3 {
			all[parts[0]] = difference{parts[1], parts[2]}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// unpack makes a module of etcd's tests and what stands in the place of its server.
func unpack(t *testing.T) string {
	tree := t.TempDir()
	require.NoError(t, os.CopyFS(tree, os.DirFS("testdata/suites")))
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal([]byte(peers.Output(t, "testdata/suites", "go", "mod", "download", "-json", "go.etcd.io/etcd/tests/v3@"+suitesVersion)), &module))
	bring := func(folder string, files []string) {
		if files == nil {
			paths, err := filepath.Glob(filepath.Join(module.Dir, folder, "*.go"))
			require.NoError(t, err)
			for _, path := range paths {
				files = append(files, filepath.Base(path))
			}
		}
		require.NoError(t, os.MkdirAll(filepath.Join(tree, folder), 0o755))
		for _, name := range files {
			text, err := os.ReadFile(filepath.Join(module.Dir, folder, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(tree, folder, name), text, 0o600))
		}
	}
	for _, suite := range suites {
		bring(suite.folder, suite.files)
	}
	for _, folder := range modelled {
		bring(folder, nil)
	}
	return tree
}
