package reference_test

import (
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTree: the tree of ARCHITECTURE.md names each package of the product, and nothing that is gone.
func TestTree(t *testing.T) {
	_, tree, ok := strings.Cut(source(t, "ARCHITECTURE.md"), "## The tree\n\n```\n")
	require.True(t, ok)
	tree, _, ok = strings.Cut(tree, "\n```")
	require.True(t, ok)
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z0-9]+`).FindAllString(tree, -1) {
		words[word] = true
	}
	folders := map[string]bool{}
	for _, top := range []string{"cmd", "internal", "pkg", "proto", "sdk", "examples", "testnet", "bench", "deploy", "docs"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(at string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if entry.Name() == "testdata" || entry.Name() == "node_modules" {
				return filepath.SkipDir
			}
			folders[entry.Name()] = true
			return nil
		}))
	}
	packages(t, func(dir string) {
		ofTests := regexp.MustCompile(`(test|pb)$`).MatchString(dir)
		if !words[path.Base(dir)] && !ofTests {
			t.Errorf("the tree of ARCHITECTURE.md lacks %s", dir)
		}
	})
	for _, m := range regexp.MustCompile(`([a-z0-9]+)/`).FindAllStringSubmatch(tree, -1) {
		if !folders[m[1]] {
			t.Errorf("the tree of ARCHITECTURE.md has %s/, and no folder of this name is there", m[1])
		}
	}
}

// packages calls f with the folder of each package of the product, relative to the root.
func packages(t *testing.T, f func(dir string)) {
	t.Helper()
	seen := map[string]bool{}
	for _, top := range []string{"cmd", "internal", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(at string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "tools") {
				return skipOr(err)
			}
			name := entry.Name()
			if entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") {
				return nil
			}
			dir, err := filepath.Rel(root, filepath.Dir(at))
			if !seen[dir] && err == nil {
				seen[dir] = true
				f(filepath.ToSlash(dir))
			}
			return err
		}))
	}
}
