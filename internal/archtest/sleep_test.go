package archtest

import (
	"go/ast"
	"go/token"
	"slices"
)

// checkSleep refuses time.Sleep in what ships (a sleeping goroutine does not
// notice that it should stop) and in tests outside a synctest bubble.
func checkSleep(p *pkg) []finding {
	var all []finding
	if within(p.dir, "pkg") || within(p.dir, "internal") {
		all = p.references(p.shipped(), isSleep, "cannot be interrupted; wait on a timer and a context")
	}
	w := sleepWalk{p: p, mentions: make(map[string][]mention)}
	for _, f := range p.written() {
		if f.test {
			w.file(f)
		}
	}
	for _, s := range w.sleeps {
		if !s.bubbled && !w.bubbledOnly(s.within, nil) {
			all = append(all, p.found(s.pos, "time.Sleep", "%s sleeps in real time", s.within))
		}
	}
	return all
}

func isSleep(from, name string) bool { return from == "time" && name == "Sleep" }

// sleepWalk collects where the tests of a package sleep and from where their
// functions are used.
type sleepWalk struct {
	p        *pkg
	sleeps   []mention
	mentions map[string][]mention // by the name mentioned
}

// A mention of a name: the function it is in, and whether that place is inside
// the argument of a bubble.
type mention struct {
	pos     token.Pos
	within  string
	bubbled bool
}

func (w *sleepWalk) file(f *source) {
	for _, decl := range f.ast.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
			w.walk(fn.Body, mention{within: fn.Name.Name})
		} else if !ok {
			w.walk(decl, mention{within: "a declaration"})
		}
	}
}

func (w *sleepWalk) walk(root ast.Node, at mention) {
	ast.Inspect(root, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && !at.bubbled && w.bubbles(call) {
			inside := at
			inside.bubbled = true
			for _, arg := range call.Args {
				w.walk(arg, inside)
			}
			return false
		}
		here := at
		if n != nil {
			here.pos = n.Pos()
		}
		if from, name := w.p.qualified(n); isSleep(from, name) {
			w.sleeps = append(w.sleeps, here)
		}
		if id, ok := n.(*ast.Ident); ok {
			w.mentions[id.Name] = append(w.mentions[id.Name], here)
		}
		return true
	})
}

// bubbles reports whether a call runs its function arguments in a bubble:
// synctest.Test itself, or a function of these tests that hands a function on
// to it.
func (w *sleepWalk) bubbles(call *ast.CallExpr) bool {
	if w.isSynctest(call) {
		return true
	}
	id, ok := call.Fun.(*ast.Ident)
	if !ok {
		return false
	}
	return slices.ContainsFunc(w.p.files, func(f *source) bool {
		return f.test && slices.ContainsFunc(f.ast.Decls, func(decl ast.Decl) bool {
			fn, ok := decl.(*ast.FuncDecl)
			return ok && fn.Recv == nil && fn.Name.Name == id.Name && takesFunc(fn) && w.callsSynctest(fn)
		})
	})
}

func (w *sleepWalk) isSynctest(call *ast.CallExpr) bool {
	from, name := w.p.qualified(call.Fun)
	return from == "testing/synctest" && name == "Test"
}

func (w *sleepWalk) callsSynctest(fn *ast.FuncDecl) bool {
	found := false
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && w.isSynctest(call)
		return !found
	})
	return found
}

func takesFunc(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(field *ast.Field) bool {
		_, ok := field.Type.(*ast.FuncType)
		return ok
	})
}

// bubbledOnly reports whether a function is used, and only from bubbles. The
// names on the path are assumed to be, so that recursion ends.
func (w *sleepWalk) bubbledOnly(name string, path []string) bool {
	uses := w.mentions[name]
	if len(uses) == 0 {
		return false
	}
	path = append(path, name)
	return !slices.ContainsFunc(uses, func(m mention) bool {
		return !m.bubbled && !slices.Contains(path, m.within) && !w.bubbledOnly(m.within, path)
	})
}
