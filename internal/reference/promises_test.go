package reference_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPromises: in the table that "testnet prove" plays, each promise of RELIABILITY.md has a test, each row a promise,
// and each test and planted bug exists.
func TestPromises(t *testing.T) {
	tests, plants := map[string][]string{}, map[string]string{}
	for line := range strings.Lines(source(t, "testnet/promises.txt")) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		require.Greater(t, len(words), 2, line)
		id, folder, names := words[0], words[1], words[2:]
		if folder == "plant" {
			plants[id] = strings.Join(names, " ")
			require.Contains(t, source(t, "internal/coordination/simulation/planted_test.go"), `{"`+plants[id]+`", `, id)
			continue
		}
		declared := functions(t, folder)
		for _, name := range names {
			require.Contains(t, declared, name, "%s names this test of %s", id, folder)
		}
		tests[id] = append(tests[id], names...)
	}
	var promised []string
	for _, m := range regexp.MustCompile(`(?m)^(?:- \*\*|\| )([A-Z][0-9]+(?:-[A-Z][0-9]+)?)(?:\*\*:| \|)`).FindAllStringSubmatch(source(t, "RELIABILITY.md"), -1) {
		require.NotContains(t, promised, m[1], "promised twice")
		require.NotEmpty(t, tests[m[1]], "no test of promise %s: name one in testnet/promises.txt", m[1])
		promised = append(promised, m[1])
	}
	require.Greater(t, len(promised), 50, "the search is broken")
	require.ElementsMatch(t, promised, slices.Collect(maps.Keys(tests)), "testnet/promises.txt has other promises than RELIABILITY.md")
	for id := range plants {
		require.Contains(t, promised, id)
	}
}

// functions are the names of the functions in the tests of a folder.
func functions(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(folder), "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`).FindAllStringSubmatch(string(data), -1) {
			names = append(names, m[1])
		}
	}
	return names
}
