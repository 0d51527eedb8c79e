package consulclient

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/require"
)

// elsewhere are patterns of tests of what this program does not have as a whole.
var elsewhere = map[string]string{
	"ACL|AuthMethod|_Token|UpdateToken": "ACLs of Consul: a token is one of the peer's own",
	"Connect|Intention|ConfigEntr|DecodeConfigEntry|Gateway|DiscoveryChain|ServiceVirtualIP|Peering|Exported|Sidecar|UnmanagedProxy|Ingress|ValidateRoute": "service mesh and peering of clusters",
	"SetupTLSConfig|ClientTLSOptions": "files that the module does not have",
	"Operator|Keyring|Autopilot":      "operators' commands of Consul: a peer has its own",
}

// TestSuites plays the tests of Consul's own client, unchanged, against peers: each test with a new one, which testdata/consul starts in the place
// of Consul. testdata/differences.txt has the tests that must fail, with reasons. CONSUL_SUITES is a pattern of the tests to play; "." is all.
func TestSuites(t *testing.T) {
	chosen := os.Getenv("CONSUL_SUITES")
	if chosen == "" {
		t.Skip("takes ten minutes: set CONSUL_SUITES=. or a pattern of tests")
	}
	differences := peers.Differences(t, "testdata/differences.txt")
	tree, programs := t.TempDir(), t.TempDir()
	unpack(t, "github.com/hashicorp/consul/api", filepath.Join(tree, "api"))
	text, err := os.ReadFile(filepath.Join(tree, "api", "go.mod"))
	require.NoError(t, err)
	_, version, _ := strings.Cut(string(text), "hashicorp/consul/sdk v")
	version, _, _ = strings.Cut(version, "\n")
	unpack(t, "github.com/hashicorp/consul/sdk@v"+version, filepath.Join(tree, "sdk"))
	server := filepath.Join(tree, "sdk", "testutil", "server.go")
	text, err = os.ReadFile(server)
	require.NoError(t, err)
	for before, after := range map[string]string{
		"WaitForActiveCARoot(t testing.TB) {\n": "WaitForActiveCARoot(t testing.TB) {\n\treturn\n", // a peer has no certificates of a service mesh
		"timer := retry.TwoSeconds()\n":         "timer := &retry.Timer{Timeout: 30 * time.Second, Wait: 25 * time.Millisecond}\n",
		"\t\tfailed = false\n":                  "\t\treturn nil\n", // as soon as it is ready
	} {
		require.Contains(t, string(text), before)
		text = []byte(strings.Replace(string(text), before, after, 1))
	}
	require.NoError(t, os.WriteFile(server, text, 0o600))
	peers.Output(t, filepath.Join(tree, "api"), "go", "mod", "edit", "-replace", "github.com/hashicorp/consul/sdk=../sdk")
	peers.Output(t, filepath.Join(tree, "api"), "go", "test", "-vet=off", "-c", "-o", filepath.Join(programs, "tests"), ".")
	peers.Output(t, ".", "go", "build", "-o", filepath.Join(programs, "consul"), "./testdata/consul")
	suite := peers.Suite{
		Name: "consul/api", Tests: filepath.Join(programs, "tests"), Dir: filepath.Join(tree, "api"), Elsewhere: elsewhere,
		Env: []string{"CONSUL_SUITE_PROGRAM=" + peers.Build(t), "PATH=" + programs + string(filepath.ListSeparator) + os.Getenv("PATH")},
	}
	suite.Play(t, chosen, differences)
	if chosen == "." {
		require.Empty(t, differences, "no test has these names")
	}
}

// unpack copies a module into a folder.
func unpack(t *testing.T, module, folder string) {
	var at struct{ Dir string }
	require.NoError(t, json.Unmarshal([]byte(peers.Output(t, ".", "go", "mod", "download", "-json", module)), &at))
	require.NoError(t, os.CopyFS(folder, os.DirFS(at.Dir)))
	require.NoError(t, filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Chmod(path, 0o700) // modules are read-only
		}
		return err
	}))
}
