package lab

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScripts: every line of a script begins with a word, and no word hides behind one of testscript. Parts of some are played in
// long runs only.
func TestScripts(t *testing.T) {
	words, theirs := new(play).words(), []string{"env", "stop"}
	for _, name := range []string{
		"cd", "chmod", "cmp", "cmpenv", "cp", "env", "exec", "exists", "grep", "kill", "mkdir", "mv", "rm", "skip", "stderr", "stdin", "stdout", "stop", "symlink", "unquote", "wait",
	} {
		require.NotContains(t, words, name, "testscript has its own")
	}
	files, err := scripts.ReadDir("scripts")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		text, err := scripts.ReadFile("scripts/" + f.Name())
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			line = strings.TrimPrefix(strings.TrimPrefix(line, "[brief] "), "[!brief] ")
			if first := strings.Fields(line); len(first) > 0 && first[0] != "#" {
				require.True(t, words[first[0]] != nil || slices.Contains(theirs, first[0]), "%s: %s", f.Name(), line)
			}
		}
	}
}
