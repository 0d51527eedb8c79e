package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// checkState refuses init, and package-level variables other than
//
//   - assertions: var _ Interface = (*T)(nil);
//   - sentinel errors, named ErrX or errX, initialised where they are declared;
//   - files embedded with go:embed;
//   - flags of a test.
func checkState(p *pkg) []finding {
	var all []finding
	for _, f := range p.written() {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				all = append(all, p.found(fn.Pos(), "init", "func init runs behind the caller's back"))
			}
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
	case *ast.SelectorExpr: // the sentinel of another package
		return value.Sel.Name == v.Names[i].Name
	}
	return false
}

// A ban refuses names of other packages in the files of some rooms that ship.
type ban struct {
	rooms []string
	pure  bool                // the pure rooms instead
	calls bool                // refuses calls only: the name may be the default of what is injected
	names map[string][]string // by import path; none: every name
}

// bans lists the uses of clock, randomness, system and process-wide loggers that no linter in internal/tools refuses.
func bans() []ban {
	rooms := []string{"pkg", "internal"}
	reads := []string{"Now", "Since", "Until"}
	return []ban{
		{rooms: rooms[:1], calls: true, names: map[string][]string{"time": reads}},
		{rooms: rooms, names: map[string][]string{"time": {"Sleep"}}}, // nothing can stop a goroutine that sleeps
		{pure: true, names: map[string][]string{
			"os": nil, "os/exec": nil, "os/signal": nil, "net": nil, "net/http": nil, "syscall": nil, "log/slog": nil,
			"time": append(reads, "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"),
		}},
		{rooms: rooms, names: map[string][]string{
			"log/slog": {"Default", "SetDefault", "With", "Log", "LogAttrs", "Debug", "Info", "Warn", "Error",
				"DebugContext", "InfoContext", "WarnContext", "ErrorContext"},
			"log": nil,
		}},
	}
}

func (b ban) refuses(from, name string) bool {
	names, ok := b.names[from]
	return ok && (names == nil || slices.Contains(names, name)) ||
		b.calls && (from == "math/rand" || from == "math/rand/v2") && !strings.HasPrefix(name, "New")
}

// checkInjected applies bans, and refuses goroutines in the pure rooms.
func checkInjected(p *pkg) []finding {
	var all []finding
	for _, b := range bans() {
		if b.pure && !isPure(p.dir) || !b.pure && !withinAny(p.dir, b.rooms) {
			continue
		}
		for _, f := range p.shipped() {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				used := n
				if call, ok := n.(*ast.CallExpr); b.calls {
					if used = nil; ok {
						used = call.Fun
					}
				}
				if from, name := p.qualified(used); b.refuses(from, name) {
					all = append(all, p.found(n.Pos(), from+"."+name, "%s.%s in %s", from, name, p.dir))
				}
				return true
			})
		}
	}
	if !isPure(p.dir) {
		return all
	}
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

// dials lists what looks names up, and opens connections and sockets. A resolver or a dialer of a caller may still be
// an argument.
func dials() ban {
	return ban{names: map[string][]string{
		"net": {
			"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix", "Dialer", "DefaultResolver", "Listen", "ListenPacket", "ListenTCP", "ListenUDP", "ListenConfig",
			"LookupAddr", "LookupCNAME", "LookupHost", "LookupIP", "LookupMX", "LookupNS", "LookupPort", "LookupSRV", "LookupTXT",
			"ResolveIPAddr", "ResolveTCPAddr", "ResolveUDPAddr",
		},
		"net/http":                   {"DefaultClient", "DefaultTransport", "Get", "Head", "Post", "PostForm"},
		"crypto/tls":                 {"Dial", "DialWithDialer", "Dialer"},
		"github.com/quic-go/quic-go": {"DialAddr", "DialAddrEarly"},
		"google.golang.org/grpc":     {"Dial", "DialContext", "NewClient"},
	}}
}

// owned are the types that dial by themselves without a field.
func owned() map[[2]string]string {
	return map[[2]string]string{{"net/http", "Client"}: "Transport", {"net/http", "Transport"}: "DialContext", {"net", "Resolver"}: "Dial"}
}

// checkDial refuses dialers beside the one, and owned types other than pointers to them and literals with their field.
func checkDial(p *pkg) []finding {
	rooms, dialer := dialing()
	if !withinAny(p.dir, rooms) {
		return nil
	}
	var all []finding
	for _, f := range p.shipped() {
		if f.path == dialer {
			continue
		}
		fine := make(map[ast.Node]bool)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			from, name := p.qualified(n)
			field := owned()[[2]string{from, name}]
			switch n := n.(type) {
			case *ast.StarExpr:
				fine[n.X] = true
			case *ast.CompositeLit:
				from, name := p.qualified(n.Type)
				fine[n.Type] = sets(n, owned()[[2]string{from, name}])
			}
			switch {
			case dials().refuses(from, name):
				all = append(all, p.found(n.Pos(), from+"."+name, "%s.%s in %s", from, name, p.dir))
			case field != "" && !fine[n]:
				all = append(all, p.found(n.Pos(), from+"."+name, "%s.%s without %s in %s", from, name, field, p.dir))
			}
			return true
		})
	}
	return all
}

func sets(literal *ast.CompositeLit, field string) bool {
	return slices.ContainsFunc(literal.Elts, func(e ast.Expr) bool {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		key, ok := pair.Key.(*ast.Ident)
		return ok && key.Name == field
	})
}

// checkSleep refuses time.Sleep in the body of a test. A function literal that the test passes on, other than to Run, is
// taken for a bubble of testing/synctest.
func checkSleep(p *pkg) []finding {
	var all []finding
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Run" {
				for _, arg := range call.Args {
					if lit, ok := arg.(*ast.FuncLit); ok {
						ast.Inspect(lit.Body, visit)
					}
				}
			}
		}
		if from, name := p.qualified(n); from == "time" && name == "Sleep" {
			all = append(all, p.found(n.Pos(), "time.Sleep", "a test sleeps in real time"))
		}
		_, literal := n.(*ast.FuncLit)
		return !literal
	}
	for _, f := range p.written() {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.test && strings.HasPrefix(fn.Name.Name, "Test") {
				ast.Inspect(fn.Body, visit)
			}
		}
	}
	return all
}

// checkText refuses what cuts or mends a text beside the gate: strings.ToValidUTF8, and a string that ends at a
// number of bytes, which may be in the middle of a character. The end of a search (s[:i]) is fine.
func checkText(p *pkg) []finding {
	const gate = "internal/platform/clean"
	if p.dir == gate || !withinAny(p.dir, []string{"pkg", "internal", "cmd"}) {
		return nil
	}
	var all []finding
	for _, f := range p.shipped() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if from, name := p.qualified(n); name == "ToValidUTF8" {
				all = append(all, p.found(n.Pos(), from+"."+name, "%s.%s: use package clean", from, name))
			}
			if p.cuts(n) {
				all = append(all, p.found(n.Pos(), "cut", "a text is cut at a number of bytes: use package clean"))
			}
			return true
		})
	}
	return all
}

// cuts reports whether a node is text[:length] or string(bytes[:min(...)]).
func (p *pkg) cuts(n ast.Node) bool {
	convert, ok := n.(*ast.CallExpr)
	if ok {
		if id, ok := convert.Fun.(*ast.Ident); !ok || id.Name != "string" {
			return false
		}
		n = convert.Args[0]
	}
	s, ok := n.(*ast.SliceExpr)
	if !ok || s.Low != nil || s.High == nil || !p.isLength(s.High) {
		return false
	}
	return p.isText(s.X) == (convert == nil) && (convert == nil || p.types[s.High].Value == nil)
}

func (p *pkg) isText(x ast.Expr) bool {
	t := p.types[x].Type
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsString != 0
}

// isLength reports whether an expression is a constant, or a call of min.
func (p *pkg) isLength(x ast.Expr) bool {
	if call, ok := x.(*ast.CallExpr); ok {
		id, ok := call.Fun.(*ast.Ident)
		return ok && id.Name == "min"
	}
	return p.types[x].Value != nil
}
