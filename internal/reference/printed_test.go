package reference_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli"
	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/platform/config"
)

const pageFolder = "../frontend/ui/static/"

// pageSources returns the page's own modules by name.
func pageSources(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(pageFolder + "*.js")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	sources := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		sources[filepath.Base(name)] = string(text)
	}
	return sources
}

// TestCommandsOfThePage: each command line that the page prints is one of the program, with flags and arguments that it takes. The
// page makes such lines by cli alone, and lines for the name server by dnsLines.
func TestCommandsOfThePage(t *testing.T) {
	calls := regexp.MustCompile("\\bcli\\((?:'([^']*)'|\"([^\"]*)\"|`([^`]*)`)\\)")
	value := regexp.MustCompile(`\$\{(?:[^{}]|\{[^{}]*\})*\}`)
	words := regexp.MustCompile(`'[^']*'|\S+`)
	n := 0
	for file, text := range pageSources(t) {
		for _, found := range calls.FindAllStringSubmatch(text, -1) {
			n++
			line := value.ReplaceAllString(found[1]+found[2]+found[3], "x")
			var args []string
			for _, word := range words.FindAllString(line, -1) {
				args = append(args, strings.Trim(word, "'"))
			}
			cmd, rest, err := cli.App{}.Commands().Find(args)
			require.NoError(t, err, "%s: %s", file, line)
			require.NoError(t, cmd.ParseFlags(rest), "%s: %s", file, line)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), "%s: %s", file, line)
			require.True(t, cmd.Runnable() && command.CallsPeer(cmd), "%s: %s calls no peer", file, line)
		}
		if file != "lib.js" {
			require.Empty(t, regexp.MustCompile("['\"`>]blackholed [a-z]").FindString(text), "%s prints a command without cli", file)
		}
	}
	require.Greater(t, n, 20)
}

// TestSearchOfThePage: the command line of a search has a flag for each field of the form.
func TestSearchOfThePage(t *testing.T) {
	source := pageSources(t)["search.js"]
	renamed := map[string]string{"require_gpu": "gpu"}
	_, renames, ok := strings.Cut(source, "const flags = {")
	require.True(t, ok)
	renames, _, _ = strings.Cut(renames, "}")
	for _, found := range regexp.MustCompile(`(\w+): '([\w-]+)'`).FindAllStringSubmatch(renames, -1) {
		renamed[found[1]] = found[2]
	}
	fields := regexp.MustCompile(`(?m)^  \['([a-z_]+)', '`).FindAllStringSubmatch(source, -1)
	require.Greater(t, len(fields), 10)
	flags := find(t, cli.App{}.Commands(), "offer", "find").Flags()
	for _, field := range fields {
		name, ok := renamed[field[1]]
		if !ok {
			name = strings.ReplaceAll(field[1], "_", "-")
		}
		require.NotNil(t, flags.Lookup(name), "field %s has no flag --%s", field[1], name)
	}
}

// TestDefaultsOfThePage: the page leaves a flag out if the command line asks the same address without it.
func TestDefaultsOfThePage(t *testing.T) {
	require.Contains(t, pageSources(t)["lib.js"], "const defaultGRPC = '"+config.Default().GRPC+"'")
}
