package archtest

import (
	"bytes"
	"go/ast"
	"maps"
	"path"
	"slices"
)

// smallest is the size in lines from which a package with one user is a room of its own.
const smallest = 150

// checkConfig finds structs that keep the configuration of another package: whoever holds it reaches all that the
// other one was given. An embedded one is always a fault. A field is none in a configuration, which hands down those
// of the parts that it makes, nor in the rooms that read settings and start peers.
func checkConfig(p *pkg) []finding {
	if !product(p) {
		return nil
	}
	var all []finding
	structs := p.structs()
	for _, name := range slices.Sorted(maps.Keys(structs)) {
		for _, field := range structs[name].Type.(*ast.StructType).Fields.List {
			from, kind := p.qualified(pointee(field.Type))
			if _, ours := p.mod.folder(from); !ours || !slices.Contains(configurations(), kind) {
				continue
			}
			embedded := len(field.Names) == 0
			wiring := slices.Contains(configurations(), name) || withinAny(p.dir, []string{"cmd", "internal/daemon", "internal/cli"})
			if embedded || !wiring {
				all = append(all, p.found(field.Pos(), name, "%s keeps %s.%s: name the functions or small interfaces that it uses",
					name, path.Base(from), kind))
			}
		}
	}
	return all
}

// configurations are the names of types that say what a package was given.
func configurations() []string {
	return []string{"Config", "Env", "Options", "Parts", "Settings"}
}

// pointee is the type behind a pointer, or the type itself.
func pointee(t ast.Expr) ast.Expr {
	if star, ok := t.(*ast.StarExpr); ok {
		return star.X
	}
	return t
}

// checkHome finds packages that are too small for a room of their own: below smallest, without packages below, and
// imported by one package of the product alone.
func checkHome(m *module) []finding {
	users := make(map[string]map[string]bool)
	for _, p := range m.packages {
		if !product(p) {
			continue
		}
		for _, f := range p.shipped() {
			for _, spec := range f.ast.Imports {
				if dir, ours := m.folder(importPath(spec)); ours {
					if users[dir] == nil {
						users[dir] = make(map[string]bool)
					}
					users[dir][p.dir] = true
				}
			}
		}
	}
	var all []finding
	for _, p := range m.packages {
		room, ok := roomOf(p.dir)
		generated := len(p.written()) < len(p.files) // its size is in the generated files
		if ok && room.support || generated || len(users[p.dir]) != 1 || p.lines() >= smallest {
			continue
		}
		for user := range users[p.dir] {
			all = append(all, p.found(p.files[0].ast.Package, p.name, "%s has %d lines, and %s alone imports it", p.dir, p.lines(), user))
		}
	}
	return all
}

// lines counts those of the written files that are no tests.
func (p *pkg) lines() (n int) {
	for _, f := range p.shipped() {
		n += p.mod.fset.File(f.ast.Package).LineCount()
	}
	return n
}

func configSamples() []sample {
	const env = "package wire\n\ntype Env struct{ Key string }\ntype Config struct{}\n"
	of := func(text string) files {
		return files{"pkg/wire/wire.go": env, "pkg/ask/ask.go": "package ask\n\nimport (\n\t\"m/pkg/wire\"\n\t\"net/http\"\n)\n\n" + text}
	}
	lines := func(n int) string { return "package small\n" + string(bytes.Repeat([]byte("\n"), n-1)) }
	return []sample{
		{rule: "config", name: "embedded", files: of("type Asker struct {\n\t*wire.Env\n}\n"), want: []string{"pkg/ask/ask.go:9"}},
		{rule: "config", name: "held", files: of("type Asker struct {\n\tenv wire.Env\n}\n"), want: []string{"pkg/ask/ask.go:9"}},
		{rule: "config", name: "embedded in a configuration", files: of("type Config struct {\n\twire.Config\n}\n"), want: []string{"pkg/ask/ask.go:9"}},
		{rule: "config", name: "handed down", files: of("type Config struct {\n\tWire wire.Config\n\tServer http.Server\n}\n")},
		{rule: "config", name: "functions", files: of("type Asker struct {\n\tkey func(wire.Env) string\n}\n")},
		{
			rule: "home", name: "one user", want: []string{"pkg/small/a.go:1"},
			files: files{"pkg/small/a.go": lines(smallest - 1), "pkg/user/a.go": importing("user", "m/pkg/small")},
		},
		{
			rule: "home", name: "two users, or large",
			files: files{
				"pkg/small/a.go": lines(smallest - 1), "pkg/user/a.go": importing("user", "m/pkg/small"), "pkg/two/a.go": importing("two", "m/pkg/small"),
				"pkg/large/a.go": lines(smallest + 1), "pkg/two/b.go": importing("two", "m/pkg/large"),
			},
		},
	}
}
