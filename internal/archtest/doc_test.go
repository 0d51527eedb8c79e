package archtest

import (
	"go/ast"
	"strings"
)

// checkPackageComment demands one package comment in one file. Two would be
// joined by go doc in the order of file names, which is rarely meant.
func checkPackageComment(p *pkg) []finding {
	files := p.shipped()
	if len(files) == 0 {
		files = p.written()
	}
	if len(files) == 0 {
		return nil
	}
	var commented []*source
	for _, f := range files {
		if f.ast.Doc.Text() != "" {
			commented = append(commented, f)
		}
	}
	if len(commented) == 0 {
		return []finding{p.found(files[0].ast.Package, p.name, "package %s has no package comment", p.name)}
	}
	var all []finding
	for _, f := range commented[1:] {
		all = append(all, p.found(f.ast.Package, p.name, "second package comment, the first is in %s", commented[0].path))
	}
	first := commented[0]
	if p.name != "main" && !strings.HasPrefix(first.ast.Doc.Text(), "Package "+p.name+" ") {
		all = append(all, p.found(first.ast.Package, p.name, "package comment does not begin with %q", "Package "+p.name))
	}
	return all
}

// checkDoc demands a comment on every exported function, method, type,
// constant, variable and interface method. A comment on a group of constants
// or variables covers the group. Programs export nothing.
func checkDoc(p *pkg) []finding {
	if p.name == "main" {
		return nil
	}
	var all []finding
	for _, f := range p.shipped() {
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				recv := receiver(d)
				if d.Name.IsExported() && (recv == "" || ast.IsExported(recv)) && d.Doc.Text() == "" {
					all = append(all, p.found(d.Pos(), funcName(d), "%s is not documented", funcName(d)))
				}
			case *ast.GenDecl:
				all = append(all, p.undocumented(d)...)
			}
		}
	}
	return all
}

func (p *pkg) undocumented(d *ast.GenDecl) []finding {
	var all []finding
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			if s.Doc.Text() == "" && (d.Lparen.IsValid() || d.Doc.Text() == "") {
				all = append(all, p.found(s.Pos(), s.Name.Name, "type %s is not documented", s.Name.Name))
			}
			if it, ok := s.Type.(*ast.InterfaceType); ok {
				all = append(all, p.undocumentedMethods(s.Name.Name, it)...)
			}
		case *ast.ValueSpec:
			if s.Doc.Text() != "" || s.Comment.Text() != "" || d.Doc.Text() != "" {
				continue
			}
			for _, name := range s.Names {
				if name.IsExported() {
					all = append(all, p.found(name.Pos(), name.Name, "%s %s is not documented", d.Tok, name.Name))
				}
			}
		}
	}
	return all
}

func (p *pkg) undocumentedMethods(owner string, it *ast.InterfaceType) []finding {
	var all []finding
	for _, field := range it.Methods.List {
		for _, name := range field.Names {
			if name.IsExported() && field.Doc.Text() == "" && field.Comment.Text() == "" {
				all = append(all, p.found(name.Pos(), owner+"."+name.Name, "method %s.%s is not documented", owner, name.Name))
			}
		}
	}
	return all
}
