package lab

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuide: the README tells two machines how to share a lock, in a form that the lab can play.
func TestGuide(t *testing.T) {
	text, err := document("README.md")
	require.NoError(t, err)
	steps, err := guide(text, "Two machines")
	require.NoError(t, err)
	var kinds []string
	for _, s := range steps {
		words := strings.Fields(s.command)
		require.Equal(t, "blackholed", words[0])
		kinds = append(kinds, strings.Join([]string{string(rune('0' + s.machine)), words[1]}, " "))
	}
	require.Equal(t, []string{"1 run", "1 invite", "2 run", "1 lock", "2 lock"}, kinds)
	require.NotEmpty(t, invitation(steps[1].printed[0]))
	require.Contains(t, steps[2].command, "--join bh1_")
	require.Equal(t, []string{"blackholed: jobs: others hold the lock"}, steps[4].printed)
}

func TestGuideRefuses(t *testing.T) {
	_, err := guide("# a\n", "Two machines")
	require.ErrorContains(t, err, "no section")
	_, err = guide("# a\n\n## Two machines\n```console\n$ blackholed run\n```\n", "Two machines")
	require.ErrorContains(t, err, "names no machine")
}

func TestAlternates(t *testing.T) {
	require.NoError(t, alternates(strings.Fields("2 2 5 5"), 2))
	for tokens, message := range map[string]string{
		"2 2":     "2 begins and ends of 2 holders",
		"2 5 2 5": "tokens 2 and 5 held at once",
		"5 5 2 2": "token 2 after token 5",
		"2 2 2 2": "token 2 after token 2",
	} {
		require.ErrorContains(t, alternates(strings.Fields(tokens), 2), message)
	}
}
