package reference_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chosen are the tests of limits that write the number out, or are the best ones of several that name the constant.
func chosen() map[string]string {
	return map[string]string{
		"internal/discovery/offers.MaxMaxServices":        "internal/platform/config.TestErrorsNameTheKey",
		"internal/contract/coord/directory.MaxBatchBytes": "internal/coordination/machine.TestBatchIsValidated",
		"internal/contract/coord.MaxMetadata":             "internal/coordination/machine.TestLockRefusesBadInput",
		"internal/platform/identity.MaxPeerName":          "internal/platform/identity.TestPeerName",
		"internal/contract/discovery.MaxBatch":            "internal/frontend/httpapi.TestBadBatchesChangeNothing",
		"pkg/instance.MaxSize":                            "pkg/instance.TestTogetherTooLarge",
		"pkg/records.MaxKey":                              "pkg/records.TestLongestKeyFits",
		"internal/contract/coord.MaxValue":                "internal/frontend/httpapi.TestLargeValues",
		"internal/query.MaxCells":                         "internal/discovery.TestCountManyCells",
	}
}

// limitTests are the tests that name a limit, by the limit, and all tests; both as "folder.Name".
type limitTests struct {
	naming map[string][]string
	all    map[string]bool
}

// of returns the test of a limit: one of its own package first.
func (l limitTests) of(t *testing.T, limit string) string {
	t.Helper()
	if test, ok := chosen()[limit]; ok {
		require.True(t, l.all[test], "%s is the test of %s, and does not exist", test, limit)
		return test
	}
	folder := limit[:strings.LastIndexByte(limit, '.')]
	named := slices.SortedFunc(slices.Values(l.naming[limit]), func(a, b string) int {
		return cmp.Or(boolean(strings.HasPrefix(b, folder+"."))-boolean(strings.HasPrefix(a, folder+".")), strings.Compare(a, b))
	})
	require.NotEmpty(t, named, "no test names the limit %s: write one that breaks it while an honest caller goes on", limit)
	return named[0]
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// testsOfLimits looks through all tests for the names of limits, with or without their package.
func testsOfLimits(t *testing.T, limits []string) limitTests {
	t.Helper()
	found := limitTests{naming: map[string][]string{}, all: map[string]bool{}}
	names := map[string][]string{} // limits by what a test calls them
	for _, limit := range limits {
		dot := strings.LastIndexByte(limit, '.')
		names[filepath.Base(limit[:dot])+limit[dot:]] = append(names[filepath.Base(limit[:dot])+limit[dot:]], limit)
		names[limit] = []string{limit}
	}
	for _, top := range []string{"pkg", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			folder, err := filepath.Rel(root, filepath.Dir(path))
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") {
					found.look(f, filepath.ToSlash(folder), renamed(file), names)
				}
			}
			return err
		}))
	}
	return found
}

// renamed returns the folders of the packages that a file imports under another name.
func renamed(file *ast.File) map[string]string {
	folders := map[string]string{}
	for _, spec := range file.Imports {
		if spec.Name != nil {
			folders[spec.Name.Name] = strings.TrimPrefix(strings.Trim(spec.Path.Value, `"`), "github.com/blackhole/blackhole/")
		}
	}
	return folders
}

func (l limitTests) look(f *ast.FuncDecl, folder string, renamed map[string]string, names map[string][]string) {
	test := folder + "." + f.Name.Name
	l.all[test] = true
	ast.Inspect(f, func(n ast.Node) bool {
		called := ""
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				called = cmp.Or(renamed[x.Name], x.Name) + "." + n.Sel.Name
			}
		case *ast.Ident:
			called = folder + "." + n.Name
		}
		for _, limit := range names[called] {
			if !slices.Contains(l.naming[limit], test) {
				l.naming[limit] = append(l.naming[limit], test)
			}
		}
		return true
	})
}
