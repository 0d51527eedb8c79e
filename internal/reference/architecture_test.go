package reference_test

import (
	"errors"
	"fmt"
	"go/ast"
	values "go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const figuresHead = "## Figures of the tree\n"

// TestArchitecture: what ARCHITECTURE.md names is in the source, each number of its text is a constant beside its name,
// and the figures at its end are those of the tree. "go generate ./internal/reference" writes the figures.
func TestArchitecture(t *testing.T) {
	page := source(t, "ARCHITECTURE.md")
	text, figures, ok := strings.Cut(page, figuresHead)
	require.True(t, ok)
	for _, fault := range newProgram(t).faults(text) {
		t.Error("ARCHITECTURE.md: " + fault)
	}
	want := figuresOfTree(t, figures)
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(root, "ARCHITECTURE.md"), []byte(text+figuresHead+want), 0o600))
		figures = want
	}
	require.Equal(t, want, figures, "run go generate ./internal/reference")
}

// program is the source of the product, as far as a page names it.
type program struct {
	files map[string]bool     // base names of Go files
	dirs  map[string][]string // folders by the name of their package
	fset  *token.FileSet
	time  *types.Package // with what constants need of it

	checked map[string]*types.Package // by folder
}

func newProgram(t *testing.T) *program {
	t.Helper()
	p := &program{fset: token.NewFileSet(), files: map[string]bool{}, dirs: map[string][]string{}}
	p.checked = map[string]*types.Package{}
	clock, err := parser.ParseFile(p.fset, "time.go", "package time\ntype Duration int64\nconst (\n"+
		"Millisecond Duration = 1e6\nSecond = 1e3 * Millisecond\nMinute = 60 * Second\nHour = 60 * Minute\n)", 0)
	require.NoError(t, err)
	p.time, err = (&types.Config{}).Check("time", p.fset, []*ast.File{clock}, nil)
	require.NoError(t, err)
	packages(t, func(dir string) { p.dirs[path.Base(dir)] = append(p.dirs[path.Base(dir)], dir) })
	require.NoError(t, filepath.WalkDir(root, func(at string, entry fs.DirEntry, err error) error {
		p.files[filepath.Base(at)] = true
		return err
	}))
	return p
}

// faults returns what the text of a page has wrong: a constant of another value, a number that stands without a
// constant, and what misnamed finds. Blocks of code, tables, paths and links have other numbers.
func (p *program) faults(page string) []string {
	page = regexp.MustCompile("(?s)```.*?```|(?m)^\\|.*$").ReplaceAllString(page, "")
	page = regexp.MustCompile(`\]\([^)]*\)`).ReplaceAllString(page, "]")
	all := p.misnamed(page)
	bound := regexp.MustCompile("`([a-z0-9]+)\\.([A-Za-z]+)` ([0-9][0-9,]*(?: (?:KiB|MiB|s|min|h)\\b)?)")
	for _, m := range bound.FindAllStringSubmatch(page, -1) {
		value, found := p.constant(m[1], m[2])
		if stated := quantity(m[3]); !found {
			all = append(all, fmt.Sprintf("no constant %s.%s is a number", m[1], m[2]))
		} else if stated != value {
			all = append(all, fmt.Sprintf("%s for %s.%s, which is %d (times in nanoseconds)", m[3], m[1], m[2], value))
		}
	}
	page = regexp.MustCompile("`[^`]*`").ReplaceAllString(bound.ReplaceAllString(page, ""), "")
	for _, number := range regexp.MustCompile(`\b[0-9][0-9,.]*\b`).FindAllString(page, -1) {
		all = append(all, "the number "+number+" stands without the constant that has it")
	}
	return all
}

// misnamed returns the Go files and the exported names of packages that a page has in code spans and that are not there.
func (p *program) misnamed(page string) (all []string) {
	member := regexp.MustCompile("`(?:[a-z0-9/]*/)?([a-z0-9]+)\\.([A-Z]\\w+)(?:\\.(\\w+))?[^`\n]*`")
	for _, m := range member.FindAllStringSubmatch(page, -1) {
		if len(p.dirs[m[1]]) > 0 && !p.declares(m[1], m[2], m[3]) {
			all = append(all, strings.TrimSuffix(fmt.Sprintf("no package %s declares %s.%s", m[1], m[2], m[3]), "."))
		}
	}
	for _, m := range regexp.MustCompile("`(?:[a-z0-9/]*/)?(\\w+\\.go)`").FindAllStringSubmatch(page, -1) {
		if !p.files[m[1]] {
			all = append(all, "no file "+m[1])
		}
	}
	return all
}

// check type-checks a folder as far as its constants need: of imports it has package time.
func (p *program) check(dir string) *types.Package {
	if known := p.checked[dir]; known != nil {
		return known
	}
	var files []*ast.File
	all, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	for _, name := range all {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, broken := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
		err = errors.Join(err, broken)
		files = append(files, f)
	}
	if err != nil {
		return types.NewPackage(dir, path.Base(dir))
	}
	config := types.Config{Importer: p, Error: func(error) {}, IgnoreFuncBodies: true}
	p.checked[dir], _ = config.Check(dir, p.fset, files, nil) // errors concern imports that are left out
	return p.checked[dir]
}

// Import implements types.Importer.
func (p *program) Import(name string) (*types.Package, error) {
	if name == "time" {
		return p.time, nil
	}
	left := types.NewPackage(name, path.Base(name))
	left.MarkComplete()
	return left, nil
}

func (p *program) constant(pkg, name string) (value int64, found bool) {
	for _, dir := range p.dirs[pkg] {
		if c, ok := p.check(dir).Scope().Lookup(name).(*types.Const); ok && !found {
			value, found = values.Int64Val(values.ToInt(c.Val()))
		}
	}
	return value, found
}

// declares reports whether a package of this name declares a name, with a field or method if one is given.
func (p *program) declares(pkg, name, part string) bool {
	return slices.ContainsFunc(p.dirs[pkg], func(dir string) bool {
		declared := p.check(dir).Scope().Lookup(name)
		if declared == nil || part == "" {
			return declared != nil
		}
		found, _, _ := types.LookupFieldOrMethod(declared.Type(), true, p.check(dir), part)
		return found != nil
	})
}

// quantity reads a number of a page: "1,000", "4 KiB", "2 min"; -1 for none.
func quantity(text string) int64 {
	digits, unit, _ := strings.Cut(text, " ")
	units := map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20,
		"s": int64(time.Second), "min": int64(time.Minute), "h": int64(time.Hour)}
	n, err := strconv.ParseInt(strings.ReplaceAll(digits, ",", ""), 10, 64)
	if err != nil {
		return -1
	}
	return n * units[unit]
}

// figuresOfTree returns the figures. Lines change with each commit, so those of the page stay until they are 3 % off.
func figuresOfTree(t *testing.T, page string) string {
	t.Helper()
	lines, kilobytes := product(t)
	lines, kilobytes = (lines+50)/100*100, (kilobytes+5)/10*10
	stated := regexp.MustCompile(`: ([0-9,]+) and ([0-9,]+) KB`).FindStringSubmatch(page)
	if stated != nil {
		l, k := int(quantity(stated[1])), int(quantity(stated[2]))
		if near(l, lines) && near(k, kilobytes) {
			lines, kilobytes = l, k
		}
	}
	all, ofDiscovery := 0, 0
	packages(t, func(dir string) {
		ofTests := `^internal/(?:sim|archtest|tools|reference)\b|test$|/simulation$|/audit$|/collector$|/ops$`
		if regexp.MustCompile(ofTests).MatchString(dir) {
			return
		}
		all++
		if strings.HasPrefix(dir, "internal/discovery") {
			ofDiscovery++
		}
	})
	modules := 0
	for _, m := range regexp.MustCompile(`(?m)^\t\S+ v\S+(.*)$`).FindAllStringSubmatch(source(t, "go.mod"), -1) {
		if !strings.Contains(m[1], "indirect") {
			modules++
		}
	}
	return fmt.Sprintf("\n`.ci/figures` has them for each room, and beside an earlier commit.\n\n"+
		"- hand-written lines and size of the product: %s and %s KB, within 3 %%\n"+
		"- packages of the product: %d, of them %d of the discovery plane\n"+
		"- modules that `go.mod` names directly: %d\n",
		number(uint64(lines)), number(uint64(kilobytes)), all, ofDiscovery, modules)
}

func near(a, b int) bool { return 100*max(a-b, b-a) <= 3*b }

// product counts lines and kilobytes of the product by the rule of .ci/figures, which has the names of the harness.
func product(t *testing.T) (lines, kilobytes int) {
	t.Helper()
	m := regexp.MustCompile(`file ~ /(_test\\\.go.*)/\) kind = "harness"`).FindStringSubmatch(source(t, ".ci/figures"))
	require.NotNil(t, m, "the rule of .ci/figures")
	harness := regexp.MustCompile(strings.ReplaceAll(m[1], `\/`, "/"))
	bytes := 0
	require.NoError(t, filepath.WalkDir(root, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules") {
			return skipOr(err)
		}
		name, err := filepath.Rel(root, at)
		name = filepath.ToSlash(name)
		generated := regexp.MustCompile(`\.pb(?:\.gw)?\.go$`).MatchString(name)
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || generated || harness.MatchString(name) {
			return err
		}
		text := source(t, name)
		lines, bytes = lines+strings.Count(text, "\n"), bytes+len(text)
		return nil
	}))
	return lines, bytes / 1000
}

// TestArchitectureNotices gives the check pages with one fault each.
func TestArchitectureNotices(t *testing.T) {
	p := newProgram(t)
	for page, fault := range map[string]string{
		"`records.MaxSize` 4 KiB, `records.MaxTTL` 48 h, `offers.MaxMaxServices` x, [a](12.md)": "",
		"```\n3\n``` `coordination/leader.Tracker` in `house_test.go`, `seat.go`":               "",
		"`records.MaxSize` 5 KiB":                        "5 KiB for records.MaxSize, which is 4096 (times in nanoseconds)",
		"`records.largest` 4 KiB":                        "no constant records.largest is a number",
		"`records.Nothing`":                              "no package records declares Nothing",
		"`records.Record.Nothing`, `records.Record.Key`": "no package records declares Record.Nothing",
		"`nowhere.go`":                                   "no file nowhere.go",
		"at most 64 workers":                             "the number 64 stands without the constant that has it",
	} {
		require.Equal(t, fault, strings.Join(p.faults(page), "; "), page)
	}
}
