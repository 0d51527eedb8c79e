package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// A sample is a tiny module and the places where one rule must find a fault.
type sample struct {
	rule  string
	name  string
	files files
	want  []string // file:line, in order; none: the rule must stay silent
}

// files maps paths to source text. The module is called m.
type files map[string]string

func TestCheckers(t *testing.T) {
	samples := slices.Concat(importSamples(), ownerSamples(), configSamples(), stateSamples())
	fails, passes := make(map[string]bool), make(map[string]bool)
	for _, s := range samples {
		t.Run(s.rule+"/"+s.name, func(t *testing.T) {
			var got []string
			for _, f := range check(t, s) {
				got = append(got, fmt.Sprintf("%s:%d", f.file, f.line))
			}
			if !slices.Equal(got, s.want) {
				t.Errorf("found %q, want %q", got, s.want)
			}
		})
		fails[s.rule] = fails[s.rule] || len(s.want) > 0
		passes[s.rule] = passes[s.rule] || len(s.want) == 0
	}
	for _, r := range rules() {
		if !fails[r.name] || !passes[r.name] {
			t.Errorf("rule %s needs a sample that breaks it and one that does not", r.name)
		}
	}
}

func check(t *testing.T, s sample) []finding {
	t.Helper()
	i := slices.IndexFunc(rules(), func(r rule) bool { return r.name == s.rule })
	if i < 0 {
		t.Fatalf("no rule %q", s.rule)
	}
	m, err := load(s.files.fs())
	if err != nil {
		t.Fatal(err)
	}
	return rules()[i].check(m)
}

func (f files) fs() fstest.MapFS {
	fsys := fstest.MapFS{"go.mod": {Data: []byte("module m\n\ngo 1.26\n")}}
	for name, text := range f {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

// numbered is n lines made from format and their numbers.
func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format+"\n", i)
	}
	return b.String()
}

func importing(name, path string) string { return fmt.Sprintf("package %s\nimport _ %q\n", name, path) }

func TestLoadSkipsWhatGoSkips(t *testing.T) {
	m, err := load(files{
		"pkg/geo/geo.go":            "package geo\n",
		"pkg/geo/testdata/x/x.go":   "not even Go",
		"pkg/_draft/draft.go":       "package draft\n",
		".hidden/hidden.go":         "package hidden\n",
		"internal/tools/go.mod":     "module m/internal/tools\n",
		"internal/tools/tools.go":   "package tools\n",
		"proto/x/v1/x.proto":        "syntax = \"proto3\";\n",
		"pkg/geo/geo_test.go":       "package geo_test\n",
		"pkg/geo/geo_plan9.go":      "package geo\n",
		"pkg/geo/deep/deep_test.go": "package deep\n",
	}.fs())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range m.packages {
		got = append(got, fmt.Sprintf("%s %s %d", p.dir, p.name, len(p.files)))
	}
	want := []string{"pkg/geo geo 3", "pkg/geo/deep deep 1"}
	if !slices.Equal(got, want) {
		t.Errorf("loaded %q, want %q", got, want)
	}
}

func TestExceptionMatchesOneSubject(t *testing.T) {
	e := exception{rule: "state", where: "cmd/blackholed", subject: "version", reason: "set by the linker"}
	f := finding{file: "cmd/blackholed/main.go", subject: "version"}
	for _, tc := range []struct {
		name string
		rule string
		f    finding
		want bool
	}{
		{"same", "state", f, true},
		{"other rule", "owner", f, false},
		{"other subject", "state", finding{file: f.file, subject: "state"}, false},
		{"folder with the same beginning", "state", finding{file: "cmd/blackholed2/main.go", subject: "version"}, false},
	} {
		if got := e.permits(tc.rule, tc.f); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestFloorsAreWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range floors() {
		if seen[r.path] {
			t.Errorf("%s is listed twice", r.path)
		}
		seen[r.path] = true
		for _, other := range slices.Concat(r.only, r.users) {
			if _, ok := roomOf(other); !ok {
				t.Errorf("%s names %s, which has no floor", r.path, other)
			}
		}
	}
	for _, n := range slices.Concat(nouns(), pure()) {
		if !seen[n] {
			t.Errorf("%s has no floor", n)
		}
	}
}
