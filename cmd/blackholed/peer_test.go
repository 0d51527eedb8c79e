package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startPeer runs a peer until the end of the document or of the service. Its ports are free ones, and the same after a
// restart. Readers run it in a terminal of its own.
func (m *machine) startPeer(t *testing.T, command string, env ...string) []string {
	t.Helper()
	port := map[string]string{"http": "8500", "grpc": "8502", "dns": "8600", "p2p": "4801"}
	flag := regexp.MustCompile(`--(http|grpc|dns) \S*:(\d+)|(--listen) \S*/tcp/(\d+)`)
	for _, f := range flag.FindAllStringSubmatch(command, -1) {
		if f[3] != "" {
			f[1], f[2] = "p2p", f[4]
		}
		port[f[1]] = f[2]
	}
	actual := func(name string) string {
		if p := m.words.ports[port[name]]; p != "" {
			return p
		}
		return "0"
	}
	line := flag.ReplaceAllString(m.words.actual(strings.TrimSuffix(command, " &")), "")
	j := m.job(t, "")
	j.cmd.Args[2] = "exec env " + line
	j.cmd.Stdout, j.cmd.Stderr = nil, nil
	j.cmd.Env = append(append(slices.Clone(m.env), "BLACKHOLE_HTTP=127.0.0.1:"+actual("http"), "BLACKHOLE_GRPC=127.0.0.1:"+actual("grpc"),
		"BLACKHOLE_DNS=127.0.0.1:"+actual("dns"), "BLACKHOLE_LISTEN=/ip4/127.0.0.1/tcp/"+actual("p2p")), env...)
	logs, err := j.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, j.cmd.Start())
	m.peers = append(m.peers, j)
	address := regexp.MustCompile(`\b(http|grpc|dns)"?[=:]"?127\.0\.0\.1:(\d+)`)
	listen := regexp.MustCompile(`\blisten"?[=:]"?\["?/ip4/127\.0\.0\.1/tcp/(\d+)`)
	var said []string
	for scan := bufio.NewScanner(logs); !strings.Contains(scan.Text(), "peer is up"); {
		require.True(t, scan.Scan(), "the peer did not start: %s", strings.Join(said, "\n"))
		said = append(said, scan.Text())
		for _, a := range address.FindAllStringSubmatch(scan.Text(), -1) {
			m.words.ports[port[a[1]]] = a[2]
		}
		if a := listen.FindStringSubmatch(scan.Text()); a != nil {
			m.words.ports[port["p2p"]] = a[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, logs) }() // ends with the process
	return nil
}

// systemctl stands in for systemd: it installs the unit of /etc/systemd/system, and runs its command with the environment
// and the state directory that the unit names.
func (m *machine) systemctl(t *testing.T, command string) []string {
	t.Helper()
	switch args := strings.Fields(command)[1:]; args[0] {
	case "daemon-reload":
		m.unit = map[string][]string{}
		data, err := os.ReadFile(filepath.Join(m.dir, "etc/systemd/system/blackholed.service"))
		require.NoError(t, err)
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
				m.unit[key] = append(m.unit[key], value)
			}
		}
	case "enable", "start":
		m.startService(t)
	case "restart":
		m.stopService(t)
		m.startService(t)
	case "stop":
		m.stopService(t)
	default:
		require.Fail(t, "an order that no test knows", command)
	}
	return nil
}

func (m *machine) startService(t *testing.T) {
	t.Helper()
	require.NotEmpty(t, m.unit, "no unit: systemctl daemon-reload comes first")
	require.NoError(t, os.MkdirAll(filepath.Join(m.dir, "var/lib", m.unit["StateDirectory"][0]), 0o700))
	program, args, _ := strings.Cut(m.unit["ExecStart"][0], " ")
	require.FileExists(t, filepath.Join(m.dir, program))
	data, err := os.ReadFile(filepath.Join(m.dir, strings.TrimPrefix(m.unit["EnvironmentFile"][0], "-")))
	require.NoError(t, err)
	env := []string{"BLACKHOLE_NETWORK=" + m.network}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, line)
		}
	}
	m.startPeer(t, " "+program+" "+args, env...)
}

func (m *machine) stopService(t *testing.T) {
	t.Helper()
	require.NotEmpty(t, m.peers, "the service does not run")
	last := m.peers[len(m.peers)-1]
	m.peers = m.peers[:len(m.peers)-1]
	require.NoError(t, last.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, last.cmd.Wait())
}

// commits waits until the peer's group commits registrations and the peer's copy of the directory
// shows them. A peer has no group immediately after its start.
func commits(t *testing.T, peer string) {
	t.Helper()
	url := "http://" + peer + "/v1/services/probe/instances"
	ask := func(method, url, body string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	for _, step := range []struct {
		method, url, body string
		want              []int // the second status after an earlier attempt without an answer
	}{
		{http.MethodPost, url + "?require_commit=true", `{"namespace":"probe","id":"1","host":"192.0.2.1","port":1}`, []int{http.StatusCreated, http.StatusOK}},
		{http.MethodGet, url + "?namespace=probe&consistency=linearizable", "", []int{http.StatusOK}},
		{http.MethodDelete, url + "/1?namespace=probe", "", []int{http.StatusNoContent, http.StatusGone}},
	} {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			status, err := ask(step.method, step.url, step.body)
			require.NoError(c, err)
			require.Contains(c, step.want, status)
		}, 2*time.Minute, 20*time.Millisecond)
	}
}
