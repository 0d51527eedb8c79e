package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// TestSpecifications plays testdata/specifications.txt, whose head explains its form, against a peer. Each row of
// docs/differences.md is named there, and each name there is a row of docs/differences.md.
func TestSpecifications(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("processes on loopback")
	}
	differences := differences(t)
	table := &specifications{stage: newStage(t, "", nil, tools()), known: map[string]string{}}
	table.on = table.stage.machine(t, "")
	for _, r := range specificationRows(t) {
		if name, command, ok := r.peer(); ok { // outlives the row
			table.on = table.stage.machine(t, name)
			if command != "" {
				table.on.run(t, command)
			}
			continue
		}
		t.Run(fmt.Sprintf("%s, line %d", r.section, r.line), func(t *testing.T) { table.play(t, r) })
		for _, d := range r.differs {
			n := 0
			for text := range differences {
				if strings.HasPrefix(text, d) {
					differences[text] = true
					n++
				}
			}
			require.Equal(t, 1, n, "line %d: the rows of docs/differences.md that begin with %q", r.line, d)
		}
	}
	for text, named := range differences {
		require.True(t, named, "no row of testdata/specifications.txt names the difference %q", text)
	}
}

// differences are the rows and the bullets of docs/differences.md.
func differences(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile(root + "/docs/differences.md")
	require.NoError(t, err)
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(?:\| |- )(.*)`).FindAllStringSubmatch(string(data), -1) {
		if !strings.HasPrefix(m[1], "specification |") {
			all[m[1]] = false
		}
	}
	require.NotEmpty(t, all)
	return all
}

// specificationRow is a request, what its answer must be, and the differences that it shows.
type specificationRow struct {
	line           int
	section, ask   string
	wants, differs []string
}

// peer returns the machine and the command of a row that changes the peer.
func (r specificationRow) peer() (name, command string, ok bool) {
	rest, ok := strings.CutPrefix(r.ask, "peer ")
	name, command, _ = strings.Cut(rest, " ")
	return strings.Trim(name, "-"), command, ok
}

func specificationRows(t *testing.T) (rows []specificationRow) {
	t.Helper()
	data, err := os.ReadFile("testdata/specifications.txt")
	require.NoError(t, err)
	section, last := "", new(string)
	for n, line := range strings.Split(string(data), "\n") {
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(line, "## "):
			section = line[3:]
		case text == "", strings.HasPrefix(line, "#"):
		case text == line:
			rows = append(rows, specificationRow{line: n + 1, section: section, ask: text})
			last = &rows[len(rows)-1].ask
		default:
			r := &rows[len(rows)-1]
			if want, ok := strings.CutPrefix(text, "-> "); ok {
				r.wants = append(r.wants, want)
				last = &r.wants[len(r.wants)-1]
			} else if differs, ok := strings.CutPrefix(text, "! "); ok {
				r.differs = append(r.differs, differs)
			} else {
				*last += " " + text
			}
		}
	}
	for _, r := range rows {
		_, _, peer := r.peer()
		require.True(t, r.wants != nil || peer, "line %d expects nothing", r.line)
	}
	return rows
}

// specifications plays the rows at the peers of a stage.
type specifications struct {
	stage *stage
	on    *machine
	known map[string]string // by name, as in <lease>
}

func (s *specifications) play(t *testing.T, r specificationRow) {
	ask := regexp.MustCompile(`<[a-z_]+>`).ReplaceAllStringFunc(r.ask, func(name string) string {
		if value, ok := s.known[name]; ok {
			return value
		}
		return name
	})
	word, rest, _ := strings.Cut(ask, " ")
	answer := map[string]func() string{
		"$":       func() string { return strings.Join(s.on.run(t, rest), "\n") },
		"in":      func() string { return sources(t, rest) },
		"message": func() string { return schema(t, rest) },
		"grpc":    func() string { return s.call(t, rest) },
	}[word]
	if answer == nil {
		answer = func() string { return s.exchange(t, word, rest) }
	}
	looks := word == "GET" || strings.HasPrefix(rest, "dig ") // what one peer tells another may take a moment
	end, again := time.Now().Add(20*time.Second), time.NewTicker(100*time.Millisecond)
	defer again.Stop()
	for {
		got, wrong := answer(), ""
		for _, want := range r.wants {
			if w := s.unlike(want, got); w != "" {
				wrong += w + "\n"
			}
		}
		if wrong == "" {
			return
		}
		require.True(t, looks && time.Now().Before(end), "%s\n%s\n%.4000s", r.ask, wrong, got)
		<-again.C
	}
}

// exchange sends a request, and returns status, header and body of the answer.
func (s *specifications) exchange(t *testing.T, method, rest string) string {
	t.Helper()
	path, body, _ := strings.Cut(rest, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:"+s.on.words.ports["8500"]+path, nil)
	require.NoError(t, err)
	for { // "Name: value" before the body
		name, more, ok := strings.Cut(body, ": ")
		if !ok || strings.ContainsAny(name, `{"`) {
			break
		}
		value, after, _ := strings.Cut(more, ";")
		r.Header.Set(name, value)
		body = strings.TrimSpace(after)
	}
	r.Body = io.NopCloser(strings.NewReader(body))
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	var header bytes.Buffer
	require.NoError(t, answer.Header.Write(&header))
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return fmt.Sprintf("%d\n%s\n%s", answer.StatusCode, header.String(), text)
}

// call makes a unary call with names without a package, and returns the answer or the error.
func (s *specifications) call(t *testing.T, rest string) string {
	t.Helper()
	name, body, _ := strings.Cut(rest, " ")
	service, method, _ := strings.Cut(name, "/")
	var m protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if d := f.Services().ByName(protoreflect.Name(service)); d != nil {
			m = d.Methods().ByName(protoreflect.Name(method))
		}
		return m == nil
	})
	require.NotNil(t, m, name)
	conn, err := grpc.NewClient("127.0.0.1:"+s.on.words.ports["8502"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	request, response := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	require.NoError(t, protojson.Unmarshal([]byte(body), request))
	if err := conn.Invoke(t.Context(), "/"+name, request, response); err != nil {
		return err.Error()
	}
	text, err := protojson.Marshal(response)
	require.NoError(t, err)
	return string(text)
}

// sources is the text of the files of a pattern.
func sources(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
	require.NoError(t, err)
	require.NotEmpty(t, paths, pattern)
	var all strings.Builder
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		all.Write(data)
	}
	return all.String()
}

// schema returns a message, an enumeration or a service of the schema as JSON.
func schema(t *testing.T, name string) string {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	require.NoError(t, err, name)
	all := map[string]string{}
	switch d := d.(type) {
	case protoreflect.MessageDescriptor:
		for n := range d.Fields().Len() {
			f := d.Fields().Get(n)
			all[string(f.Name())] = fmt.Sprintf("%d %s", f.Number(), typeOf(f))
		}
	case protoreflect.EnumDescriptor:
		for n := range d.Values().Len() {
			all[string(d.Values().Get(n).Name())] = fmt.Sprint(d.Values().Get(n).Number())
		}
	case protoreflect.ServiceDescriptor:
		for n := range d.Methods().Len() {
			m := d.Methods().Get(n)
			stream := map[bool]string{true: "stream "}
			all[string(m.Name())] = stream[m.IsStreamingClient()] + string(m.Input().Name()) + " " + stream[m.IsStreamingServer()] + string(m.Output().Name())
		}
	}
	text, err := json.Marshal(all)
	require.NoError(t, err)
	return string(text)
}

func typeOf(f protoreflect.FieldDescriptor) string {
	name := f.Kind().String()
	switch {
	case f.IsMap():
		return "map " + typeOf(f.MapKey()) + " " + typeOf(f.MapValue())
	case f.Message() != nil:
		name = string(f.Message().Name())
	case f.Enum() != nil:
		name = string(f.Enum().Name())
	}
	if f.IsList() {
		return "repeated " + name
	}
	return name
}

// unlike says how an answer differs from what a row expects: "" if it does not.
func (s *specifications) unlike(want, got string) string {
	if status, more, _ := strings.Cut(want, " "); regexp.MustCompile(`^\d{3}$`).MatchString(status) {
		if !strings.HasPrefix(got, status) {
			return "the status is not " + status
		}
		_, got, _ = strings.Cut(got, "\n\n")
		if want = more; want == "" {
			return ""
		}
	}
	if strings.HasPrefix(want, "/") {
		for name, value := range s.known {
			want = strings.ReplaceAll(want, name, regexp.QuoteMeta(value))
		}
		if !regexp.MustCompile(strings.Trim(want, "/")).MatchString(got) {
			return "no match of " + want
		}
		return ""
	}
	var w, g any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		return "the expectation is no JSON: " + want
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		return "the answer is no JSON"
	}
	return s.unlikeJSON("answer", w, g)
}

func (s *specifications) unlikeJSON(at string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return at + " is no object"
		}
		for key, value := range w {
			if wrong := s.unlikeJSON(at+"."+key, value, g[key]); wrong != "" {
				return wrong
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if n := len(w); ok && n > 0 && w[n-1] == "..." && len(g) >= n-1 {
			w, g = w[:n-1], g[:n-1]
		}
		if !ok || len(w) != len(g) {
			return fmt.Sprintf("%s has not %d elements", at, len(w))
		}
		for n := range w {
			if wrong := s.unlikeJSON(fmt.Sprint(at, "[", n, "]"), w[n], g[n]); wrong != "" {
				return wrong
			}
		}
		return ""
	case string:
		text := fmt.Sprint(got)
		switch {
		case got == nil:
		case w == "*", strings.HasPrefix(w, "~") && regexp.MustCompile("^(?:"+w[1:]+")$").MatchString(text):
			return ""
		case strings.HasPrefix(w, "<"):
			if s.known[w] == "" {
				s.known[w] = text
			}
			w = s.known[w]
			fallthrough
		default:
			if w == text {
				return ""
			}
		}
	default:
		if want == got {
			return ""
		}
	}
	return fmt.Sprintf("%s is %v, not %v", at, got, want)
}
