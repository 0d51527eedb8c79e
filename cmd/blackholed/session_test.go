package main

import (
	"cmp"
	"flag"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the commands print into the documents")

// root is the module's directory, where a reader would run the commands.
const root = "../.."

// TestMain runs the daemon, its client or a tool of a session if this binary has that name.
// Sessions thus run real processes without a build.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "blackholed", "exe": // /proc/self/exe is the guardian of a lock
		main()
	case "curl":
		standIn(curl)
	case "dig":
		standIn(dig)
	case "grpcurl":
		standIn(grpcurl)
	}
	if err := flag.Set("test.parallel", "6"); err != nil { // sessions wait for leases and peers, not for processors; the command line wins
		panic(err)
	}
	os.Exit(m.Run())
}

// TestSessions plays the sessions in the documents: blocks that begin with "```console
// session". A line that begins with "$" is a command, "> " continues a command, and the output
// follows. A command that ends in "&" runs in the background; its output follows the next "$ wait".
// A line "..." matches any number of lines.
//
// The sessions of a document share one machine and a running peer. A document whose sessions run
// peers or control the service has no other peers. "```console session 2" plays on a second machine.
// The comment "<!-- session" to "-->" is a session that readers do not see: what the page expects
// to be there; "<!-- session 2 of FILE -->" plays one of testdata. "```sh session" is a script, whose output is free: it must end without an error of the shell or of the API.
//
// The standard addresses mean the addresses of the machine's peer. Leases, peers, indexes and revisions may
// differ from the document, but equal ones must stay equal. For times and DNS TTLs, only the
// form must match.
func TestSessions(t *testing.T) {
	if testing.Short() {
		t.Skip("processes on loopback")
	}
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell")
	}
	played := make(map[string][]block)
	for _, path := range documents(t) {
		if blocks := sessions(t, path); len(blocks) > 0 {
			played[path] = blocks
		}
	}
	require.NotEmpty(t, played)
	// Where more machines meet, more is waited for: what takes the longest begins first.
	longest := slices.SortedFunc(maps.Keys(played), func(a, b string) int {
		return cmp.Or(machines(played[b])-machines(played[a]), strings.Compare(a, b))
	})
	for _, path := range longest {
		blocks := played[path]
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(path), root+"/"), ".md")
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
}

// machines counts the machines of some sessions.
func machines(blocks []block) int {
	names := make(map[string]bool)
	for _, b := range blocks {
		names[b.machine] = true
	}
	return len(names)
}

// tools are the tools of the sessions that may be missing on a machine.
func tools() []string { return []string{"curl", "dig", "grpcurl"} }

// documents are the pages that may have sessions.
func documents(t *testing.T) []string {
	t.Helper()
	paths := []string{root + "/README.md"}
	require.NoError(t, filepath.WalkDir(root+"/docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// step is one command of a session with its output.
type step struct {
	command string
	printed []string
}

// block is a part of a document with a session: the lines from first to last without the fences.
type block struct {
	first, last int
	machine     string // "" for the first
	hidden      bool
	script      bool
	steps       []step
}

// sessions reads the blocks of a document.
func sessions(t *testing.T, path string) (blocks []block) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(string(data), "\n")
	fence := regexp.MustCompile("^(```console|```sh|<!--) session *([0-9]*)$")
	shared := regexp.MustCompile(`^<!-- session *([0-9]*) of (\S+) -->$`)
	for i := 0; i < len(lines); i++ {
		if m := shared.FindStringSubmatch(lines[i]); m != nil {
			text, err := os.ReadFile(filepath.Join("testdata", m[2]))
			require.NoError(t, err)
			blocks = append(blocks, block{machine: m[1], hidden: true, steps: steps(t, strings.Split(strings.TrimSpace(string(text)), "\n"))})
			continue
		}
		m := fence.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		hidden := m[1] == "<!--"
		last := "```"
		if hidden {
			last = "-->"
		}
		end := i + 1 + slices.Index(lines[i+1:], last)
		require.Greater(t, end, i, "%s:%d: the block does not end", path, i+1)
		b := block{first: i + 1, last: end, machine: m[2], hidden: hidden, script: m[1] == "```sh"}
		if b.script {
			b.steps = []step{{command: strings.Join(lines[i+1:end], "\n")}}
		} else {
			b.steps = steps(t, lines[i+1:end])
		}
		blocks = append(blocks, b)
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
		} else if more, ok := strings.CutPrefix(line, ">"); ok && last >= 0 && len(out[last].printed) == 0 {
			out[last].command += "\n" + strings.TrimPrefix(more, " ")
		} else {
			require.GreaterOrEqual(t, last, 0, "a session begins with a command")
			out[last].printed = append(out[last].printed, line)
		}
	}
	return out
}

// replay plays the sessions of a document, and compares or rewrites their output.
func replay(t *testing.T, path string, blocks []block, standIns []string) {
	s := newStage(t, path, blocks, standIns)
	var fresh [][]string
	for _, b := range blocks {
		on := s.machine(t, b.machine)
		if b.script {
			printed := strings.Join(on.run(t, "(set -e\n"+b.steps[0].command+"\n)\ncode=$?; test $code = 0 || echo failed: $code"), "\n")
			require.NotRegexp(t, `"error":|failed: [0-9]+$`, printed, "%s: %s", path, b.steps[0].command)
			fresh = append(fresh, strings.Split(b.steps[0].command, "\n"))
			continue
		}
		var lines []string
		for _, step := range b.steps {
			printed, ok := s.play(t, on, step)
			if !ok && (b.hidden || !*update) {
				require.Equal(t, strings.Join(step.printed, "\n"), strings.Join(printed, "\n"), "%s: $ %s", path, step.command)
			}
			lines = append(append(lines, "$ "+strings.NewReplacer("\n\n", "\n>\n> ", "\n", "\n> ").Replace(step.command)), printed...)
		}
		fresh = append(fresh, lines)
	}
	s.traced(t)
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
		if b.last == 0 { // shared
			continue
		}
		lines = slices.Replace(lines, b.first, b.last, aligned(fresh[i])...)
	}
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
}

// aligned returns the lines of a session with the columns of tables below each other, as the program prints them: a kept line has
// values of an earlier run, and ports and times of other widths.
func aligned(lines []string) []string {
	header, gap := regexp.MustCompile(`^[A-Z][A-Z /]*(  +[A-Z][A-Z /]*)+$`), regexp.MustCompile(`  +`)
	lines = slices.Clone(lines)
	for i := 0; i < len(lines); i++ {
		if !header.MatchString(lines[i]) {
			continue
		}
		var rows [][]string
		var widths []int
		for _, line := range lines[i:] {
			cells := gap.Split(line, -1)
			if len(rows) > 0 && (len(cells) != len(rows[0]) || strings.HasPrefix(line, "$ ")) {
				break
			}
			for n, cell := range cells {
				if n == len(widths) {
					widths = append(widths, 0)
				}
				widths[n] = max(widths[n], utf8.RuneCountInString(cell))
			}
			rows = append(rows, cells)
		}
		for n, cells := range rows {
			line := ""
			for c, cell := range cells {
				line += cell + strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell)+2)
			}
			lines[i+n] = strings.TrimRight(line, " ")
		}
		i += len(rows) - 1
	}
	return lines
}

// TestTablesAreAligned: the tables of sessions in the documents look as the program prints them.
func TestTablesAreAligned(t *testing.T) {
	for _, path := range documents(t) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		lines := strings.Split(string(data), "\n")
		for _, b := range slices.Backward(sessions(t, path)) {
			shown := slices.Clone(lines[b.first:b.last])
			if *update {
				lines = slices.Replace(lines, b.first, b.last, aligned(shown)...)
			} else {
				require.Equal(t, strings.Join(aligned(shown), "\n"), strings.Join(shown, "\n"), path)
			}
		}
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
		}
	}
}
