package main

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the commands print into the documents")

// root is the module's directory, where a reader would run the commands.
const root = "../.."

// TestMain runs the daemon, its client or a tool of a session if this binary has that name.
// Sessions thus run real processes without a build.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "blackholed":
		main()
	case "curl":
		standIn(curl)
	case "dig":
		standIn(dig)
	case "grpcurl":
		standIn(grpcurl)
	}
	os.Exit(m.Run())
}

// TestSessions plays the sessions in the documents: blocks that begin with "```console
// session". The sessions of a document share one peer, a separate process. A line that begins
// with "$" is a command, "> " continues a command, and the output follows. A command that ends
// in "&" runs in the background; its output follows the next "$ wait". A line "..." matches any
// number of lines.
//
// The standard addresses mean the addresses of the peer. Leases, peers, indexes and revisions may
// differ from the document, but equal ones must stay equal. For times and DNS TTLs, only the
// form must match.
func TestSessions(t *testing.T) {
	if testing.Short() {
		t.Skip("processes on loopback")
	}
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell")
	}
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	played := 0
	for _, path := range append([]string{filepath.Join(root, "README.md")}, paths...) {
		blocks := sessions(t, path)
		if len(blocks) == 0 {
			continue
		}
		played++
		name := strings.TrimSuffix(filepath.Base(path), ".md")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			replay(t, path, blocks, tools())
		})
		t.Run(name+" with the real tools", func(t *testing.T) {
			t.Parallel()
			if *update {
				t.Skip("the stand-ins write")
			}
			for _, tool := range tools() {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skip(tool + " is not installed")
				}
			}
			replay(t, path, blocks, nil)
		})
	}
	require.NotZero(t, played)
}

// tools are the tools of the sessions that may be missing on a machine.
func tools() []string { return []string{"curl", "dig", "grpcurl"} }

// step is one command of a session with its output.
type step struct {
	command string
	printed []string
}

// block is a part of a document with a session: the lines from first to last without the fences.
type block struct {
	first, last int
	steps       []step
}

// sessions reads the blocks of a document.
func sessions(t *testing.T, path string) (blocks []block) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(data), "\n")
	for i := 0; i < len(lines); i++ {
		if lines[i] != "```console session" {
			continue
		}
		end := i + 1 + slices.Index(lines[i+1:], "```")
		require.Greater(t, end, i, "%s:%d: the block does not end", path, i+1)
		blocks = append(blocks, block{first: i + 1, last: end, steps: steps(t, lines[i+1:end])})
		i = end
	}
	return blocks
}

func steps(t *testing.T, lines []string) (out []step) {
	t.Helper()
	for _, line := range lines {
		last := len(out) - 1
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			out = append(out, step{command: command})
		} else if more, ok := strings.CutPrefix(line, "> "); ok && last >= 0 && len(out[last].printed) == 0 {
			out[last].command += "\n" + more
		} else {
			require.GreaterOrEqual(t, last, 0, "a session begins with a command")
			out[last].printed = append(out[last].printed, line)
		}
	}
	return out
}

// replay plays the sessions of a document, and compares or rewrites their output.
func replay(t *testing.T, path string, blocks []block, standIns []string) {
	s := newShell(t, standIns)
	var fresh [][]string
	for _, b := range blocks {
		var lines []string
		for _, step := range b.steps {
			got := s.run(t, step.command)
			printed, ok := s.words.compare(step.printed, got)
			if !ok && !*update {
				require.Equal(t, strings.Join(step.printed, "\n"), strings.Join(printed, "\n"), "%s: $ %s", path, step.command)
			}
			lines = append(append(lines, "$ "+strings.ReplaceAll(step.command, "\n", "\n> ")), printed...)
		}
		fresh = append(fresh, lines)
	}
	if *update {
		rewrite(t, path, blocks, fresh)
	}
}

// rewrite replaces the blocks of a document.
func rewrite(t *testing.T, path string, blocks []block, fresh [][]string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(data), "\n")
	for i, b := range slices.Backward(blocks) {
		lines = slices.Replace(lines, b.first, b.last, fresh[i]...)
	}
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
}

// shell runs the commands of a session against a peer.
type shell struct {
	env    []string
	words  *words
	behind []*job
}

// job is a command in the background.
type job struct {
	cmd *exec.Cmd
	out *bytes.Buffer
}

func newShell(t *testing.T, standIns []string) *shell {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	for _, tool := range append([]string{"blackholed"}, standIns...) {
		require.NoError(t, os.Symlink(self, filepath.Join(bin, tool)))
	}
	peer := startPeer(t, self)
	commits(t, peer["http"])
	s := &shell{words: newWords(peer)}
	s.env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"BLACKHOLE_GRPC="+peer["grpc"], "BLACKHOLE_DNS="+peer["dns"], "TZ=UTC", "LC_ALL=C.UTF-8", "http_proxy=")
	return s
}

// startPeer runs a daemon on free ports and returns its addresses.
func startPeer(t *testing.T, self string) map[string]string {
	t.Helper()
	cmd := exec.Command(self, "run", "--data", t.TempDir(), "--listen", "/ip4/127.0.0.1/tcp/0",
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--dns", "127.0.0.1:0")
	cmd.Args[0] = "blackholed"
	logs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	address := regexp.MustCompile(`\b(http|grpc|dns)=(127\.0\.0\.1:\d+)`)
	peer := map[string]string{}
	for scan := bufio.NewScanner(logs); len(peer) < 3; {
		require.True(t, scan.Scan(), "the peer did not start")
		for _, m := range address.FindAllStringSubmatch(scan.Text(), -1) {
			peer[m[1]] = m[2]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, logs) }() // ends with the process
	return peer
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

// run runs one command and returns its output with the words of the document.
func (s *shell) run(t *testing.T, command string) []string {
	t.Helper()
	if command == "wait" {
		return s.wait(t)
	}
	line, background := strings.CutSuffix(command, " &")
	b := &job{cmd: exec.CommandContext(t.Context(), "sh", "-c", s.words.actual(line)), out: new(bytes.Buffer)}
	b.cmd.Dir, b.cmd.Env, b.cmd.Stdout, b.cmd.Stderr = root, s.env, b.out, b.out
	require.NoError(t, b.cmd.Start())
	if background {
		s.behind = append(s.behind, b)
		return nil
	}
	return s.ended(b)
}

// wait waits for all commands in the background.
func (s *shell) wait(t *testing.T) (lines []string) {
	t.Helper()
	require.NotEmpty(t, s.behind, "nothing to wait for")
	for _, b := range s.behind {
		lines = append(lines, s.ended(b)...)
	}
	s.behind = nil
	return lines
}

func (s *shell) ended(b *job) []string {
	_ = b.cmd.Wait() // errors are part of the output
	text := strings.TrimRight(s.words.printed(b.out.String()), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// words translates between the values of a document and the values of this run.
type words struct {
	ports map[string]string // document to run
	known map[string]string // document to run: leases, peers and numbers

	number, spaces *regexp.Regexp
	private        *regexp.Regexp // words, or numbers in them, that differ in each run
	free           *regexp.Regexp // values that differ at each call
}

func newWords(peer map[string]string) *words {
	w := &words{
		ports: map[string]string{}, known: map[string]string{},
		number: regexp.MustCompile(`\b\d+\b`), spaces: regexp.MustCompile(`[ \t]+`),
		private: regexp.MustCompile(`lease-[0-9a-f]{32}|12D3KooW[1-9A-HJ-NP-Za-km-z]{44}|…[1-9A-HJ-NP-Za-km-z]{8}|` +
			`(?i:\bindex\\?"?[:=] ?"?|\brevision\\?"?[:=] ?"?|\bid: |-id: )(\d+)`),
		free: regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|\. \d+ (IN )?(A|AAAA|SRV|TXT) `),
	}
	for name, port := range map[string]string{"http": "8500", "grpc": "8502", "dns": "8600"} {
		_, w.ports[port], _ = strings.Cut(peer[name], ":")
	}
	return w
}

// actual translates a command of the document for this run.
func (w *words) actual(command string) string {
	command = w.number.ReplaceAllStringFunc(command, func(n string) string {
		if port, ok := w.ports[n]; ok {
			return port
		}
		return n
	})
	return w.private.ReplaceAllStringFunc(command, func(word string) string {
		m := w.private.FindStringSubmatch(word)
		if m[1] == "" {
			m[1] = m[0]
		}
		if known, ok := w.known[m[1]]; ok {
			return strings.TrimSuffix(word, m[1]) + known
		}
		return word
	})
}

// printed replaces the ports in output by the standard ports.
func (w *words) printed(output string) string {
	standard := map[string]string{}
	for port, is := range w.ports {
		standard[is] = port
	}
	return w.number.ReplaceAllStringFunc(strings.ReplaceAll(output, "\r", ""), func(n string) string {
		if port, ok := standard[n]; ok {
			return port
		}
		return n
	})
}

// compare compares the output of a command with the document. It returns the lines for the
// document: unchanged where they match.
func (w *words) compare(wanted, got []string) (lines []string, ok bool) {
	ok = true
	for n, want := range wanted {
		if want == "..." {
			lines = append(lines, want)
			got = got[max(0, len(got)-(len(wanted)-n-1)):]
			continue
		}
		if len(got) == 0 {
			return lines, false
		}
		line := w.learn(want, got[0])
		if got = got[1:]; w.form(line) == w.form(want) {
			line = want
		} else {
			ok = false
		}
		lines = append(lines, line)
	}
	return append(lines, got...), ok && len(got) == 0
}

// learn translates a printed line to the words that the document has in the same places, and
// remembers new words.
func (w *words) learn(want, got string) string {
	wanted, n := w.private.FindAllStringSubmatch(want, -1), 0
	return w.private.ReplaceAllStringFunc(got, func(word string) string {
		is := w.private.FindStringSubmatch(word)
		if n == len(wanted) {
			return word
		}
		as := wanted[n]
		n++
		for _, m := range [][]string{is, as} {
			if m[1] == "" {
				m[1] = m[0]
			}
		}
		if _, known := w.known[as[1]]; !known {
			w.known[as[1]] = is[1]
		}
		if w.known[as[1]] != is[1] {
			return word
		}
		return strings.TrimSuffix(word, is[1]) + as[1]
	})
}

// form is a line without the values that may differ.
func (w *words) form(line string) string {
	line = strings.TrimSpace(w.spaces.ReplaceAllString(line, " "))
	return w.free.ReplaceAllStringFunc(line, func(word string) string {
		if strings.HasPrefix(word, ".") {
			return w.number.ReplaceAllString(word, "TTL")
		}
		return "TIME"
	})
}
