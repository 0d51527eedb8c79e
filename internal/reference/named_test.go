package reference_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/consulapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
)

// documents calls f with the name, relative to the root, and the text of each document.
func documents(t *testing.T, f func(name, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata" || entry.Name() == "node_modules") {
			return skipOr(err)
		}
		if filepath.Ext(path) == ".md" {
			name, err := filepath.Rel(root, path)
			require.NoError(t, err)
			f(filepath.ToSlash(name), source(t, filepath.ToSlash(name)))
		}
		return nil
	}))
}

// TestNamed: what a document names exists: the pages and sections of its links, the paths of the API, and in code spans,
// which tables have most of, the files and folders of this tree, exported names of its packages, tests, settings and
// metrics.
func TestNamed(t *testing.T) {
	p := newProgram(t)
	world := known{operations(t), tests(t), source(t, "docs/reference/settings.md"), source(t, "docs/metrics.md")}
	found := map[string]int{}
	documents(t, func(name, text string) {
		past := name == "CHANGELOG.md" // which names what was there, too
		for _, fault := range p.misnamed(text) {
			if !past {
				t.Errorf("%s: %s", name, fault)
			}
		}
		for _, m := range named(text) {
			if past && m.kind != "link" {
				continue
			}
			found[m.kind]++
			if fault := world.fault(name, m); fault != "" {
				t.Errorf("%s: %s", name, fault)
			}
		}
	})
	for _, kind := range []string{"link", "operation", "file", "test", "setting", "metric"} {
		require.Greater(t, found[kind], 10, "the search for each %s is broken", kind)
	}
}

// mention is something that a document names.
type mention struct{ kind, text string }

// named returns what a document names.
func named(text string) (all []mention) {
	for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
			all = append(all, mention{"link", m[1]})
		}
	}
	for _, m := range regexp.MustCompile("((?:GET|PUT|POST|DELETE|HEAD) )?(?:https?://)?[a-z0-9.:-]*(/v1/[A-Za-z0-9_{}/.%-]*)").FindAllStringSubmatch(text, -1) {
		if !strings.HasSuffix(m[2], ".proto") {
			all = append(all, mention{"operation", m[1] + strings.TrimRight(m[2], ".")})
		}
	}
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
		for kind, form := range map[string]string{
			"file":    `^(?:\./)?((?:internal|pkg|docs|cmd|testnet|bench|proto|deploy|examples|\.ci)/[A-Za-z0-9_/-]*(?:\.[a-z0-9]+)*)$`,
			"test":    `^((?:Test|Fuzz|Benchmark)[A-Z]\w*)$`,
			"setting": `^((?:coordination|discovery|agent|network|connections|log|auth|data|listen|profile)\.[a-z_]+(?:\.[a-z_]+)*)$`,
			"metric":  `^(blackhole_[a-z0-9_]+)$`,
		} {
			if s := regexp.MustCompile(form).FindStringSubmatch(m[1]); s != nil && !(kind == "setting" && regexp.MustCompile(`\.(?:proto|txt|key)$`).MatchString(s[1])) { // names of files
				all = append(all, mention{kind, s[1]})
			}
		}
	}
	return all
}

// known is what exists.
type known struct {
	operations []string // "GET /v1/services/{service}"
	tests      []string
	settings   string
	metrics    string
}

// fault says what is wrong with a mention in a document, or nothing.
func (k known) fault(document string, m mention) string {
	right := true
	switch m.kind {
	case "link":
		file, section, _ := strings.Cut(m.text, "#")
		if file = path.Join(path.Dir(document), file); strings.HasPrefix(m.text, "#") {
			file = document
		}
		info, err := os.Stat(filepath.Join(root, filepath.FromSlash(file)))
		right = err == nil
		if right && section != "" && !info.IsDir() {
			data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
			right = err == nil && slices.Contains(sections(string(data)), section)
		}
	case "operation":
		right = slices.ContainsFunc(k.operations, func(o string) bool { return serves(o, m.text) })
	case "file":
		_, err := os.Stat(filepath.Join(root, filepath.FromSlash(m.text)))
		right = err == nil
	case "test":
		right = slices.Contains(k.tests, m.text)
	case "setting":
		right = strings.Contains(k.settings, "`"+m.text)
	case "metric":
		right = strings.Contains(k.metrics, "`"+m.text)
	}
	if right {
		return ""
	}
	return "there is no " + m.kind + " " + m.text
}

// sections are the anchors of the headings of a document, as GitHub makes them.
func sections(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchor := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(anchor, " ", "-"))
	}
	return all
}

// serves reports whether an operation serves a path, or begins with one that ends in "/". A name in braces in the path stands
// for one in the operation.
func serves(operation, asked string) bool {
	method, route, _ := strings.Cut(operation, " ")
	if m, p, ok := strings.Cut(asked, " "); ok {
		if asked = p; m != method && !(m == "HEAD" && method == "GET") {
			return false
		}
	}
	parts, wanted := strings.Split(route, "/"), strings.Split(asked, "/")
	if wanted[len(wanted)-1] == "" {
		wanted = wanted[:len(wanted)-1]
		parts = parts[:min(len(parts), len(wanted))]
	}
	if strings.HasSuffix(route, "...}") {
		wanted = wanted[:min(len(parts), len(wanted))]
	}
	return slices.EqualFunc(parts, wanted, func(part, word string) bool {
		return part == word || strings.HasPrefix(part, "{")
	})
}

// operations are those of the OpenAPI document, and of the front end for clients of Consul.
func operations(t *testing.T) (all []string) {
	t.Helper()
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	require.NoError(t, json.Unmarshal([]byte(openapi.Document()), &document))
	for route, methods := range document.Paths {
		for method := range methods {
			all = append(all, strings.ToUpper(method)+" "+route)
		}
	}
	consul, err := consulapi.New(consulapi.Config{Prefix: "consul/", Agent: &consulapi.Agent{}})
	require.NoError(t, err)
	for _, r := range consul.Routes() {
		if strings.Contains(r.Pattern, " ") { // the others answer 404
			all = append(all, r.Pattern)
		}
	}
	return all
}

// tests are the names of all tests, fuzz targets and benchmarks.
func tests(t *testing.T) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() != "testdata" {
			folder, err := filepath.Rel(root, path)
			names = append(names, functions(t, filepath.ToSlash(folder))...)
			return err
		}
		return err
	}))
	return names
}

// TestNamedNotices gives the check documents with one fault each.
func TestNamedNotices(t *testing.T) {
	world := known{[]string{"GET /v1/keys/{key}", "GET /v1/keys", "GET /v1/all/{key...}"}, []string{"TestA"}, "| `network.name` |", "| `blackhole_x` |"}
	for text, fault := range map[string]string{
		"[a](README.md) [b](docs/) [c](README.md#read-on) [d](https://example.org/x)": "",
		"[a](NOTHING.md)":                "there is no link NOTHING.md",
		"[a](README.md#nothing-here)":    "there is no link README.md#nothing-here",
		"GET /v1/keys/a, /v1/keys/":      "",
		"GET /v1/all/a/b":                "",
		"`PUT /v1/keys/a`":               "there is no operation PUT /v1/keys/a",
		"curl 127.0.0.1:8500/v1/kv/a":    "there is no operation /v1/kv/a",
		"`internal/reference/doc.go`":    "",
		"| `internal/nowhere` |":         "there is no file internal/nowhere",
		"`TestA` `network.name`":         "",
		"`TestB`":                        "there is no test TestB",
		"`network.nam`, `network.other`": "there is no setting network.other",
		"`blackhole_y`":                  "there is no metric blackhole_y",
	} {
		got := ""
		for _, m := range named(text) {
			got += world.fault("README.md", m)
		}
		require.Equal(t, fault, got, text)
	}
}
