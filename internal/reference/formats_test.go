package reference_test

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

// formatsPage lists the formats on disk and between peers, with the versions that the code states.
func formatsPage(t *testing.T) string {
	b := begin("Formats", "The versions that this program writes and speaks. [wire.md](../wire.md) describes what travels between peers,\n"+
		"[operations.md](../operations.md) how versions of the program follow each other. NAME is the name of the network.")
	var disk, wire, magic [][]string
	format := regexp.MustCompile(`store\.Format\[[^]]*\]\{Name: "([^"]+)"([^}]*)\}`)
	protocol := regexp.MustCompile(`\.(Protocol|Topics)\("([^"]+)"(\+\S+)?, "([^"]+)"\)`)
	first := regexp.MustCompile(`(?m)^\s*(?:const )?(\w*[mM]agic) += "([^"]+)"`)
	for _, path := range productFiles(t) {
		text, dir := source(t, path), code(filepath.ToSlash(filepath.Dir(path)))
		for _, m := range format.FindAllStringSubmatch(text, -1) {
			require.Empty(t, m[2], "%s: a format with steps has a version above 1: count them here", path)
			disk = append(disk, []string{m[1], "1", dir})
		}
		for _, m := range protocol.FindAllStringSubmatch(text, -1) {
			name := m[2]
			if m[3] != "" {
				name += "ID"
			}
			kind, end := "protocol", ""
			if m[1] == "Topics" {
				kind, end = "topics", "/..."
			}
			wire = append(wire, []string{code("/blackhole/NAME/" + name + "/" + m[4] + end), kind, dir})
		}
		for _, m := range first.FindAllStringSubmatch(text, -1) {
			magic = append(magic, []string{code(m[2]), dir})
		}
	}
	section := func(title string, rows [][]string, least int) {
		require.GreaterOrEqual(t, len(rows), least, title)
		slices.SortFunc(rows, func(a, c []string) int { return strings.Compare(a[0], c[0]) })
		b.WriteString("\n## " + title + "\n")
		b.WriteString("\n")
		for _, r := range rows {
			b.WriteString("- " + r[0] + ": " + r[1] + "\n")
		}
	}
	section("On disk, with versions", disk, 5)
	section("First bytes of binary files", magic, 3)
	section("Between peers", wire, 8)
	return b.String()
}

// productFiles lists the files of the program that are written by hand.
func productFiles(t *testing.T) (all []string) {
	for _, dir := range []string{"internal", "pkg"} {
		require.NoError(t, fs.WalkDir(os.DirFS(root), dir, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				all = append(all, path)
			}
			return err
		}))
	}
	return all
}
