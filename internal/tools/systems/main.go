// Command systems checks that the program of a package compiles for other systems, by the types of its sources:
//
//	go run -C internal/tools ./systems DIRECTORY windows/amd64 darwin/arm64
//
// It reads the bodies of functions of this module alone. It generates no code and links nothing, so it takes seconds where
// a build from an empty cache takes minutes. It prints each error, and exits with 1 after one.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: systems DIRECTORY OS/ARCH ...")
		os.Exit(2)
	}
	root, err := filepath.Abs(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "systems:", err)
		os.Exit(1)
	}
	failed := false
	for _, target := range os.Args[2:] {
		n, err := check(root, target)
		if err != nil {
			fmt.Fprintf(os.Stderr, "systems: %s: %v\n", target, err)
			failed = true
			continue
		}
		fmt.Printf("    %s: %d packages\n", target, n)
	}
	if failed {
		os.Exit(1)
	}
}

// check checks all packages that ./cmd/blackholed of the module in root needs on one system, and returns their number.
func check(root, target string) (int, error) {
	system, processor, _ := strings.Cut(target, "/")
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes,
		Dir:  root,
		Env:  append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0", "GOFLAGS=-tags=grpcnotrace"),
		ParseFile: func(files *token.FileSet, name string, src []byte) (*ast.File, error) {
			f, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
			if f != nil && !strings.HasPrefix(name, root+string(filepath.Separator)) {
				for _, d := range f.Decls {
					if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
						d.Body.List = []ast.Stmt{&ast.ForStmt{For: d.Body.Lbrace, Body: &ast.BlockStmt{}}} // returns nothing, whatever its results
					}
				}
			}
			return f, err
		},
	}, "./cmd/blackholed")
	if err != nil {
		return 0, err
	}
	n, faults := 0, []string{}
	packages.Visit(loaded, nil, func(p *packages.Package) {
		n++
		own := strings.HasPrefix(p.PkgPath, "github.com/blackhole/blackhole")
		for _, e := range p.Errors {
			// Without its functions, a foreign package has imports that nothing uses.
			if own || !strings.Contains(e.Msg, "and not used") {
				faults = append(faults, e.Error())
			}
		}
	})
	if len(faults) > 0 {
		return n, fmt.Errorf("%d errors:\n%s", len(faults), strings.Join(faults[:min(len(faults), 20)], "\n"))
	}
	return n, nil
}
