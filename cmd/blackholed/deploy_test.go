package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/sim/loopback"
)

const deploy = root + "/deploy"

// blackholed returns the program under test as a command, with only these variables in its environment.
func blackholed(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	home := t.TempDir()
	cmd.Args[0], cmd.Env = "blackholed", append(env, "HOME="+home, "XDG_STATE_HOME="+home)
	return cmd
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deploy, filepath.FromSlash(path)))
	require.NoError(t, err)
	return string(data)
}

func decode(t *testing.T, path string) (v map[string]any) {
	t.Helper()
	require.NoError(t, yaml.Unmarshal([]byte(read(t, path)), &v))
	return v
}

// find follows a path of keys, and of indexes as numbers, in decoded YAML.
func find(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch key := step.(type) {
		case string:
			require.Contains(t, v, key)
			v = v.(map[string]any)[key]
		case int:
			v = v.([]any)[key]
		}
	}
	return v
}

// needs skips a test that needs a tool.
func needs(t *testing.T, tool string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skip(tool + " is not installed")
	}
	return path
}

// bounded is a tool's command that ends with the patience of the tests.
func bounded(t *testing.T, tool string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), toolPatience)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, tool, args...)
}

func succeeds(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", cmd, out)
	return string(out)
}

// TestDeployedCommands: each command line in deploy has a command and flags that the program has. --help parses the
// flags first.
func TestDeployedCommands(t *testing.T) {
	t.Parallel()
	var lines []string
	require.NoError(t, filepath.WalkDir(deploy, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		text := strings.ReplaceAll(string(data), "\\\n", " ")
		text = regexp.MustCompile(`(--\w+) "`).ReplaceAllString(text, "$1 ") // a quoted value
		text = regexp.MustCompile(`"\s*,\s*"`).ReplaceAllString(text, " ")   // of a list: ["/blackholed", "status"]
		for _, m := range regexp.MustCompile("(?:^|[ \"])(?:/usr/local/bin/|/)blackholed ([a-z][^\n\"`>|)]*)").FindAllStringSubmatch(text, -1) {
			lines = append(lines, strings.TrimSpace(m[1]))
		}
		for _, m := range regexp.MustCompile("`blackholed ([a-z][^`]*)`").FindAllStringSubmatch(text, -1) {
			lines = append(lines, m[1])
		}
		return err
	}))
	require.Greater(t, len(lines), 8)
	for _, line := range lines {
		out := succeeds(t, blackholed(t, nil, append(strings.Fields(line), "--help")...))
		require.Contains(t, out, "Usage:\n  blackholed "+strings.Fields(line)[0], line)
	}
}

// TestDeployedSettings: the environments of unit, containers and pods are settings that the program accepts.
func TestDeployedSettings(t *testing.T) {
	environments := map[string][]string{}
	for line := range strings.Lines(read(t, "systemd/environment")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "BLACKHOLE_") {
			environments["systemd"] = append(environments["systemd"], line)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^ENV (\S+)$`).FindAllStringSubmatch(read(t, "docker/Dockerfile"), -1) {
		environments["docker"] = append(environments["docker"], m[1])
	}
	compose := decode(t, "compose/compose.yaml")
	for name, value := range find(t, compose, "services", "peer-2", "environment").(map[string]any) {
		environments["compose"] = append(environments["compose"], name+"="+value.(string))
	}
	pod := map[string]string{"$(POD_NAME)": "blackholed-0", "$(POD_IP)": "10.0.0.7"}
	for _, v := range find(t, decode(t, "kubernetes/statefulset.yaml"), "spec", "template", "spec", "containers", 0, "env").([]any) {
		one := v.(map[string]any)
		if value, ok := one["value"].(string); ok {
			for word, is := range pod {
				value = strings.ReplaceAll(value, word, is)
			}
			environments["kubernetes"] = append(environments["kubernetes"], one["name"].(string)+"="+value)
		}
	}
	for of, env := range environments {
		require.NotEmpty(t, env)
		env = append(env, "BLACKHOLE_DATA="+t.TempDir())
		shown := succeeds(t, blackholed(t, without(env, "BLACKHOLE_JOIN"), "config", "show"))
		for _, v := range env {
			name, _, _ := strings.Cut(v, "=")
			require.True(t, strings.HasPrefix(name, "BLACKHOLE_"), "%s: %s", of, name)
		}
		require.Contains(t, shown, "profile", of)
	}
	require.Len(t, environments, 4)
}

func without(env []string, name string) (rest []string) {
	for _, v := range env {
		if !strings.HasPrefix(v, name+"=") {
			rest = append(rest, v)
		}
	}
	return rest
}

// TestDeployedPorts: all ports in deploy are those of the default settings.
func TestDeployedPorts(t *testing.T) {
	known := map[string]bool{"4801": true, "8500": true, "8502": true, "8600": true, "9090": true, "3000": true, "53": true}
	for _, path := range []string{"docker/Dockerfile", "compose/compose.yaml", "compose/prometheus.yml", "kubernetes/statefulset.yaml", "kubernetes/services.yaml"} {
		ports := regexp.MustCompile(`(?:[Pp]ort: |\.\d:|peer-\d:|EXPOSE |tcp |udp |tcp/|\d:)(\d{2,5})\b`).FindAllStringSubmatch(read(t, path), -1)
		require.NotEmpty(t, ports, path)
		for _, m := range ports {
			require.True(t, known[m[1]] || m[1] == "65532", "%s: port %s", path, m[1])
		}
	}
	shown := succeeds(t, blackholed(t, []string{"BLACKHOLE_DATA=" + t.TempDir()}, "config", "show"))
	for _, port := range []string{"8500", "8502", "8600"} {
		require.Contains(t, shown, ":"+port)
	}
}

// TestUnit checks the unit of systemd, and that the program keeps what the unit expects: a word when it is up, signs of
// life, a word before it stops.
func TestUnit(t *testing.T) {
	unit := read(t, "systemd/blackholed.service")
	require.Contains(t, unit, "Type=notify")
	t.Run("verified", func(t *testing.T) {
		tool := needs(t, "systemd-analyze")
		path := filepath.Join(t.TempDir(), "blackholed.service")
		self, err := os.Executable()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(unit, "/usr/local/bin/blackholed", self)), 0o600))
		succeeds(t, bounded(t, tool, "verify", "--man=no", path))
		succeeds(t, bounded(t, tool, "security", "--offline=yes", "--threshold=20", path)) // of 100; 96 without any protection
	})
	t.Run("heard", func(t *testing.T) {
		dir := t.TempDir()
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
		if err != nil {
			t.Skip(err)
		}
		defer func() { require.NoError(t, l.Close()) }()
		require.NoError(t, l.SetReadDeadline(time.Now().Add(2*time.Minute)))
		cmd := blackholed(t, []string{"NOTIFY_SOCKET=" + l.LocalAddr().String(), "WATCHDOG_USEC=200000"}, "run", "--data", filepath.Join(dir, "data"),
			"--listen", "/ip4/127.0.0.1/tcp/0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--dns", "127.0.0.1:0")
		require.NoError(t, cmd.Start())
		next := func() string {
			b := make([]byte, 4096)
			n, err := l.Read(b)
			require.NoError(t, err)
			word, _, _ := strings.Cut(string(b[:n]), "\n")
			return word
		}
		require.Equal(t, "READY=1", next())
		require.Equal(t, "WATCHDOG=1", next())
		require.Equal(t, "WATCHDOG=1", next())
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		word := next()
		for word == "WATCHDOG=1" {
			word = next()
		}
		require.Equal(t, "STOPPING=1", word)
		require.NoError(t, cmd.Wait())
	})
}

// TestCompose starts three peers as compose.yaml does, with its certificates and its environment: they found one group together, and the
// health check answers.
func TestCompose(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("processes on loopback")
	}
	needs(t, "openssl")
	sh := needs(t, "sh")
	secrets := t.TempDir()
	made := exec.Command(sh, deploy+"/compose/certificates.sh", secrets, "+"+strings.TrimSpace(succeeds(t, exec.Command("id", "-u"))))
	succeeds(t, made)
	services := find(t, decode(t, "compose/compose.yaml"), "services").(map[string]any)
	ports := make([]string, 3)
	var bootstrap []string
	for i := range ports {
		_, port, err := net.SplitHostPort(loopback.Free(t))
		require.NoError(t, err)
		ports[i] = port
		bootstrap = append(bootstrap, "/ip4/127.0.0.1/tcp/"+port)
	}
	start := func(name, port string) (grpc string) {
		var env []string
		for key, v := range find(t, services, name, "environment").(map[string]any) {
			switch value := strings.ReplaceAll(v.(string), "/certificates", secrets); key {
			case "BLACKHOLE_HTTP":
				env = append(env, key+"=127.0.0.1:0")
			case "BLACKHOLE_BOOTSTRAP":
				require.Contains(t, value, "/dns4/"+name+"/tcp/4801")
				env = append(env, key+"="+strings.Join(bootstrap, ","))
			default:
				env = append(env, key+"="+value)
			}
		}
		return run(t, append(env, "BLACKHOLE_DATA="+filepath.Join(t.TempDir(), "data"), "BLACKHOLE_LISTEN=/ip4/127.0.0.1/tcp/"+port, "BLACKHOLE_DNS=127.0.0.1:0"))
	}
	check := func(name, grpc string) {
		test := find(t, services, name, "healthcheck", "test").([]any)
		require.Equal(t, []any{"CMD", "/blackholed"}, test[:2])
		args := []string{}
		for _, word := range test[2:] {
			args = append(args, strings.ReplaceAll(word.(string), "/certificates", secrets))
		}
		args = append(args, "--grpc", grpc, "--timeout", "60s") // the last one applies; a busy machine is slow
		succeeds(t, blackholed(t, nil, args...))
	}
	var all []string
	for i, port := range ports {
		all = append(all, start(fmt.Sprintf("peer-%d", i+1), port))
	}
	groups := make(map[string]bool)
	for i, grpc := range all {
		check(fmt.Sprintf("peer-%d", i+1), grpc)
		require.Eventually(t, func() bool {
			out, err := blackholed(t, nil, "status", "--grpc", grpc, "--tls-ca", filepath.Join(secrets, "ca.crt"), "-o", "json").Output()
			var s struct {
				Peers int `json:"peers"`
				Group *struct {
					ID     string `json:"group_id"`
					Leader string
				}
			}
			if err != nil || json.Unmarshal(out, &s) != nil || s.Peers != 2 || s.Group == nil || s.Group.Leader == "" {
				return false
			}
			groups[s.Group.ID] = true
			return true
		}, 2*time.Minute, 200*time.Millisecond, "peer %d is in network and group", i+1)
	}
	require.Len(t, groups, 1)
	require.NotContains(t, groups, "")
}

// run starts a peer and returns its gRPC address.
func run(t *testing.T, env []string) string {
	t.Helper()
	cmd := blackholed(t, env, "run", "--grpc", "127.0.0.1:0")
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		require.NoError(t, log.Close())
		text, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			require.True(t, json.Valid([]byte(line)), line)
		}
	})
	address := regexp.MustCompile(`"grpc":"(127\.0\.0\.1:\d+)"`)
	var text []byte
	require.Eventually(t, func() bool {
		text, err = os.ReadFile(log.Name())
		return err == nil && address.Match(text)
	}, 2*time.Minute, 20*time.Millisecond, "the peer did not start")
	return string(address.FindSubmatch(text)[1])
}

// TestPrometheusRules runs the unit tests of the alerts, and parses each expression of the dashboard.
func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	promtool := needs(t, "promtool")
	succeeds(t, bounded(t, promtool, "check", "rules", deploy+"/prometheus/alerts.yml"))
	succeeds(t, bounded(t, promtool, "test", "rules", deploy+"/prometheus/alerts_test.yml"))
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, "grafana/blackholed.json")), &board))
	var rules bytes.Buffer
	rules.WriteString("groups: [{name: board, rules: [\n")
	ids, titles, count := map[int]bool{}, map[string]bool{}, 0
	for _, p := range board.Panels {
		require.False(t, ids[p.ID], "panel %d", p.ID)
		ids[p.ID], titles[p.Title] = true, true
		for _, target := range p.Targets {
			expr, err := json.Marshal(strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			require.NoError(t, err)
			count++
			fmt.Fprintf(&rules, "{record: board:%d, expr: %s},\n", count, expr)
		}
	}
	rules.WriteString("]}]\n")
	for _, title := range []string{ // of the U06 Service Discovery Protocol, section 7
		"Active services by type", "Registration rate", "Query performance", "Cache hit rate", "Service health", "DHT operation latency",
	} {
		require.True(t, titles[title], title)
	}
	path := filepath.Join(t.TempDir(), "board.yml")
	require.NoError(t, os.WriteFile(path, rules.Bytes(), 0o600))
	succeeds(t, bounded(t, promtool, "check", "rules", path))
}

// TestPrometheusConfig lets promtool read both configurations. Their targets exist in other networks only.
func TestPrometheusConfig(t *testing.T) {
	for _, file := range []string{"/compose/prometheus.yml", "/prometheus/prometheus.yml"} {
		succeeds(t, bounded(t, needs(t, "promtool"), "check", "config", "--syntax-only", deploy+file))
	}
}

// TestOwnMetricNames: promtool has nothing against the names, except for the specification's gauge.
func TestOwnMetricNames(t *testing.T) {
	promtool := needs(t, "promtool")
	metrics := bounded(t, promtool, "check", "metrics")
	peer := newStage(t, "", nil, nil).machine(t, "")
	metrics.Stdin = strings.NewReader(fetch(t, "http://127.0.0.1:"+peer.words.ports["8500"]+"/v1/metrics"))
	out, _ := metrics.CombinedOutput() // it fails for the names of libp2p
	for line := range strings.Lines(string(out)) {
		require.True(t, strings.HasPrefix(line, "libp2p_") || strings.HasPrefix(line, "manifest_services_total "), line)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(body)
}
