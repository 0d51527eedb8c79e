package coordination

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
)

// TestMain is the hook of the repositories of this package's tests.
func TestMain(m *testing.M) {
	if os.Getenv("GUARD_GIT_AS_HOOK") == "" {
		os.Exit(m.Run())
	}
	con := &term.Console{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()}
	cmd := Guard(con)
	cmd.SetArgs([]string{"git"})
	if err := cmd.Execute(); err != nil {
		con.Say("%s", exit.Message(err))
		os.Exit(1)
	}
}

// workshop is a shared repository with the hook, and a clone for each agent.
type workshop struct {
	t      *testing.T
	shared string
}

func (w *workshop) git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *workshop) must(dir string, args ...string) {
	w.t.Helper()
	out, err := w.git(dir, args...)
	require.NoError(w.t, err, out)
}

// commit writes files in a clone.
func (w *workshop) commit(dir, text string, paths ...string) {
	for _, path := range paths {
		require.NoError(w.t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))
	}
	w.must(dir, "add", "-A")
	w.must(dir, "commit", "-qm", text)
}

// A push is refused without tokens, and with a token below the last one of one of its files. Nothing of a refused push is noted.
func TestGuardedPushes(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	w := &workshop{t: t, shared: filepath.Join(t.TempDir(), "shared.git")}
	w.must(".", "init", "-q", "--bare", "-b", "main", w.shared)
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(w.shared, "hooks", "pre-receive"), []byte("#!/bin/sh\nGUARD_GIT_AS_HOOK=1 exec "+self+"\n"), 0o700)) //nolint:gosec // a hook runs
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	w.must(".", "clone", "-q", w.shared, a)
	w.commit(a, "one", "x", "y é")
	out, err := w.git(a, "push", "origin", "HEAD:main")
	require.Error(t, err)
	require.Regexp(t, "receive.advertisePushOptions|gives no token", out) // by the version of git
	w.must(w.shared, "config", "receive.advertisePushOptions", "true")
	out, err = w.git(a, "push", "-o", "token=5:x", "origin", "HEAD:main")
	require.Error(t, err)
	require.Contains(t, out, "y é: the push gives no token")
	w.must(a, "push", "-q", "-o", "token=5", "origin", "HEAD:main")

	w.must(".", "clone", "-q", w.shared, b)
	w.commit(b, "two", "y é")
	w.must(b, "push", "-q", "-o", "token=7", "origin", "HEAD:main")
	w.must(a, "pull", "-q", "--rebase", "origin", "main")
	w.commit(a, "three", "x", "y é")
	out, err = w.git(a, "push", "-o", "token=6", "origin", "HEAD:main")
	require.Error(t, err, "it held the files before the other one")
	require.Contains(t, out, "y é: token 6 is stale, 7 was pushed already")
	out, err = w.git(a, "push", "-f", "-o", "token=6", "origin", "HEAD~1:refs/heads/other")
	require.NoError(t, err, "x, y: %s", out)
	w.must(a, "push", "-q", "-o", "token=5:x", "-o", "token=8", "origin", "HEAD:main")
	w.must(a, "push", "-q", "-o", "token=1", "origin", ":other")
	out, err = w.git(a, "push", "-o", "token=none", "origin", "HEAD:again")
	require.Error(t, err)
	require.Contains(t, out, "must be token=N or token=N:PATH")
}
