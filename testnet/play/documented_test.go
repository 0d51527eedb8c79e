package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocumentedCommands: each "go run ./testnet" of a document has a subcommand and flags that this program has.
func TestDocumentedCommands(t *testing.T) {
	const root = "../.."
	command, lines := regexp.MustCompile("(?:go run \\./|`)testnet( [^`\n&;|#]*|[`\n])"), 0
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && slices.Contains([]string{".git", "testdata", "node_modules"}, entry.Name()) {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" || filepath.Base(path) == "CHANGELOG.md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range command.FindAllStringSubmatch(string(text), -1) {
			lines++
			require.Empty(t, documentedFault(t, strings.Fields(m[1])), "%s: testnet%s", path, m[1])
		}
		return err
	}))
	require.Greater(t, lines, 15, "the search is broken")
}

// documentedFault says what is wrong with the words after "testnet", or nothing.
func documentedFault(t *testing.T, words []string) string {
	t.Helper()
	ask := []string{"-h"}
	if len(words) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]) {
		i := slices.IndexFunc(subcommands(), func(s subcommand) bool { return s.name == words[0] })
		if i < 0 {
			return "no subcommand " + words[0]
		}
		if subcommands()[i].about == "" || subcommands()[i].run == nil {
			return "" // an order to a running testnet, or one of command testnet: neither has flags
		}
		ask = []string{words[0], "-h"}
	}
	var help strings.Builder
	require.Equal(t, exitOK, execute(t.Context(), ask, &help, &help))
	for _, word := range words {
		flag, _, _ := strings.Cut(word, "=")
		known := flag == "-h" || regexp.MustCompile(`(?m)^  `+regexp.QuoteMeta(flag)+`\b`).MatchString(help.String())
		if strings.HasPrefix(flag, "-") && !known {
			return "no flag " + flag
		}
	}
	return ""
}

// TestDocumentedFaults: the check of documents can fail.
func TestDocumentedFaults(t *testing.T) {
	for line, want := range map[string]string{
		"": "", "-tour=false -records 400": "", "nemesis -seed 1": "", "prove C5": "", "kill peer-3": "",
		"-toor": "no flag -toor", "nemesis -sead 1": "no flag -sead", "nemeses": "no subcommand nemeses",
	} {
		require.Equal(t, want, documentedFault(t, strings.Fields(line)), line)
	}
}
