package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// module is the parsed source of one Go module.
type module struct {
	path     string // import path, from go.mod
	fset     *token.FileSet
	packages []*pkg // sorted by folder
}

// pkg is one folder with Go files. Test files are included, those of the
// external test package too: the rules mostly do not care.
type pkg struct {
	mod   *module
	dir   string // relative to the module root, slash-separated, "." for the root
	name  string // as declared, without _test
	files []*source

	// uses resolves identifiers. Imported packages are stand-ins without
	// content, so only package names and local objects are resolved.
	uses map[*ast.Ident]types.Object

	types map[ast.Expr]types.TypeAndValue // of expressions, as far as they need no import
}

// source is one parsed file.
type source struct {
	path      string // relative to the module root
	test      bool
	generated bool
	ast       *ast.File
}

// load parses every package of the module rooted at fsys. Like the go command
// it skips testdata, folders starting with a dot or an underscore, and nested
// modules.
func load(fsys fs.FS) (*module, error) {
	gomod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, err
	}
	name := regexp.MustCompile(`(?m)^module\s+(\S+)`).FindSubmatch(gomod)
	if name == nil {
		return nil, fmt.Errorf("go.mod names no module")
	}
	m := &module{path: string(name[1]), fset: token.NewFileSet()}
	err = fs.WalkDir(fsys, ".", func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case dir != "." && skipped(fsys, dir):
			return fs.SkipDir
		}
		return m.addFolder(fsys, dir)
	})
	return m, err
}

func skipped(fsys fs.FS, dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_' {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(dir, "go.mod"))
	return err == nil
}

// addFolder parses the Go files of one folder and adds them as a package, if
// there are any.
func (m *module) addFolder(fsys fs.FS, dir string) error {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return err
	}
	p := &pkg{mod: m, dir: dir, uses: make(map[*ast.Ident]types.Object), types: make(map[ast.Expr]types.TypeAndValue)}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		src, err := m.parse(fsys, path.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		p.files = append(p.files, src)
		p.name = strings.TrimSuffix(src.ast.Name.Name, "_test")
	}
	if len(p.files) == 0 {
		return nil
	}
	p.resolve()
	m.packages = append(m.packages, p)
	return nil
}

func (m *module) parse(fsys fs.FS, name string) (*source, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(m.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		path:      name,
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(file),
		ast:       file,
	}, nil
}

// resolve fills uses. The package under test and its external tests are two
// packages to the type checker. Its complaints are dropped: the stand-ins make
// most of them, and the compiler reports the rest better.
func (p *pkg) resolve() {
	byName := make(map[string][]*ast.File)
	for _, f := range p.files {
		byName[f.ast.Name.Name] = append(byName[f.ast.Name.Name], f.ast)
	}
	for name, files := range byName {
		conf := types.Config{
			Importer:    standIn{},
			Error:       func(error) {},
			FakeImportC: true,
		}
		// The error repeats the first one given to Error.
		_, _ = conf.Check(path.Join(p.mod.path, p.dir, name), p.mod.fset, files, &types.Info{Uses: p.uses, Types: p.types})
	}
}

// standIn imports every package as an empty one of the likely name.
type standIn struct{}

func (standIn) Import(importPath string) (*types.Package, error) {
	name := path.Base(importPath)
	if regexp.MustCompile(`^v[0-9]+$`).MatchString(name) {
		name = path.Base(path.Dir(importPath))
	}
	p := types.NewPackage(importPath, name)
	p.MarkComplete()
	return p, nil
}

// qualified returns the import path and the name of a reference such as
// time.Sleep, and two empty strings for anything else.
func (p *pkg) qualified(n ast.Node) (importPath, name string) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok {
		return "", ""
	}
	pkgName, ok := p.uses[id].(*types.PkgName)
	if !ok {
		return "", ""
	}
	return pkgName.Imported().Path(), sel.Sel.Name
}

// written returns the files that people wrote.
func (p *pkg) written() []*source {
	return slices.DeleteFunc(slices.Clone(p.files), func(f *source) bool { return f.generated })
}

// shipped returns the written files that are no tests.
func (p *pkg) shipped() []*source {
	return slices.DeleteFunc(p.written(), func(f *source) bool { return f.test })
}

// folder maps an import path of this module to a folder relative to its root.
func (m *module) folder(importPath string) (string, bool) {
	if importPath == m.path {
		return ".", true
	}
	return strings.CutPrefix(importPath, m.path+"/")
}

// importPath returns the unquoted path of an import.
func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
}

// A finding is one breach of one rule.
type finding struct {
	file    string
	line    int
	subject string // what breaks the rule: an identifier, an import path, a file name
	what    string
}

func (p *pkg) found(pos token.Pos, subject, format string, args ...any) finding {
	at := p.mod.fset.Position(pos)
	return finding{file: at.Filename, line: at.Line, subject: subject, what: fmt.Sprintf(format, args...)}
}
