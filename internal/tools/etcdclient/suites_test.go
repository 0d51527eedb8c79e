package etcdclient

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

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
	differences := peers.Differences(t, "testdata/differences.txt")
	program, tree := peers.Build(t), unpack(t)
	for _, suite := range suites[:len(suites)-1] {
		tests := filepath.Join(t.TempDir(), "tests")
		peers.Output(t, tree, "go", "test", "-c", "-o", tests, "./"+suite.folder)
		peers.Suite{Name: suite.folder, Tests: tests, Env: []string{"ETCD_SUITE_PROGRAM=" + program}}.Play(t, chosen, differences)
	}
	if chosen == "." {
		require.Empty(t, differences, "no test has these names")
	}
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
