package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server without a listener.
type fixture struct {
	*Server
	*discoverytest.Harness
	handler http.Handler
}

func newFixture(t testing.TB, edits ...func(*Config)) *fixture {
	t.Helper()
	h := discoverytest.New(t)
	c := Config{Registrar: h, Finder: h, Node: h.Node, Guard: conforming(t), Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("blackhole_up 1\n"))
	})}
	for _, edit := range edits {
		edit(&c)
	}
	s := New(c)
	t.Cleanup(s.Close)
	return &fixture{Server: s, Harness: h, handler: s.Handler()}
}

// object is a JSON object for a client without our types.
type object = map[string]any

// answer is a received answer.
type answer struct {
	*httptest.ResponseRecorder
	json object // nil unless the body is an object
}

// do makes a request after applying edits.
func do(h http.Handler, method, target, body string, edits ...func(*http.Request)) answer {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "localhost:8500"
	for _, edit := range edits {
		edit(r)
	}
	a := answer{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(a, r)
	if json.Unmarshal(a.Body.Bytes(), &a.json) != nil {
		a.json = nil
	}
	return a
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func host(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

// ok makes a request that must succeed.
func (a *fixture) ok(t testing.TB, code int, method, target, body string) object {
	t.Helper()
	got := do(a.handler, method, target, body)
	require.Equal(t, code, got.Code, "%s", got.Body)
	require.Equal(t, "application/json", got.Header().Get("Content-Type"))
	return got.json
}

// refusal is an expected error.
type refusal struct {
	status      int
	code, field string
}

func invalid(field string) refusal { return refusal{400, "validation_error", field} }

func missing(field string) refusal { return refusal{404, "service_not_found", field} }

func noRoute() refusal { return refusal{404, "not_found", "path"} }

// refused makes a request, "METHOD target", that must fail in the one form of errors.
func (a *fixture) refused(t testing.TB, want refusal, line, body string, edits ...func(*http.Request)) answer {
	t.Helper()
	method, target, _ := strings.Cut(line, " ")
	got := do(a.handler, method, target, body, edits...)
	require.Equal(t, want.status, got.Code, "%s %.200s: %s", line, body, got.Body)
	require.NotNil(t, got.json, "%s", got.Body)
	require.Equal(t, want.code, got.json["error"], "%s", got.Body)
	require.NotEmpty(t, got.json["message"])
	if want.field == "" {
		require.NotContains(t, got.json, "field")
	} else {
		require.Equal(t, want.field, got.json["field"], "%s %.200s: %s", line, body, got.Body)
	}
	require.Equal(t, "application/json", got.Header().Get("Content-Type"))
	require.Equal(t, "nosniff", got.Header().Get("X-Content-Type-Options"))
	require.Less(t, got.Body.Len(), 4<<10, "an error does not throw back what it was thrown")
	return got
}

// text is the JSON of an offer of package discoverytest, edited.
func text(t testing.TB, id string, edits ...func(object)) string {
	t.Helper()
	plain, err := json.Marshal(discoverytest.Offer(id))
	require.NoError(t, err)
	var o object
	require.NoError(t, json.Unmarshal(plain, &o))
	for _, edit := range edits {
		edit(o)
	}
	edited, err := json.Marshal(o)
	require.NoError(t, err)
	return string(edited)
}

// set is an edit of text; an object's member is reached with a dot.
func set(path string, value any) func(object) {
	return func(o object) {
		steps := strings.Split(path, ".")
		for _, step := range steps[:len(steps)-1] {
			o = o[step].(object)
		}
		o[steps[len(steps)-1]] = value
	}
}
