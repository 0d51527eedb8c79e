package main

import (
	"bytes"
	"crypto/rand"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/trace/collector"
)

// stage has the machines of a document.
type stage struct {
	tools    []string // that this binary stands in for
	peers    bool     // the document runs its own peers
	patient  bool
	network  string // of the service: multicast DNS must not find the peers of another test
	known    map[string]string
	machines map[string]*machine

	// looks are the commands that show something. In a document that a reader follows, it may show a moment later.
	looks *regexp.Regexp

	collector *collector.Collector // of traces, at the standard port; nil for a document without one
	traces    string               // its port
}

func newStage(t *testing.T, path string, blocks []block, standIns []string) *stage {
	t.Helper()
	s := &stage{tools: append([]string{"blackholed"}, standIns...), known: map[string]string{}, machines: map[string]*machine{}}
	s.looks = regexp.MustCompile(`^((?:blackholed (?:(?:offer|instance) find|(?:peer|lock|kv|service|offer) ls|status|doctor|service require|kv get|group (?:status|members))|dig) |curl -s '?[0-9])`)
	s.network = "play-" + strings.ToLower(rand.Text()[:16])
	for _, b := range blocks {
		for _, step := range b.steps {
			s.peers = s.peers || runsPeer(step.command)
			if strings.Contains(step.command, ":4318") && s.collector == nil {
				s.collect(t)
			}
			for _, tool := range []string{"jq", "python3"} {
				if _, err := exec.LookPath(tool); err != nil && regexp.MustCompile(`(^|\| )`+tool+" ").MatchString(step.command) {
					t.Skip(tool + " is not installed")
				}
			}
		}
	}
	s.patient = s.peers || strings.Contains(filepath.ToSlash(path), "/howto/")
	if !s.peers {
		m := s.machine(t, "")
		m.run(t, "blackholed run")
		commits(t, "127.0.0.1:"+m.words.ports["8500"])
	}
	return s
}

// runsPeer reports whether a command starts or stops a peer.
func runsPeer(command string) bool {
	return startsPeer(command) || strings.HasPrefix(command, "systemctl ")
}

// startsPeer reports whether a command runs a peer, with variables before it or without.
func startsPeer(command string) bool {
	return regexp.MustCompile(`^(?:[A-Z_]+=\S+ )*blackholed run\b`).MatchString(command)
}

// collect starts a collector of traces.
func (s *stage) collect(t *testing.T) {
	s.collector = new(collector.Collector)
	server := httptest.NewServer(s.collector)
	t.Cleanup(server.Close)
	s.traces = server.URL[strings.LastIndexByte(server.URL, ':')+1:]
}

// traced requires that the peers of a document with a collector sent it their spans.
func (s *stage) traced(t *testing.T) {
	t.Helper()
	if s.collector != nil {
		await(t, "spans at the collector", func() bool { return len(s.collector.Spans()) > 0 })
	}
}

// await asks until something is true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(2 * time.Minute); !is(); <-again.C {
		require.True(t, time.Now().Before(end), "no %s", what)
	}
}

// play plays a step until it prints what the document says, at once or, for a look in such a document, within two minutes.
func (s *stage) play(t *testing.T, on *machine, step step) (printed []string, ok bool) {
	t.Helper()
	patience := 2 * time.Minute
	if *update {
		patience = 20 * time.Second
	}
	end := time.Now().Add(patience)
	for again := time.NewTicker(100 * time.Millisecond); ; <-again.C {
		before := maps.Clone(s.known)
		printed, ok = on.words.compare(step.printed, on.run(t, step.command))
		if ok || !s.patient || !s.looks.MatchString(step.command+" ") || time.Now().After(end) {
			return printed, ok
		}
		clear(s.known)
		maps.Copy(s.known, before)
	}
}

// machine is a computer: its files are below dir, and its commands run in dir/home.
type machine struct {
	dir     string
	env     []string
	network string // of the service
	words   *words
	behind  []*job
	peers   []*job
	unit    map[string][]string
}

// job is a command in the background.
type job struct {
	command string
	cmd     *exec.Cmd
	out     *bytes.Buffer
}

// machine returns a machine by its name.
func (s *stage) machine(t *testing.T, name string) *machine {
	t.Helper()
	if m := s.machines[name]; m != nil {
		return m
	}
	dir := t.TempDir()
	m := &machine{dir: dir, network: s.network, words: newWords(dir, s.known)}
	if s.collector != nil {
		m.words.ports["4318"] = s.traces
	}
	for _, folder := range []string{"bin", "home", "etc/systemd/system", "usr/local/bin", "var/lib", "var/backups"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.FromSlash(folder)), 0o755))
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for _, tool := range s.tools {
		require.NoError(t, os.Symlink(self, filepath.Join(dir, "bin", tool)))
	}
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "home", "blackholed")))
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	for _, folder := range []string{"deploy", "docs", "examples", "README.md"} {
		require.NoError(t, os.Symlink(filepath.Join(here, folder), filepath.Join(dir, "home", folder)))
	}
	m.env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"HOME="+filepath.Join(dir, "home"), "XDG_STATE_HOME="+filepath.Join(dir, "home/.local/state"), "BLACKHOLE_CONNECTIONS_NAME=machine-"+max(name, "1"),
		"TZ=UTC", "LC_ALL=C.UTF-8", "http_proxy=")
	s.machines[name] = m
	t.Cleanup(func() { m.off() })
	return m
}

// off ends everything that runs on the machine.
func (m *machine) off() {
	for _, j := range slices.Backward(m.peers) {
		_ = j.cmd.Process.Signal(os.Interrupt)
	}
	for _, j := range m.behind {
		_ = j.cmd.Process.Kill()
	}
	for _, j := range append(m.peers, m.behind...) {
		_ = j.cmd.Wait()
	}
}

// run runs one command and returns its output with the words of the document.
func (m *machine) run(t *testing.T, command string) []string {
	t.Helper()
	switch {
	case command == "wait":
		return m.wait(t)
	case startsPeer(command):
		return m.startPeer(t, command)
	case strings.HasPrefix(command, "systemctl "):
		return m.systemctl(t, command)
	}
	line, background := strings.CutSuffix(command, " &")
	if background {
		line = "exec " + line
	}
	j := m.job(t, line)
	require.NoError(t, j.cmd.Start())
	if background {
		m.behind = append(m.behind, j)
		return nil
	}
	return m.ended(j)
}

// job prepares a line for the shell.
func (m *machine) job(t *testing.T, line string) *job {
	t.Helper()
	j := &job{command: line, cmd: exec.CommandContext(t.Context(), "sh", "-c", m.words.actual(line)), out: new(bytes.Buffer)}
	j.cmd.Dir, j.cmd.Stdout, j.cmd.Stderr = filepath.Join(m.dir, "home"), j.out, j.out
	j.cmd.Env = append(slices.Clone(m.env), "BLACKHOLE_HTTP=127.0.0.1:"+m.words.ports["8500"], "BLACKHOLE_GRPC=127.0.0.1:"+m.words.ports["8502"], "BLACKHOLE_DNS=127.0.0.1:"+m.words.ports["8600"])
	return j
}

// wait waits for all commands in the background.
func (m *machine) wait(t *testing.T) (lines []string) {
	t.Helper()
	require.NotEmpty(t, m.behind, "nothing to wait for")
	for _, j := range m.behind {
		lines = append(lines, m.ended(j)...)
	}
	m.behind = nil
	return lines
}

func (m *machine) ended(j *job) []string {
	_ = j.cmd.Wait() // errors are part of the output
	text := strings.TrimRight(m.words.printed(j.out.String()), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
