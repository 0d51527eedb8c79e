package archtest

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
)

const (
	maxFiles    = 20 // of a package, without tests and generated files
	maxExported = 45 // functions and types of a package
	maxHandles  = 2  // structs that point back to one owner
	ownedParts  = 5  // structs of its package to which an owner leads, at least
)

// product holds the rooms that the rules about size and owners bind. Tools that measure and play networks are programs
// that end.
func product(p *pkg) bool { return withinAny(p.dir, []string{"cmd", "internal", "pkg"}) }

// checkWidth bounds what a reader of a package must take in.
func checkWidth(p *pkg) []finding {
	if !product(p) {
		return nil
	}
	var exported int
	for _, f := range p.shipped() {
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.IsExported() {
					exported++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok && ts.Name.IsExported() {
						exported++
					}
				}
			}
		}
	}
	var all []finding
	at := p.files[0].ast.Package
	if n := len(p.shipped()); n > maxFiles {
		all = append(all, p.found(at, "files", "%s has %d files, at most %d", p.dir, n, maxFiles))
	}
	if exported > maxExported {
		all = append(all, p.found(at, "exported", "%s exports %d functions and types, at most %d", p.dir, exported, maxExported))
	}
	return all
}

// checkOwner finds owners to which too many structs point back.
//
//   - An owner is a struct whose fields lead, over any number of steps, to ownedParts other structs of its package.
//   - A struct points back if a pointer to the owner is in the type of a field (*T, atomic.Pointer[T], []*T), and either
//     the owner leads to that struct (a part), or no struct of the package holds it (the state of one call).
//
// The type of a function or of an interface hides the owner, so a part takes those.
func checkOwner(p *pkg) []finding {
	if !product(p) {
		return nil
	}
	structs := p.structs()
	names := slices.Sorted(maps.Keys(structs))
	isHeld := make(map[string]bool)
	for _, name := range names {
		for _, other := range fieldsOf(structs, name, false) {
			isHeld[other] = isHeld[other] || other != name
		}
	}
	var all []finding
	for _, owner := range names {
		parts := leadsTo(structs, owner)
		if len(parts) < ownedParts {
			continue
		}
		back := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return name == owner || isHeld[name] && !parts[name] || !slices.Contains(fieldsOf(structs, name, true), owner)
		})
		if len(back) > maxHandles {
			all = append(all, p.found(structs[owner].Pos(), owner, "%d structs point back to their owner %s, at most %d: %s",
				len(back), owner, maxHandles, strings.Join(back, ", ")))
		}
	}
	return all
}

// structs returns the structs that a package declares outside its tests.
func (p *pkg) structs() map[string]*ast.TypeSpec {
	all := make(map[string]*ast.TypeSpec)
	for _, f := range p.shipped() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if ts, ok := n.(*ast.TypeSpec); ok {
				if _, ok := ts.Type.(*ast.StructType); ok {
					all[ts.Name.Name] = ts
				}
			}
			_, body := n.(*ast.BlockStmt)
			return !body
		})
	}
	return all
}

// fieldsOf returns the structs in the types of a struct's fields, or only those behind a pointer.
func fieldsOf(structs map[string]*ast.TypeSpec, name string, pointers bool) (all []string) {
	var visit func(n ast.Node, pointer bool)
	visit = func(n ast.Node, pointer bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.FuncType, *ast.InterfaceType, *ast.SelectorExpr:
				return false
			case *ast.Field:
				visit(x.Type, pointer)
				return false
			case *ast.StarExpr:
				visit(x.X, true)
				return false
			case *ast.IndexExpr:
				sel, ok := x.X.(*ast.SelectorExpr)
				visit(x.X, pointer)
				visit(x.Index, pointer || ok && sel.Sel.Name == "Pointer")
				return false
			case *ast.Ident:
				if structs[x.Name] != nil && (pointer || !pointers) {
					all = append(all, x.Name)
				}
			}
			return true
		})
	}
	visit(structs[name].Type, false)
	return all
}

// leadsTo returns the structs to which the fields of one lead, without itself.
func leadsTo(structs map[string]*ast.TypeSpec, owner string) map[string]bool {
	seen := make(map[string]bool)
	for next := []string{owner}; len(next) > 0; next = next[1:] {
		for _, name := range fieldsOf(structs, next[0], false) {
			if !seen[name] && name != owner {
				seen[name] = true
				next = append(next, name)
			}
		}
	}
	return seen
}
