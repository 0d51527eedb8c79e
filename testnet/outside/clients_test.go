// Package outside plays programs of others, unchanged, against a peer.
package outside_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/process"
)

// patience bounds each client and every wait. A passing test does not depend on it.
const patience = 2 * time.Minute

// TestClients plays each client against a peer of its own. The scripts print name and version of the client first, and fail at anything
// that the server for which it was made does not do. OUTSIDE lists the kinds to play: apt, npm. One that is not installed fails.
func TestClients(t *testing.T) {
	kinds := strings.Split(os.Getenv("OUTSIDE"), ",")
	if kinds[0] == "" {
		t.Skip("needs programs of others: install them like .ci/run, and set OUTSIDE=apt,npm")
	}
	binary, err := process.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	for script, c := range map[string]struct {
		kind string
		run  func(*testing.T) string // the program that runs the script
		etcd bool                    // a client of etcd
		told string                  // the document that names the version
	}{
		"etcd.py":        {"apt", python("etcd3"), true, "from-etcd.md"},
		"etcdctl.sh":     {"apt", etcdctl, true, "from-etcd.md"},
		"npm/etcd.mjs":   {"npm", node, true, "from-etcd.md"},
		"consulapi.py":   {"apt", python("consul"), false, "from-consul.md"},
		"npm/consul.mjs": {"npm", node, false, "from-consul.md"},
		"npm/mcp.mjs":    {"npm", node, false, "for-agents.md"},
	} {
		t.Run(script, func(t *testing.T) {
			if !slices.Contains(kinds, c.kind) {
				t.Skip("OUTSIDE does not list " + c.kind)
			}
			t.Parallel()
			runner := c.run(t)
			p, address := peer(t, binary)
			if !c.etcd {
				address = p.HTTP
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, runner, filepath.Join("testdata", script), address)
			cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1") // what Python compiles is not of the checkout
			cmd.WaitDelay = time.Second                                 // of programs that a script started
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
			version, _, _ := strings.Cut(string(out), "\n")
			text, err := os.ReadFile(filepath.Join("../../docs/howto", c.told))
			require.NoError(t, err)
			require.True(t, strings.Contains(strings.ReplaceAll(string(text), "`", ""), version), "%s plays, and docs/howto/%s does not say so", version, c.told)
		})
	}
}

// peer runs a peer that serves clients of etcd and of Consul, and returns it and its address for those of etcd.
func peer(t *testing.T, binary string) (*process.Process, string) {
	free, err := process.FreePorts(1)
	require.NoError(t, err)
	p, err := process.Start(process.Spec{Name: "peer", Binary: binary, Data: t.TempDir(), Settings: []string{"ETCD_LISTEN=" + free[0], "CONSUL_ENABLED=true"}})
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	require.NoError(t, await.Until(t.Context(), patience, "the peer is ready", func(context.Context) error {
		if !p.Running() {
			return await.Never(p.Failure())
		}
		answer, err := http.Get("http://" + p.HTTP + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fault.New("outside.peer", fault.Unavailable, "%s", answer.Status)
		}
		return nil
	}))
	return p, free[0]
}

// python returns what finds a Python with a package. One of Debian is of its own Python only.
func python(module string) func(*testing.T) string {
	return func(t *testing.T) string {
		for _, binary := range []string{"/usr/bin/python3", "python3"} {
			if exec.CommandContext(t.Context(), binary, "-c", "import "+module).Run() == nil {
				return binary
			}
		}
		t.Fatal("no Python with " + module + ": apt-get install python3-" + module)
		return ""
	}
}

func etcdctl(t *testing.T) string {
	if _, err := exec.LookPath("etcdctl"); err != nil {
		t.Fatal("no etcdctl: apt-get install etcd-client")
	}
	return "bash"
}

// node is the one that npm installed beside the clients: the conformance suite of MCP needs Node 22.
func node(t *testing.T) string {
	found, err := filepath.Glob("testdata/npm/node_modules/node-linux-*/bin/node")
	require.NoError(t, err)
	require.NotEmpty(t, found, "npm ci --prefix testnet/outside/testdata/npm --ignore-scripts, on Linux")
	binary, err := filepath.Abs(found[0])
	require.NoError(t, err)
	return binary
}

// TestNeighbour browses with DNS-SD over multicast DNS.
func TestNeighbour(t *testing.T) {
	alone(t, "dnssd.sh")
}

// TestProxies gives each proxy the instances of a service. Debian has no package of Traefik: TRAEFIK is the path of one.
func TestProxies(t *testing.T) {
	for kind, program := range map[string]string{"haproxy": "haproxy", "nginx": "nginx", "traefik": os.Getenv("TRAEFIK")} {
		t.Run(kind, func(t *testing.T) {
			if program == "" {
				t.Skip("needs Traefik: set TRAEFIK to its path")
			}
			alone(t, "proxy.sh", kind, program)
		})
	}
}

// TestHooks plays the scripts of docs/howto/trade-hooks.md, with OpenSSH.
func TestHooks(t *testing.T) {
	alone(t, "hooks.sh")
}

// alone plays a script in a network namespace of its own, with programs of Debian.
func alone(t *testing.T, script string, args ...string) {
	if !slices.Contains(strings.Split(os.Getenv("OUTSIDE"), ","), "apt") {
		t.Skip("needs programs of others: install them like .ci/run, and set OUTSIDE=apt")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine makes no network namespace: %v: %s", err, out)
	}
	t.Parallel()
	binary, err := process.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"-n", "testdata/" + script, binary}, args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}
