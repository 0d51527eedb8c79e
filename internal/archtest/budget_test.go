package archtest

import (
	"go/ast"
	"path"
	"strings"
)

// Budgets. They bind tests as well: a test nobody can read proves little.
const (
	maxFileLines     = 600
	maxFunctionLines = 80
	maxMainLines     = 40 // file in cmd: parse, run, exit code
	maxFields        = 20 // of a struct; embedded structs of this module count as their fields
	maxInterface     = 7  // methods of an interface, embedded ones included
	maxMethods       = 30 // methods declared on one type, over all files of its package
	maxParameters    = 5
)

func checkFileSize(p *pkg) []finding {
	limit := maxFileLines
	if within(p.dir, "cmd") {
		limit = maxMainLines
	}
	var all []finding
	for _, f := range p.written() {
		if f.lines > limit && (limit == maxFileLines || !f.test) {
			all = append(all, p.found(f.ast.Package, path.Base(f.path), "%d lines, at most %d", f.lines, limit))
		}
	}
	return all
}

func checkFunctionSize(p *pkg) []finding {
	var all []finding
	for _, f := range p.written() {
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := p.line(fn.End()) - p.line(fn.Pos()) + 1
			if lines > maxFunctionLines {
				all = append(all, p.found(fn.Pos(), funcName(fn), "func %s has %d lines, at most %d", funcName(fn), lines, maxFunctionLines))
			}
		}
	}
	return all
}

// A declaration is a type of this module by folder and name.
type declaration struct{ dir, name string }

// types lists the type declarations of the module, generated ones included.
func (m *module) types() map[declaration]typeIn {
	all := make(map[declaration]typeIn)
	for _, p := range m.packages {
		for _, f := range p.files {
			for _, decl := range f.ast.Decls {
				gen, ok := decl.(*ast.GenDecl)
				if !ok {
					continue
				}
				for _, spec := range gen.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						all[declaration{p.dir, ts.Name.Name}] = typeIn{p, ts.Type}
					}
				}
			}
		}
	}
	return all
}

// typeIn is a type expression and the package that declares it.
type typeIn struct {
	p    *pkg
	expr ast.Expr
}

// embedded resolves the type of an embedded field to a declaration of this
// module. ok is false for a pointer, whose fields belong to another owner, and
// for a type from elsewhere.
func (p *pkg) embedded(expr ast.Expr) (d declaration, ok bool) {
	switch t := expr.(type) {
	case *ast.IndexExpr:
		return p.embedded(t.X)
	case *ast.IndexListExpr:
		return p.embedded(t.X)
	case *ast.Ident:
		return declaration{p.dir, t.Name}, true
	case *ast.SelectorExpr:
		imported, name := p.qualified(t)
		dir, ours := p.mod.folder(imported)
		return declaration{dir, name}, ours
	}
	return declaration{}, false
}

// checkStructSize counts the fields of a struct. A struct of this module that
// is embedded by value counts as its fields, so that embedding hides nothing.
// Fixtures of tests may embed a whole part: there it counts as one.
func checkStructSize(m *module) []finding {
	known := m.types()
	var all []finding
	for _, p := range m.packages {
		p.inspect(func(n ast.Node, owner string) {
			st, ok := n.(*ast.StructType)
			if !ok {
				return
			}
			count := st.Fields.NumFields()
			if !strings.HasSuffix(p.mod.fset.Position(n.Pos()).Filename, "_test.go") {
				count = fields(typeIn{p, st}, known, map[ast.Expr]bool{})
			}
			if count > maxFields {
				all = append(all, p.found(n.Pos(), owner, "struct in %s has %d fields, at most %d", owner, count, maxFields))
			}
		})
	}
	return all
}

// fields counts the fields of a struct, 1 for any other type.
func fields(t typeIn, known map[declaration]typeIn, seen map[ast.Expr]bool) int {
	st, ok := t.expr.(*ast.StructType)
	if !ok {
		return 1
	}
	if seen[st] {
		return 0
	}
	seen[st] = true
	count := 0
	for _, field := range st.Fields.List {
		if len(field.Names) > 0 {
			count += len(field.Names)
			continue
		}
		if inner, ok := lookup(t.p, field.Type, known); ok {
			count += fields(inner, known, seen)
		} else {
			count++
		}
	}
	return count
}

func lookup(p *pkg, expr ast.Expr, known map[declaration]typeIn) (typeIn, bool) {
	d, ok := p.embedded(expr)
	if !ok {
		return typeIn{}, false
	}
	t, ok := known[d]
	return t, ok
}

// checkInterfaceSize counts methods, those of embedded interfaces of the same
// package included. An interface of another package counts as one: it is a
// contract of its own.
func checkInterfaceSize(m *module) []finding {
	known := m.types()
	var all []finding
	for _, p := range m.packages {
		p.inspect(func(n ast.Node, owner string) {
			it, ok := n.(*ast.InterfaceType)
			if !ok {
				return
			}
			if count := signatures(typeIn{p, it}, known, map[ast.Expr]bool{}); count > maxInterface {
				all = append(all, p.found(n.Pos(), owner, "interface in %s has %d methods, at most %d", owner, count, maxInterface))
			}
		})
	}
	return all
}

// signatures counts the methods that an interface demands.
func signatures(t typeIn, known map[declaration]typeIn, seen map[ast.Expr]bool) int {
	it, ok := t.expr.(*ast.InterfaceType)
	if !ok || seen[it] {
		return 0
	}
	seen[it] = true
	count := 0
	for _, field := range it.Methods.List {
		switch field.Type.(type) {
		case *ast.FuncType:
			count += len(field.Names)
		case *ast.SelectorExpr:
			count++
		case *ast.Ident:
			if inner, ok := lookup(t.p, field.Type, known); ok {
				count += signatures(inner, known, seen)
			}
		}
	}
	return count
}

// checkMethods counts the methods of each type over all files of its package.
func checkMethods(p *pkg) []finding {
	count, first := make(map[string]int), make(map[string]*ast.FuncDecl)
	var names []string
	for _, f := range p.written() {
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || receiver(fn) == "" {
				continue
			}
			name := receiver(fn)
			if first[name] == nil {
				first[name] = fn
				names = append(names, name)
			}
			count[name]++
		}
	}
	var all []finding
	for _, name := range names {
		if count[name] > maxMethods {
			all = append(all, p.found(first[name].Pos(), name, "type %s has %d methods, at most %d", name, count[name], maxMethods))
		}
	}
	return all
}

// checkParameters looks at every signature: functions, methods, literals,
// function types and the methods of interfaces.
func checkParameters(p *pkg) []finding {
	var all []finding
	p.inspect(func(n ast.Node, owner string) {
		if ft, ok := n.(*ast.FuncType); ok && ft.Params.NumFields() > maxParameters {
			all = append(all, p.found(n.Pos(), owner, "function in %s takes %d parameters, at most %d", owner, ft.Params.NumFields(), maxParameters))
		}
	})
	return all
}

// inspect visits every node of the written files with the name of the
// top-level declaration that holds it.
func (p *pkg) inspect(visit func(n ast.Node, owner string)) {
	for _, f := range p.written() {
		for _, decl := range f.ast.Decls {
			owners := []ast.Node{decl}
			if gen, ok := decl.(*ast.GenDecl); ok {
				owners = owners[:0]
				for _, spec := range gen.Specs {
					owners = append(owners, spec)
				}
			}
			for _, owner := range owners {
				ast.Inspect(owner, func(n ast.Node) bool {
					if n != nil {
						visit(n, declared(owner))
					}
					return true
				})
			}
		}
	}
}

// declared names a top-level declaration.
func declared(n ast.Node) string {
	switch d := n.(type) {
	case *ast.FuncDecl:
		return funcName(d)
	case *ast.TypeSpec:
		return d.Name.Name
	case *ast.ValueSpec:
		return d.Names[0].Name
	case *ast.ImportSpec:
		return d.Path.Value
	}
	return ""
}

// funcName is F for a function and T.F for a method of T or *T.
func funcName(fn *ast.FuncDecl) string {
	if recv := receiver(fn); recv != "" {
		return recv + "." + fn.Name.Name
	}
	return fn.Name.Name
}

// receiver returns the name of the receiver's type, "" for a function.
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return ""
	}
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
