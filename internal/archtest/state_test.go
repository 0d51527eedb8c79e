package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

func checkInit(p *pkg) []finding {
	var all []finding
	for _, f := range p.written() {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				all = append(all, p.found(fn.Pos(), "init", "func init runs behind the caller's back"))
			}
		}
	}
	return all
}

// checkVariables refuses package-level variables other than
//
//   - assertions: var _ Interface = (*T)(nil);
//   - sentinel errors, named ErrX or errX, initialised where they are declared;
//   - files embedded with go:embed;
//   - flags of a test.
func checkVariables(p *pkg) []finding {
	var all []finding
	for _, f := range p.written() {
		for _, decl := range f.ast.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				v := spec.(*ast.ValueSpec)
				if embedded(gen.Doc) || embedded(v.Doc) || p.isTestFlag(f, v) {
					continue
				}
				for i, name := range v.Names {
					if name.Name != "_" && !isSentinel(v, i) {
						all = append(all, p.found(name.Pos(), name.Name, "package variable %s", name.Name))
					}
				}
			}
		}
	}
	return all
}

func embedded(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

func (p *pkg) isTestFlag(f *source, v *ast.ValueSpec) bool {
	return f.test && len(v.Values) > 0 && !slices.ContainsFunc(v.Values, func(value ast.Expr) bool {
		call, ok := value.(*ast.CallExpr)
		if !ok {
			return true
		}
		from, _ := p.qualified(call.Fun)
		return from != "flag"
	})
}

func isSentinel(v *ast.ValueSpec, i int) bool {
	if len(v.Values) != len(v.Names) || !regexp.MustCompile(`^[eE]rr[A-Z]`).MatchString(v.Names[i].Name) {
		return false
	}
	switch value := v.Values[i].(type) {
	case *ast.CallExpr:
		return true
	case *ast.UnaryExpr:
		return value.Op == token.AND
	}
	return false
}

// checkLoggers refuses the process-wide loggers of log and log/slog. Programs
// may use them before they have built their own.
func checkLoggers(p *pkg) []finding {
	if p.name == "main" {
		return nil
	}
	slogGlobals := []string{
		"Default", "SetDefault", "With", "Log", "LogAttrs",
		"Debug", "Info", "Warn", "Error",
		"DebugContext", "InfoContext", "WarnContext", "ErrorContext",
	}
	return p.references(p.shipped(), func(from, name string) bool {
		return from == "log" && name != "Logger" || from == "log/slog" && slices.Contains(slogGlobals, name)
	}, "uses the process-wide logger")
}

// checkClock refuses to read the clock in pkg. The function time.Now itself
// may be named, as the default of an injected clock.
func checkClock(p *pkg) []finding {
	if !within(p.dir, "pkg") {
		return nil
	}
	return p.calls(p.shipped(), func(from, name string) bool {
		return from == "time" && slices.Contains([]string{"Now", "Since", "Until"}, name)
	}, "reads the clock")
}

// checkRandom refuses to draw from the process-wide source in pkg. Building a
// seeded one is fine.
func checkRandom(p *pkg) []finding {
	if !within(p.dir, "pkg") {
		return nil
	}
	return p.calls(p.shipped(), func(from, name string) bool {
		return (from == "math/rand" || from == "math/rand/v2") && !strings.HasPrefix(name, "New")
	}, "draws from the process-wide random source")
}

// checkPure holds the rooms listed in pure to computing.
func checkPure(p *pkg) []finding {
	if !withinAny(p.dir, pure()) {
		return nil
	}
	system := []string{"os", "os/exec", "os/signal", "net", "net/http", "syscall", "log/slog"}
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	all := p.references(p.shipped(), func(from, name string) bool {
		return slices.Contains(system, from) || from == "time" && slices.Contains(clock, name)
	}, "is no computation")
	for _, f := range p.shipped() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if stmt, ok := n.(*ast.GoStmt); ok {
				all = append(all, p.found(stmt.Pos(), "go", "starts a goroutine"))
			}
			return true
		})
	}
	return all
}

// references finds each mention of a name of another package that match
// accepts.
func (p *pkg) references(files []*source, match func(from, name string) bool, what string) []finding {
	var all []finding
	for _, f := range files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if from, name := p.qualified(n); from != "" && match(from, name) {
				all = append(all, p.found(n.Pos(), from+"."+name, "%s.%s %s", from, name, what))
			}
			return true
		})
	}
	return all
}

// calls is references, calls only.
func (p *pkg) calls(files []*source, match func(from, name string) bool, what string) []finding {
	var all []finding
	for _, f := range files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if from, name := p.qualified(call.Fun); from != "" && match(from, name) {
				all = append(all, p.found(call.Pos(), from+"."+name, "%s.%s() %s", from, name, what))
			}
			return true
		})
	}
	return all
}
