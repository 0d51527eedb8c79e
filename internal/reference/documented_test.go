package reference_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli"
)

// TestDocumentedCommands: every command line in a document, also in a text or a table, has a command and flags that the
// program has. The sessions of package main play the lines that a reader can copy.
func TestDocumentedCommands(t *testing.T) {
	lines := 0
	documents(t, func(name, text string) {
		if name == "CHANGELOG.md" { // which names commands of the past
			return
		}
		for _, line := range commandLines(text) {
			lines++
			require.Empty(t, fault(cli.App{}.Commands(), line), "%s: blackholed %s", name, line)
		}
	})
	require.Greater(t, lines, 150, "the search is broken")
}

// skipOr skips a directory, or passes the error of the walk on.
func skipOr(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

// commandLines returns the command lines of a document, without the program's name.
func commandLines(text string) (lines []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	span := regexp.MustCompile("`(?:\\./)?blackholed +([^`]+)`")
	for _, m := range span.FindAllStringSubmatch(text, -1) {
		lines = append(lines, strings.Join(strings.Fields(m[1]), " "))
	}
	line := regexp.MustCompile(`(?m)^(?: {4,}|\$ |> |sh |)(?:[^\n` + "`" + `]*(?:\||&&|;|\$\(|-- ) ?|[0-9* ]+ {2}|[A-Z_]+=\S+ )?(?:\./)?blackholed +(\S[^\n]*)$`)
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		lines = append(lines, m[1])
	}
	return lines
}

// fault says what is wrong with a command line, or nothing.
func fault(tree *cobra.Command, line string) string {
	words := strings.Fields(regexp.MustCompile(` (?:#|--|[|;&]|>>?|<|2>&1|2>/dev/null) .*| [|;&>].*`).ReplaceAllString(line+" ", ""))
	var path []string
	for _, word := range words {
		if strings.HasPrefix(word, "-") || !regexp.MustCompile(`^[a-z]+$`).MatchString(word) {
			break
		}
		path = append(path, word)
	}
	if len(path) == 0 { // a placeholder, such as COMMAND
		return ""
	}
	cmd, rest, err := tree.Find(path)
	if err != nil || cmd == tree || cmd.HasSubCommands() && len(rest) > 0 {
		return "no such command"
	}
	for _, word := range words {
		name, _, _ := strings.Cut(strings.Trim(word, "[],.:)`'\""), "=")
		if !strings.HasPrefix(name, "--") && !regexp.MustCompile(`^-[a-z]$`).MatchString(name) || name == "--" || name == "--help" {
			continue
		}
		if !hasFlag(cmd, strings.TrimLeft(name, "-")) {
			return "no flag " + name
		}
	}
	return ""
}

func hasFlag(cmd *cobra.Command, name string) (found bool) {
	cmd.InheritedFlags()
	cmd.Flags().VisitAll(func(f *pflag.Flag) { found = found || f.Name == name || f.Shorthand == name })
	return found || name == "version" || name == "h" || name == "v"
}

// TestFaults: the check of documents can fail.
func TestFaults(t *testing.T) {
	tree := cli.App{}.Commands()
	for line, want := range map[string]string{
		"kv put a b": "", "lock hold --try jobs -- rsync --delete": "", "query --type cdn": "no such command", "kv drop a": "no such command",
		"kv put --tyop a": "no flag --tyop", "offer find --type cdn | grep --color x": "", "COMMAND --help": "",
	} {
		require.Equal(t, want, fault(tree, line), line)
	}
	require.Equal(t, []string{"kv get a", "id", "status"}, commandLines("`blackholed kv get a` and\n$ blackholed id\n    ./blackholed status\n"))
}
