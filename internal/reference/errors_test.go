package reference_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// constant is a constant of the program with its comment.
type constant struct{ name, value, comment string }

// constants returns the constants of a folder with comments, in their order.
func constants(t *testing.T, folder string) (all []constant) {
	t.Helper()
	files := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(folder), "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.CONST {
				all = append(all, constantsOf(t, files, d)...)
			}
		}
	}
	return all
}

func constantsOf(t *testing.T, files *token.FileSet, d *ast.GenDecl) (all []constant) {
	t.Helper()
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		c := constant{name: v.Names[0].Name}
		for _, doc := range []*ast.CommentGroup{v.Comment, v.Doc} {
			if doc != nil {
				c.comment = doc.Text()
			}
		}
		if c.comment == "" && len(d.Specs) == 1 && d.Doc != nil {
			c.comment = d.Doc.Text()
		}
		if len(v.Values) > 0 {
			from, to := files.Position(v.Values[0].Pos()), files.Position(v.Values[0].End())
			path, err := filepath.Rel(root, from.Filename)
			require.NoError(t, err)
			c.value = source(t, filepath.ToSlash(path))[from.Offset:to.Offset]
		}
		all = append(all, c)
	}
	return all
}

// meaning is a comment without the name that it begins with.
func (c constant) meaning() string {
	text := strings.Join(strings.Fields(c.comment), " ")
	for _, begin := range []string{c.name + " means that ", c.name + " means ", c.name + ": ", c.name + " bounds ", c.name + " is ", c.name + " "} {
		if rest, ok := strings.CutPrefix(text, begin); ok {
			return rest
		}
	}
	return text
}

func errorsPage(t *testing.T) string {
	t.Helper()
	b := begin("Errors and exit codes", "## Kinds of errors\n\nHTTP answers `{\"error\",\"message\",\"field\",\"value\",\"details\"}`, where `error` is the name below or a more exact\none; gRPC has the same as a detail `blackhole.api.v1.Error`. In parentheses: status\nand `error` of HTTP, code of gRPC, exit code of a command.")
	answers := pairs(t, "internal/frontend/httpapi/errors.go", `fault\.(\w+): +\{(?:http\.Status)?(\w+), "(\w+)"\}`)
	grpc := map[string]string{}
	cases := regexp.MustCompile(`case ((?:fault\.\w+(?:, )?)+):\s+return codes\.(\w+)`)
	for _, m := range cases.FindAllStringSubmatch(source(t, "internal/frontend/grpcapi/errors.go"), -1) {
		for kind := range strings.SplitSeq(m[1], ", ") {
			grpc[strings.TrimPrefix(kind, "fault.")] = m[2]
		}
	}
	codes := exitCodes(t)
	b.WriteString("\n")
	kinds := 0
	for _, c := range constants(t, "pkg/fault") {
		if !token.IsExported(c.name) {
			continue
		}
		kinds++
		status := answers[c.name]
		if status == nil {
			status = []string{"InternalServerError", "internal_error"}
		}
		answer := grpc[c.name]
		if answer == "" {
			answer = "Internal"
		}
		b.WriteString("- **" + c.name + "** (" + statusNumber(status[0]) + " " + code(status[1]) + ", " + answer + ", " + codes[c.name] + "): " + strings.TrimSuffix(cell(c.meaning()), ".") + "\n")
	}
	require.Greater(t, kinds, 10)
	exits(t, b)
	return b.String()
}

// statusNumber returns the number of a status of net/http, by its name there.
func statusNumber(name string) string {
	for number := range 600 {
		if strings.ReplaceAll(http.StatusText(number), " ", "") == name {
			return strconv.Itoa(number)
		}
	}
	return name
}

// pairs returns the groups of all matches of a pattern in a file, by the first group.
func pairs(t *testing.T, path, pattern string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(source(t, path), -1) {
		all[m[1]] = m[2:]
	}
	require.NotEmpty(t, all, path)
	return all
}

// exitRow is a row of the table of exit codes.
type exitRow struct{ code, meaning, kinds string }

func exitTable(t *testing.T) (all []exitRow) {
	t.Helper()
	named := map[string]string{}
	for _, c := range constants(t, "internal/cli/exit") {
		if _, err := strconv.Atoi(c.value); err == nil {
			named[c.name] = c.value
		}
	}
	rows := regexp.MustCompile(`(?m)^\t\t\{(\w+), "([^"]+)", (nil|\[\]fault\.Kind\{([^}]*)\})\}`)
	for _, m := range rows.FindAllStringSubmatch(source(t, "internal/cli/exit/exit.go"), -1) {
		if value, ok := named[m[1]]; ok {
			m[1] = value
		}
		all = append(all, exitRow{m[1], m[2], m[4]})
	}
	require.Greater(t, len(all), 8)
	return all
}

func exitCodes(t *testing.T) map[string]string {
	t.Helper()
	codes := map[string]string{}
	for _, r := range exitTable(t) {
		for kind := range strings.SplitSeq(r.kinds, ", ") {
			codes[strings.TrimPrefix(kind, "fault.")] = r.code
		}
	}
	return codes
}

func exits(t *testing.T, b *strings.Builder) {
	t.Helper()
	b.WriteString("\n## Exit codes\n\n`lock hold` and `service require` with a command exit with the code of the command, 128 plus the signal that ended it, or 127 for an unknown\ncommand.\n")
	b.WriteString("\n")
	for _, r := range exitTable(t) {
		b.WriteString("- " + r.code + ": " + cell(r.meaning) + "\n")
	}
}

// head12 returns the first sentences of a comment, as many as have 12 words together, and at least one.
func head12(comment string) string {
	head, rest, more := strings.Cut(cell(comment), ". ")
	for more {
		var next string
		next, rest, more = strings.Cut(rest, ". ")
		if len(strings.Fields(head+next)) > 12 {
			break
		}
		head += ". " + next
	}
	return strings.TrimSuffix(head, ".")
}

// limitsPage lists the constants that bound what callers and peers may send or hold.
func limitsPage(t *testing.T) string {
	t.Helper()
	b := begin("Limits", "Constants of the program. [wire.md](../wire.md#limits) has those on which peers must agree, [settings](settings.md) those that an operator sets. Who reaches a limit gets an\nerror that names it. Every limit has a test, and so has every pool: `internal/reference/pools_test.go` names it.")
	folders := map[string][]constant{}
	for _, top := range []string{"pkg", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() || d.Name() == "testdata" || strings.HasSuffix(d.Name(), "test") {
				return err
			}
			folder, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			for _, c := range constants(t, filepath.ToSlash(folder)) {
				if strings.HasPrefix(c.name, "Max") && c.comment != "" {
					folders[filepath.ToSlash(folder)] = append(folders[filepath.ToSlash(folder)], c)
				}
			}
			return nil
		}))
	}
	require.Greater(t, len(folders), 5)
	var limits []string
	for folder, all := range folders {
		for _, c := range all {
			limits = append(limits, folder+"."+c.name)
		}
	}
	tests, wire := testsOfLimits(t, limits), source(t, "docs/wire.md")
	writePools(t, b, tests)
	b.WriteString("\n## Constants\n\n")
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		for _, c := range folders[folder] {
			require.NotEmpty(t, tests.of(t, folder+"."+c.name))
			if strings.Contains(wire, code(path.Base(folder)+"."+c.name)) {
				continue
			}
			name := code(path.Base(folder) + "." + c.name)
			b.WriteString("- " + name + " " + readable(t, c.value) + ": " + head12(c.meaning()) + "\n")
		}
	}
	return b.String()
}

// readable returns the value of a limit as a document says it, from its expression.
func readable(t *testing.T, value string) string {
	t.Helper()
	if size := regexp.MustCompile(`^(\d+) << (10|20)$`).FindStringSubmatch(value); size != nil {
		return size[1] + map[string]string{"10": " KiB", "20": " MiB"}[size[2]]
	}
	if days := regexp.MustCompile(`^(\d+) \* 24 \* time\.Hour$`).FindStringSubmatch(value); days != nil {
		return days[1] + " days"
	}
	if length := regexp.MustCompile(`^(\d+) \* time\.Minute$`).FindStringSubmatch(value); length != nil {
		return length[1] + " min"
	}
	if n, err := strconv.ParseUint(strings.ReplaceAll(value, "_", ""), 10, 64); err == nil {
		return number(n)
	}
	require.Regexp(t, `^\w+\.\w+$`, value, "the form of this limit has no text yet")
	return "as " + code(value)
}
