package reference_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAPI: the exported names of pkg are those of the list, so nobody adds or removes one unnoticed. A name is one
// of a type, function, constant or variable; methods are counted apart.
func TestAPI(t *testing.T) {
	folders := map[string][]string{}
	names, methods := 0, 0
	require.NoError(t, filepath.WalkDir(root+"/pkg", func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(at) != ".go" || strings.HasSuffix(at, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), at, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(at))
		dir = filepath.ToSlash(dir)
		for _, d := range f.Decls {
			for _, name := range exported(d) {
				if names++; strings.HasPrefix(name, "method ") {
					names, methods = names-1, methods+1
				}
				folders[dir] = append(folders[dir], name)
			}
		}
		return err
	}))
	var list strings.Builder
	fmt.Fprintf(&list, "%d names, %d methods\n", names, methods)
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		slices.Sort(folders[dir])
		fmt.Fprintf(&list, "\n%s\n\t%s\n", dir, strings.Join(folders[dir], "\n\t"))
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/api.txt", []byte(list.String()), 0o644))
	}
	want, err := os.ReadFile("testdata/api.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), list.String(),
		"the API changed: if that is meant, renew the list with go test ./internal/reference -run TestAPI -update")
}

// exported lists the exported names of a declaration: of a file that other systems compile too, each only once.
func exported(d ast.Decl) (all []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		switch {
		case !d.Name.IsExported():
		case d.Recv == nil:
			all = append(all, "func "+d.Name.Name)
		default:
			if of := receiver(d.Recv.List[0].Type); ast.IsExported(of) {
				all = append(all, "method "+of+"."+d.Name.Name)
			}
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					all = append(all, "type "+s.Name.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() {
						all = append(all, d.Tok.String()+" "+n.Name)
					}
				}
			}
		}
	}
	return all
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
