package archtest

import (
	"go/ast"
	"path"
)

// Budgets. They bind tests as well: a test nobody can read proves little.
const (
	maxFileLines     = 600
	maxFunctionLines = 80
	maxMainLines     = 40 // file in cmd: parse, run, exit code
	maxFields        = 20
	maxMethods       = 7
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

func checkStructSize(p *pkg) []finding {
	var all []finding
	p.inspect(func(n ast.Node, owner string) {
		if st, ok := n.(*ast.StructType); ok && st.Fields.NumFields() > maxFields {
			all = append(all, p.found(n.Pos(), owner, "struct in %s has %d fields, at most %d", owner, st.Fields.NumFields(), maxFields))
		}
	})
	return all
}

// checkInterfaceSize counts methods, those of embedded interfaces of the same
// package included. An interface embedded from elsewhere counts as one.
func checkInterfaceSize(p *pkg) []finding {
	local := make(map[string]*ast.InterfaceType)
	for _, f := range p.files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if it, ok := spec.Type.(*ast.InterfaceType); ok {
					local[spec.Name.Name] = it
				}
			}
			return true
		})
	}
	var all []finding
	p.inspect(func(n ast.Node, owner string) {
		it, ok := n.(*ast.InterfaceType)
		if !ok {
			return
		}
		if count := methods(it, local, map[*ast.InterfaceType]bool{}); count > maxMethods {
			all = append(all, p.found(n.Pos(), owner, "interface in %s has %d methods, at most %d", owner, count, maxMethods))
		}
	})
	return all
}

func methods(it *ast.InterfaceType, local map[string]*ast.InterfaceType, seen map[*ast.InterfaceType]bool) int {
	if seen[it] {
		return 0
	}
	seen[it] = true
	count := 0
	for _, field := range it.Methods.List {
		switch t := field.Type.(type) {
		case *ast.FuncType:
			count += len(field.Names)
		case *ast.SelectorExpr:
			count++
		case *ast.Ident:
			if embedded := local[t.Name]; embedded != nil {
				count += methods(embedded, local, seen)
			}
		}
	}
	return count
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
