package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/command"
)

// TestCompletions plays what a shell asks while its user types.
func TestCompletions(t *testing.T) {
	agent, records := serveAgent(t, agentWithInstances(t), ""), serve(t, new(fake))
	ask := func(grpc string, args ...string) []string {
		var out, errs bytes.Buffer
		require.Zero(t, testApp(nil, &out, &errs, []string{"BLACKHOLE_GRPC=" + grpc}).Execute(context.Background(), append([]string{"__complete"}, args...)))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		return lines[:len(lines)-1] // the last one tells the shell what to do
	}
	require.Equal(t, []string{"db", "web"}, ask(agent, "instance", "find", ""))
	require.Equal(t, []string{"web"}, ask(agent, "instance", "find", "w"))
	require.Equal(t, []string{"web"}, ask(agent, "instance", "find", "--namespace", "other", ""))
	require.Empty(t, ask(agent, "instance", "find", "web", ""), "it takes one argument")
	got := ask(agent, "instance", "drain", "web", "")
	require.Len(t, got, 3)
	require.True(t, strings.HasPrefix(got[0], "w1\tUP 10.0.0.1:"), got[0])
	require.Len(t, ask(agent, "instance", "drain", "web", "w1", ""), 2, "an id is not offered twice")
	require.Equal(t, []string{"db"}, ask("127.0.0.1:1", "instance", "drain", "--grpc", agent, "d"), "the flag names the peer")
	require.Empty(t, ask("127.0.0.1:1", "instance", "find", ""), "a peer that does not answer offers nothing")
	require.Empty(t, ask(agent, "lock", "ls", ""), "nor does one without a group")
	require.NotEmpty(t, ask(records, "offer", "withdraw", ""))
	require.NotEmpty(t, ask(records, "group", "add", ""))
	for _, one := range ask(records, "offer", "withdraw", "") {
		require.NotContains(t, one, "\u202e")
	}
}

// TestBashAlone runs the script for bash without the package bash-completion, with words that bash splits at "=" and
// ":".
func TestBashAlone(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	var script bytes.Buffer
	require.Zero(t, testApp(nil, &script, io.Discard, nil).Execute(t.Context(), []string{"completion", "bash"}))
	for _, c := range []struct{ line, words, at, asked string }{
		{"blackholed instance find w", "blackholed instance find w", "3", "__complete instance find w"},
		{"blackholed instance find ", "blackholed instance find ''", "3", "__complete instance find "},
		{"blackholed top --grpc=a:1", "blackholed top --grpc = a : 1", "6", "__complete top --grpc=a:1"},
	} {
		play := script.String() + `
blackholed() { echo "$@" >&3; printf 'web
weird
:4
'; }
compopt() { :; }
COMP_LINE='` + c.line + `' COMP_POINT=${#COMP_LINE} COMP_WORDS=(` + c.words + `) COMP_CWORD=` + c.at + ` COMP_TYPE=9 COMP_WORDBREAKS=$' 	
=:'
__start_blackholed 3>&1
echo "${COMPREPLY[@]}"`
		cmd := exec.CommandContext(t.Context(), bash, "--norc", "-c", play)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		asked, found, _ := strings.Cut(string(out), "\n")
		require.Equal(t, c.asked, asked, c.line)
		if strings.HasSuffix(c.line, "w") || strings.HasSuffix(c.line, " ") {
			require.Equal(t, "web weird\n", found, c.line)
		}
	}
}

// commandsOf returns all commands with work of their own, by path.
func commandsOf(t *testing.T) map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	command.Each(testApp(nil, nil, nil, nil).root(), func(path string, cmd *cobra.Command) {
		if !cmd.HasSubCommands() && !strings.HasPrefix(path, "completion ") { // those have cobra's help
			all[path] = cmd
		}
	})
	require.Greater(t, len(all), 45)
	return all
}

// TestExamples: every command has examples, and each is a command with flags that exist.
func TestExamples(t *testing.T) {
	t.Parallel()
	all := commandsOf(t)
	for path := range command.Examples() {
		require.Contains(t, all, path, "an example of no command")
	}
	for path := range completions() {
		require.Contains(t, all, path, "a completion of no command")
	}
	for path, cmd := range all {
		if !cmd.Runnable() { // a page of help
			continue
		}
		require.NotEmpty(t, cmd.Example, path)
		parsed := 0
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			if !strings.HasPrefix(line, "  "+command.Program+" ") { // the input of the command before
				continue
			}
			parsed++
			words := shellWords(strings.TrimSpace(line))
			found, rest, err := testApp(nil, nil, nil, nil).root().Find(words[1:])
			require.NoError(t, err, line)
			require.Equal(t, cmd.CommandPath(), found.CommandPath(), line)
			if i := slices.IndexFunc(rest, func(word string) bool { return strings.HasPrefix(word, "<") || word == "#" || word == "|" }); i >= 0 {
				rest = rest[:i] // the shell's part
			}
			require.NoError(t, found.ParseFlags(rest), line)
			if found.Args != nil {
				require.NoError(t, found.Args(found, found.Flags().Args()), line)
			}
		}
		require.NotZero(t, parsed, path)
	}
}
