package peers

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Suite is a compiled package of tests that others wrote. Each test runs in a process of its own.
type Suite struct {
	Name, Tests string   // of the package; path of its program
	Dir         string   // where its tests run; "": in an empty folder
	Env         []string // NAME=VALUE
	// Elsewhere are patterns of the names of tests that are not run, with the reason.
	Elsewhere map[string]string
}

// Play runs the tests whose names match a pattern. A test that differences names must fail with its text, and every other one must pass. Play deletes the names of tests that it has met from differences.
func (s Suite) Play(t *testing.T, chosen string, differences map[string]Difference) {
	t.Helper()
	list := strings.Fields(Output(t, cmp.Or(s.Dir, t.TempDir()), s.Tests, "-test.list", chosen))
	list = slices.DeleteFunc(list, func(name string) bool { return !strings.HasPrefix(name, "Test") }) // examples
	passed, left := 0, map[string]int{}
	for _, name := range list {
		if reason := s.elsewhere(name); reason != "" {
			left[reason]++
			continue
		}
		how, differs := differences[name]
		delete(differences, name)
		text, ok := s.run(t, name)
		skipped := strings.Contains(text, "\n--- SKIP")
		switch {
		case differs && (ok || !strings.Contains(text, how.Text)):
			t.Errorf("%s: testdata/differences.txt says that it fails with %q, because it %s; now:\n%s", name, how.Text, how.Reason, text)
		case differs:
			t.Logf("differs: %s: %s", name, how.Reason)
		case !ok:
			t.Errorf("%s fails:\n%s", name, text)
		case skipped:
			lines := logged.FindAllStringSubmatch(text, -1)
			if len(lines) == 0 {
				t.Fatal(text)
			}
			t.Logf("skipped: %s: %s", name, lines[len(lines)-1][1])
		default:
			passed++
		}
	}
	all := len(list)
	for reason, n := range left {
		t.Logf("not run: %d: %s", n, reason)
		all -= n
	}
	t.Logf("%s: %d of %d passed", s.Name, passed, all)
}

func (s Suite) elsewhere(name string) string {
	for pattern, reason := range s.Elsewhere {
		if regexp.MustCompile(pattern).MatchString(name) {
			return reason
		}
	}
	return ""
}

// logged finds what a test logs. The last line of a skipped test is the reason.
var logged = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: (.*)$`)

// run runs one test.
func (s Suite) run(t *testing.T, name string) (output string, ok bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	run := exec.CommandContext(ctx, s.Tests, "-test.run", "^"+name+"$", "-test.v", "-test.timeout", "90s")
	folder := t.TempDir()
	run.Env, run.Dir = append(append(os.Environ(), s.Env...), "TMPDIR="+folder), folder
	if s.Dir != "" {
		run.Dir = s.Dir
	}
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a test that panics leaves its peer
	run.WaitDelay = time.Second
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	out, err := run.CombinedOutput()
	if run.Process != nil {
		_ = syscall.Kill(-run.Process.Pid, syscall.SIGKILL) // most often nobody is left
	}
	return string(out), err == nil
}

// Difference is how a test must fail, and why.
type Difference struct{ Text, Reason string }

// Differences reads the tests that must fail: one a line, "NAME | text of its output | reason".
func Differences(t *testing.T, path string) map[string]Difference {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	all := map[string]Difference{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if parts := strings.Split(lines.Text(), " | "); len(parts) == 3 {
			all[parts[0]] = Difference{parts[1], parts[2]}
		}
	}
	if len(all) == 0 {
		t.Fatal(path + " has no tests")
	}
	return all
}
