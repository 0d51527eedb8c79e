package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A clone without the commit of the previous version skips, with the reason.
func TestUpgradeSkips(t *testing.T) {
	var out, errs strings.Builder
	missing := strings.Repeat("0", 40)
	require.Equal(t, exitOK, execute(t.Context(), []string{"upgrade", "-from", missing}, &out, &errs))
	require.Contains(t, out.String(), "skipped: the previous version "+missing+" is not in this clone: ")
	require.Empty(t, errs.String())
}

// The version before is the last incompatible change, or a later release; a rewritten history changes nothing.
func TestPrevious(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git")
	}
	dir := t.TempDir()
	git := func(in string, args ...string) string {
		c := exec.CommandContext(t.Context(), "git", args...)
		c.Dir, c.Env = in, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		return strings.TrimSpace(string(out))
	}
	commit := func(file, text string) string {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "testnet"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		git(dir, "add", ".")
		git(dir, "commit", "-q", "-m", text)
		return git(dir, "rev-parse", "HEAD")
	}
	refuses := func(at, because string) {
		_, err := previous(t.Context(), at)
		require.ErrorContains(t, err, because)
	}
	is := func(want string) {
		got, err := previous(t.Context(), filepath.Join(dir, "testnet"))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	refuses(dir, "no git repository")
	git(dir, "init", "-q")
	commit("other", "one")
	refuses(dir, "no commit of this history has the file testnet/breaks.txt")
	first := commit(breaks, "first")
	commit("other", "two")
	is(first)
	git(dir, "tag", "v0.1.0")
	is(first) // the release of today is no version before
	commit("other", "three")
	is("v0.1.0")
	second := commit(breaks, "second")
	commit("other", "four")
	is(second)

	shallow := filepath.Join(t.TempDir(), "shallow")
	git(dir, "clone", "-q", "--depth", "1", "file://"+dir, shallow)
	refuses(shallow, "this clone has no history")
}
