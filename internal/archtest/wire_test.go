package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/blackhole/blackhole/pkg/network"
)

// wirePage describes the protocols between peers for other implementations. It must name every identifier and
// every limit that both sides have to know.
const wirePage = "docs/wire.md"

// TestWirePage compares the page with the code.
func TestWirePage(t *testing.T) {
	root := os.DirFS("../..")
	m, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(root, wirePage)
	if err != nil {
		t.Fatal(err)
	}
	found, names := checkWire(m, string(text))
	for _, f := range found {
		t.Error(f)
	}
	if names < 20 {
		t.Errorf("found only %d identifiers: the search is broken", names)
	}
}

// checkWire returns the identifiers that the page does not name, the limits that it lacks or has wrong, and the number
// of identifiers.
func checkWire(m *module, page string) (all []string, names int) {
	unnamed := func(id, where string) {
		names++
		if !strings.Contains(page, id) {
			all = append(all, fmt.Sprintf("%s does not name %s, which %s uses: add it, with its meaning", wirePage, id, where))
		}
	}
	for _, id := range formsOfName() {
		unnamed(id, "pkg/network")
	}
	for _, p := range m.packages {
		for _, f := range p.shipped() {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && p.dir != "pkg/network" && !strings.HasSuffix(p.name, "test") {
					id, fault := p.formOf(call)
					if fault != "" {
						all = append(all, fmt.Sprintf("%s: %s", f.path, fault))
					} else if id != "" {
						unnamed(id, f.path)
					}
				}
				if id, ok := textOf(n); ok && p.onWire() && isIdentifier(id) {
					unnamed(id, f.path)
				}
				return true
			})
		}
	}
	return append(all, checkLimits(m, page)...), names
}

// isIdentifier reports whether a text is an identifier without a network.
func isIdentifier(s string) bool {
	beginnings := []string{"/blackhole/", "bh-", "blackhole-", "blackhole:", "_blackhole-"}
	return !strings.Contains(s, " ") && slices.ContainsFunc(beginnings, func(b string) bool { return len(s) > len(b) && strings.HasPrefix(s, b) })
}

// onWire reports whether a package takes part in the protocols between peers.
func (p *pkg) onWire() bool {
	return slices.ContainsFunc([]string{"pkg/records", "pkg/gossip", "internal/discovery", "internal/coordination", "internal/platform/p2p", "internal/platform/rpc"},
		func(dir string) bool { return p.dir == dir || strings.HasPrefix(p.dir, dir+"/") }) &&
		!strings.HasSuffix(p.dir, "test") && path.Base(p.dir) != "simulation"
}

// formsOfName returns the forms of a network's name without arguments.
func formsOfName() (all []string) {
	name := reflect.ValueOf(network.Name("NAME"))
	for i := range name.NumMethod() {
		method := name.Method(i)
		if t := method.Type(); t.NumIn() == 0 && t.NumOut() == 1 && t.Out(0).Kind() == reflect.String {
			all = append(all, method.Call(nil)[0].String())
		}
	}
	return all
}

// formOf returns the identifier that a call of a form with arguments makes: "" for another call. A fault is a form whose
// arguments are no text of the source.
func (p *pkg) formOf(call *ast.CallExpr) (id, fault string) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if path, _ := p.qualified(sel); path != "" {
		return "", "" // a function of a package
	}
	const name = network.Name("NAME")
	forms := map[string]func(a ...string) string{
		"Protocol":  func(a ...string) string { return name.Protocol(a[0], a[1]) },
		"Topics":    func(a ...string) string { return name.Topics(a[0], a[1]) },
		"Namespace": func(a ...string) string { return name.Namespace(a[0]) },
		"Domain":    func(a ...string) string { return name.Domain(a[0]) },
	}
	wanted := map[string]int{"Protocol": 2, "Topics": 2, "Namespace": 1, "Domain": 1}
	form, ok := forms[sel.Sel.Name]
	if !ok || len(call.Args) != wanted[sel.Sel.Name] {
		return "", ""
	}
	args := make([]string, len(call.Args))
	for i, arg := range call.Args {
		if args[i], ok = p.text(arg); !ok {
			return "", fmt.Sprintf("the arguments of %s must be texts or constants of this package, so that %s can name the identifier", sel.Sel.Name, wirePage)
		}
	}
	return form(args...), ""
}

// text returns the value of a text: a literal, a constant of the package, the digits of a constant, or a text with a
// variable end, for which "ID" stands.
func (p *pkg) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return textOf(e)
	case *ast.Ident:
		if c := p.constant(e.Name); c != nil {
			return p.text(c)
		}
	case *ast.CallExpr:
		if from, name := p.qualified(e.Fun); from == "strconv" && name == "Itoa" {
			n, ok := p.number(e.Args[0])
			return strconv.FormatInt(n, 10), ok
		}
	case *ast.BinaryExpr:
		if begin, ok := p.text(e.X); ok && e.Op == token.ADD {
			if end, ok := p.text(e.Y); ok {
				return begin + end, true
			}
			return begin + "ID", true
		}
	}
	return "", false
}

func textOf(n ast.Node) (string, bool) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

// constant returns the expression of a constant at package level, or nil.
func (p *pkg) constant(name string) ast.Expr {
	var value ast.Expr
	p.constants(func(n string, e ast.Expr) {
		if n == name {
			value = e
		}
	})
	return value
}

// constants visits the constants at package level that have an expression of their own.
func (p *pkg) constants(visit func(name string, value ast.Expr)) {
	for _, f := range p.shipped() {
		for _, decl := range f.ast.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				continue
			}
			for _, spec := range d.Specs {
				s := spec.(*ast.ValueSpec)
				for i := range min(len(s.Names), len(s.Values)) {
					visit(s.Names[i].Name, s.Values[i])
				}
			}
		}
	}
}

// limited are the packages whose exported numbers must be rows of the table of limits, and those that concern one peer
// alone.
func limited() (folders []string, ownMatter []string) {
	return []string{
			"pkg/records", "pkg/network", "pkg/gossip", "internal/discovery/protocol", "internal/discovery/keep", "internal/discovery/ask", "internal/discovery/keeper",
			"internal/platform/digest",
			"internal/platform/clock", "internal/coordination/bootstrap", "internal/coordination/transport",
		},
		[]string{"records.MaxOffer", "protocol.AskedAtOnce", "protocol.SyncEvery", "keep.JoiningGrace"}
}

// checkLimits compares the table of limits with the constants.
func checkLimits(m *module, page string) (all []string) {
	rows := make(map[string]string)
	row := regexp.MustCompile("`([a-z]+\\.[A-Za-z]+)` ([0-9,]+(?: (?:KiB|MiB|s|min|h)\\b)?)")
	for _, r := range row.FindAllStringSubmatch(page, -1) {
		rows[r[1]] = r[2]
	}
	folders, ownMatter := limited()
	seen := make(map[string]bool)
	for _, p := range m.packages {
		p.constants(func(name string, e ast.Expr) {
			full := p.name + "." + name
			n, isNumber := p.number(e)
			stated, inTable := rows[full]
			switch {
			case !isNumber, slices.Contains(ownMatter, full):
			case inTable:
				if want, err := quantity(stated); err != nil || want != n {
					all = append(all, fmt.Sprintf("%s states %s for %s, which is %d (times are in nanoseconds)", wirePage, stated, full, n))
				}
				seen[full] = true
			case ast.IsExported(name) && slices.Contains(folders, p.dir):
				all = append(all, fmt.Sprintf("%s has no row for the limit %s of %s", wirePage, full, p.dir))
			}
		})
	}
	for _, full := range slices.Sorted(maps.Keys(rows)) {
		if !seen[full] {
			all = append(all, fmt.Sprintf("%s has a row for %s, which is no number in the code", wirePage, full))
		}
	}
	return all
}

// number evaluates a whole number or a duration.
func (p *pkg) number(e ast.Expr) (int64, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		n, err := strconv.ParseInt(e.Value, 0, 64)
		return n, err == nil && e.Kind == token.INT
	case *ast.ParenExpr:
		return p.number(e.X)
	case *ast.Ident:
		if c := p.constant(e.Name); c != nil && e.Name != "iota" {
			return p.number(c)
		}
	case *ast.SelectorExpr:
		return p.foreign(e)
	case *ast.BinaryExpr:
		x, okX := p.number(e.X)
		y, okY := p.number(e.Y)
		return calculate(e.Op, x, y, okX && okY)
	}
	return 0, false
}

// foreign evaluates a constant of another package.
func (p *pkg) foreign(e *ast.SelectorExpr) (int64, bool) {
	from, name := p.qualified(e)
	if from == "time" {
		units := map[string]time.Duration{"Hour": time.Hour, "Minute": time.Minute, "Second": time.Second, "Millisecond": time.Millisecond}
		return int64(units[name]), units[name] > 0
	}
	dir, ok := p.mod.folder(from)
	if !ok {
		return 0, false
	}
	i := slices.IndexFunc(p.mod.packages, func(q *pkg) bool { return q.dir == dir })
	if i < 0 {
		return 0, false
	}
	c := p.mod.packages[i].constant(name)
	if c == nil {
		return 0, false
	}
	return p.mod.packages[i].number(c)
}

func calculate(op token.Token, x, y int64, ok bool) (int64, bool) {
	switch op {
	case token.ADD:
		return x + y, ok
	case token.SUB:
		return x - y, ok
	case token.MUL:
		return x * y, ok
	case token.QUO:
		return x / max(y, 1), ok && y > 0
	case token.SHL:
		return x << uint(max(y, 0)), ok && y >= 0 && y < 63
	}
	return 0, false
}

// quantity parses a value of the table: "1,000", "4 KiB", "2 min".
func quantity(s string) (int64, error) {
	digits, unit, _ := strings.Cut(s, " ")
	units := map[string]int64{
		"": 1, "KiB": 1 << 10, "MiB": 1 << 20,
		"s": int64(time.Second), "min": int64(time.Minute), "h": int64(time.Hour),
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(digits, ",", ""), 10, 64)
	if err == nil && units[unit] == 0 {
		err = fmt.Errorf("the unit %q is unknown", unit)
	}
	return n * units[unit], err
}

// TestWirePageNotices gives the check a module and pages with one fault each.
func TestWirePageNotices(t *testing.T) {
	m, err := load(fstest.MapFS{
		"go.mod": {Data: []byte("module example.org/m\n")},
		"pkg/records/a.go": {Data: []byte(`package records

import (
	"strconv"
	"time"
)

const (
	Max  = 3 << 10
	Life = 2 * Max * time.Second
	tag  = "blackhole-tag"
	part = "x"
	v    = 1
)

func f(n name, id string) { _, _ = n.Protocol(part+"/"+id, "1.0.0"), n.Topics("t", strconv.Itoa(v)) }
`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	good := strings.Join(formsOfName(), "\n") + `
blackhole-tag /blackhole/NAME/x/ID/1.0.0 /blackhole/NAME/t/1/
- ` + "`records.Max` 3 KiB, `records.Life` 6,144 s" + ` of life
`
	if found, _ := checkWire(m, good); len(found) > 0 {
		t.Errorf("a faultless page: %v", found)
	}
	for fault, page := range map[string]string{
		"does not name blackhole-tag":                 strings.Replace(good, "blackhole-tag", "", 1),
		"does not name /blackhole/NAME/x/ID/1.0.0":    strings.Replace(good, "x/ID/1.0.0", "x/ID/2.0.0", 1),
		"does not name /blackhole/NAME/t/1/":          strings.Replace(good, "/t/1", "/t/2", 1),
		"does not name _blackhole-NAME._udp":          strings.Replace(good, "_udp", "_tcp", 1),
		"no row for the limit records.Max":            strings.Replace(good, "`records.Max`", "`Max`", 1),
		"states 4 KiB for records.Max, which is 3072": strings.Replace(good, "3 KiB", "4 KiB", 1),
		"a row for records.Gone":                      good + "- `records.Gone` 1\n",
	} {
		found, _ := checkWire(m, page)
		if len(found) != 1 || !strings.Contains(found[0], fault) {
			t.Errorf("want one finding %q, got %q", fault, found)
		}
	}
}
