package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// checkFloors applies the table of house_test.go to every import of this
// module by itself, and demands a floor for every package.
func checkFloors(m *module) []finding {
	var all []finding
	for _, p := range m.packages {
		from, ok := roomOf(p.dir)
		if !ok {
			all = append(all, p.found(p.files[0].ast.Package, p.dir,
				"package %s has no floor; give it one in floors()", p.dir))
			continue
		}
		for _, f := range p.files {
			for _, spec := range f.ast.Imports {
				dir, ours := m.folder(importPath(spec))
				if !ours {
					continue
				}
				if why := forbidden(from, dir, f.test); why != "" {
					all = append(all, p.found(spec.Pos(), dir, "%s imports %s: %s", p.dir, dir, why))
				}
			}
		}
	}
	return all
}

// forbidden says why a file in the room from may not import dir; "" if it may.
func forbidden(from room, dir string, test bool) string {
	to, ok := roomOf(dir)
	switch {
	case !ok:
		return "that package has no floor"
	case to.path == from.path, slices.Contains(foundations(), to.path) && from.path != "pkg/fault":
		return ""
	case within(from.path, "pkg") && within(to.path, "internal") && !test && !slices.Contains(from.only, to.path):
		return "pkg imports no engine"
	case to.support && (test || from.support):
		return ""
	case to.support:
		return to.path + " is for tests"
	case to.floor > from.floor, to.floor == from.floor && !test:
		return fmt.Sprintf("floor %d may not use floor %d", from.floor, to.floor)
	case test, from.support:
		return ""
	case from.only != nil && !withinAny(dir, from.only) && !withinAny(dir, nouns()):
		return fmt.Sprintf("%s may use only %s and the nouns", from.path, strings.Join(from.only, ", "))
	case to.users != nil && !slices.Contains(to.users, from.path):
		return fmt.Sprintf("only %s may use %s", strings.Join(to.users, ", "), to.path)
	}
	return ""
}

// checkFences applies fences to every file, tests included.
func checkFences(m *module) []finding {
	var all []finding
	for _, p := range m.packages {
		for _, f := range p.files {
			for _, spec := range f.ast.Imports {
				imported := importPath(spec)
				for _, fc := range fences() {
					if fc.stops(p.dir, imported) {
						all = append(all, p.found(spec.Pos(), imported, "%s imports %s, allowed only in %s: %s",
							p.dir, imported, strings.Join(fc.rooms, ", "), fc.reason))
					}
				}
			}
		}
	}
	return all
}

func (fc fence) stops(dir, imported string) bool {
	return within(imported, fc.library) && !withinAny(imported, fc.open) && !withinAny(dir, fc.rooms)
}

// checkPlanes follows imports through the whole module.
func checkPlanes(m *module) []finding {
	var all []finding
	for i, here := range planes() {
		for j, there := range planes() {
			if i != j {
				all = append(all, m.separate(here, there)...)
			}
		}
	}
	return all
}

// separate reports the packages of the rooms here that reach one of the rooms
// there.
func (m *module) separate(here, there []string) []finding {
	var all []finding
	for _, p := range m.packages {
		if !withinAny(p.dir, here) {
			continue
		}
		for dir, via := range m.closure(p) {
			if withinAny(dir, there) && !slices.ContainsFunc(here, func(room string) bool { return withinAny(dir, meetings()[room]) }) {
				all = append(all, p.found(p.files[0].ast.Package, dir, "%s reaches %s through %s", p.dir, dir, via))
			}
		}
	}
	return sorted(all)
}

// checkSDK looks at every package of this module and every fenced library that
// pkg/client pulls in.
func checkSDK(m *module) []finding {
	var all []finding
	for _, p := range m.packages {
		if !within(p.dir, "pkg/client") {
			continue
		}
		reached := m.closure(p)
		reached[p.dir] = p.dir
		for _, q := range m.packages {
			via, ok := reached[q.dir]
			if !ok {
				continue
			}
			if !withinAny(q.dir, sdk()) {
				all = append(all, p.found(p.files[0].ast.Package, q.dir, "%s reaches %s, which is no part of a client", p.dir, via))
			}
			for _, imported := range q.imports() {
				stopped := func(fc fence) bool { return fc.stops(p.dir, imported) && !withinAny(q.dir, fc.rooms) }
				if slices.ContainsFunc(fences(), stopped) {
					all = append(all, p.found(p.files[0].ast.Package, imported, "%s reaches %s through %s", p.dir, imported, via))
				}
			}
		}
	}
	return sorted(all)
}

// imports lists the import paths of the files that ship, generated ones
// included.
func (p *pkg) imports() []string {
	var paths []string
	for _, f := range p.files {
		if f.test {
			continue
		}
		for _, spec := range f.ast.Imports {
			paths = append(paths, importPath(spec))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// closure returns every package of this module that start depends on, with
// the chain of imports that leads there.
func (m *module) closure(start *pkg) map[string]string {
	byDir := make(map[string]*pkg, len(m.packages))
	for _, p := range m.packages {
		byDir[p.dir] = p
	}
	chains := make(map[string]string)
	var visit func(p *pkg, chain string)
	visit = func(p *pkg, chain string) {
		for _, imported := range p.imports() {
			dir, ours := m.folder(imported)
			if _, seen := chains[dir]; !ours || seen {
				continue
			}
			chains[dir] = chain + " -> " + dir
			if next := byDir[dir]; next != nil {
				visit(next, chains[dir])
			}
		}
	}
	visit(start, start.dir)
	return chains
}

func sorted(all []finding) []finding {
	slices.SortFunc(all, func(a, b finding) int {
		return strings.Compare(a.file+" "+a.subject, b.file+" "+b.subject)
	})
	return all
}
