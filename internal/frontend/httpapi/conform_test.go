package httpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	"github.com/blackhole/blackhole/internal/platform/access"
)

// specification is the OpenAPI document, to check exchanges against.
type specification struct {
	*openapi3.T
	mux *http.ServeMux
}

func newSpecification(t testing.TB) specification {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData([]byte(openapi.Document()))
	require.NoError(t, err)
	s := specification{doc, http.NewServeMux()}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			s.mux.Handle(method+" "+path, http.NotFoundHandler())
		}
	}
	return s
}

// conforming is a guard that admits everything and fails the test for an exchange outside the
// document. In a benchmark it checks nothing, because a check costs twenty times as much as the answer.
func conforming(t testing.TB) func(access.Role, http.Handler, func(http.ResponseWriter, error)) http.Handler {
	if _, timed := t.(*testing.B); timed {
		return func(_ access.Role, next http.Handler, _ func(http.ResponseWriter, error)) http.Handler { return next }
	}
	s := newSpecification(t)
	return func(_ access.Role, next http.Handler, _ func(http.ResponseWriter, error)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var sent bytes.Buffer
			r = r.WithContext(context.WithValue(r.Context(), ownerKey{}, r.Header.Get("Owner")))
			as := r.Clone(context.Background())
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(r.Body, &sent), r.Body}
			tap := &recording{ResponseWriter: w}
			resp := *responseOf(w)
			resp.ResponseWriter = tap
			next.ServeHTTP(&resp, r)
			if err := s.check(as, sent.Bytes(), tap); err != nil {
				assert.NoError(t, err, "%s %s %s: %d %.2000s", r.Method, r.URL, sent.String(), tap.code, tap.body.String())
			}
		})
	}
}

// recording keeps an answer, except for streams.
type recording struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (r *recording) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

func (r *recording) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	if r.body.Len() < 64<<20 {
		r.body.Write(p)
	}
	return r.ResponseWriter.Write(p)
}

func (r *recording) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// check compares an exchange with the document.
func (s specification) check(r *http.Request, sent []byte, got *recording) error {
	path, ok := s.path(r)
	if !ok {
		if got.code != http.StatusNotFound && got.code != http.StatusMethodNotAllowed {
			return fmt.Errorf("status %d of what is not documented", got.code)
		}
		return s.isError(got)
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	item := s.Paths.Find(path)
	in := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: variables(path, r.URL), Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		Route: &routers.Route{Spec: s.T, Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)},
	}
	if got.code < 400 {
		if err := s.checkRequest(in, sent); err != nil {
			return fmt.Errorf("the request is not as documented: %w", err)
		}
	}
	return s.checkAnswer(in, got)
}

// path returns the path in the document that matches a request.
func (s specification) path(r *http.Request) (string, bool) {
	_, found := s.mux.Handler(r)
	_, path, ok := strings.Cut(found, " ")
	return path, ok
}

// variables returns the named parts of a path.
func variables(path string, u *url.URL) map[string]string {
	values := map[string]string{}
	names, parts := strings.Split(path, "/"), strings.Split(u.EscapedPath(), "/")
	for n, name := range names {
		if strings.HasPrefix(name, "{") && n < len(parts) {
			values[strings.Trim(name, "{}")], _ = url.PathUnescape(parts[n])
		}
	}
	return values
}

func (s specification) checkRequest(in *openapi3filter.RequestValidationInput, sent []byte) error {
	var known []string
	for _, p := range in.Route.Operation.Parameters {
		known = append(known, p.Value.Name)
	}
	for name := range in.GetQueryParams() {
		base, _, _ := strings.Cut(strings.Replace(strings.Replace(name, "attr.", "attributes.", 1), "[", ".", 1), ".")
		if !slices.Contains(known, base) {
			return fmt.Errorf("parameter %s", name)
		}
	}
	if strings.Contains(in.Request.URL.RawQuery, "near=") || strings.Contains(in.Request.URL.RawQuery, ".") {
		in.Options.ExcludeRequestQueryParams = true // other spellings of a documented parameter
	}
	in.Request.Body = io.NopCloser(bytes.NewReader(sent))
	if in.Request.Header.Get("Content-Type") != "application/octet-stream" {
		in.Request.Header.Set("Content-Type", "application/json")
	}
	return openapi3filter.ValidateRequest(context.Background(), in)
}

func (s specification) checkAnswer(in *openapi3filter.RequestValidationInput, got *recording) error {
	answer := in.Route.Operation.Responses.Status(got.code)
	if answer == nil {
		return fmt.Errorf("status %d is not documented", got.code)
	}
	kind, _, _ := mime.ParseMediaType(got.Header().Get("Content-Type"))
	if got.code == http.StatusNoContent {
		return nil
	}
	if kind != "text/plain" && answer.Value.Content.Get(kind) == nil {
		return fmt.Errorf("an answer of type %q is not documented", kind)
	}
	if kind != "application/json" {
		return nil
	}
	body := io.NopCloser(bytes.NewReader(got.body.Bytes()))
	if got.Header().Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		body = z
	}
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: got.code, Header: got.Header(), Body: body,
	})
}

// isError checks the form of an error outside the routes.
func (s specification) isError(got *recording) error {
	var v any
	if err := json.Unmarshal(got.body.Bytes(), &v); err != nil {
		return err
	}
	return s.Components.Schemas["Error"].Value.VisitJSON(v, openapi3.EnableJSONSchema2020())
}

// TestDocument: the document is valid and has exactly the routes and roles of the table.
func TestDocument(t *testing.T) {
	s := newSpecification(t)
	require.NoError(t, s.Validate(t.Context(), openapi3.IsOpenAPI31OrLater()))
	documented, roles := map[string]any{}, map[string]any{}
	for path, item := range s.Paths.Map() {
		for method, operation := range item.Operations() {
			documented[method+" "+path] = operation.Extensions["x-role"]
			require.NotEmpty(t, operation.Summary)
		}
	}
	for _, r := range wholeTable() {
		roles[r.pattern] = r.role.String()
	}
	require.Equal(t, roles, documented)
	a := newAgentFixture(t)
	require.JSONEq(t, openapi.Document(), a.ok(t, 200, "GET /openapi.json", "").text)
}

// TestDocumentExplains: each operation has a description, a command that reaches it, and an example of each JSON body
// that it takes or gives. Examples fit their schemas.
func TestDocumentExplains(t *testing.T) {
	s := newSpecification(t)
	require.NoError(t, s.Validate(t.Context(), openapi3.IsOpenAPI31OrLater(), openapi3.EnableExamplesValidation()))
	require.Equal(t, "/", s.Servers[0].URL, "a document of another peer must lead to that peer")
	for path, item := range s.Paths.Map() {
		for method, o := range item.Operations() {
			name := method + " " + path
			require.NotEmpty(t, o.Description, name)
			require.Equal(t, name, s.reachedBy(t, o), "the command of %s", name)
			if o.RequestBody != nil {
				requireExample(t, name, o.RequestBody.Value.Content)
			}
			given := false
			for code, answer := range o.Responses.Map() {
				content := answer.Value.Content["application/json"]
				given = given || strings.HasPrefix(code, "2") && (content == nil || content.Example != nil)
			}
			require.True(t, given || path == "/openapi.json", "%s: no example of an answer", name)
		}
	}
}

// reachedBy returns the operation that the curl of an operation reaches.
func (s specification) reachedBy(t *testing.T, o *openapi3.Operation) string {
	samples, ok := o.Extensions["x-codeSamples"].([]any)
	require.True(t, ok, o.OperationID)
	command, ok := samples[0].(map[string]any)["source"].(string)
	require.True(t, ok, o.OperationID)
	method, rest, found := strings.Cut(strings.TrimPrefix(command, "curl "), "localhost:8500")
	require.True(t, found, command)
	target := strings.Trim(strings.Fields(rest)[0], "'")
	switch explicit, set := strings.CutPrefix(method, "-X "); {
	case set:
		method = strings.Trim(explicit, " '")
	case strings.Contains(rest, " -d "):
		method = http.MethodPost
	default:
		method = http.MethodGet
	}
	_, reached := s.mux.Handler(httptest.NewRequest(method, target, nil))
	return reached
}

func requireExample(t *testing.T, name string, content openapi3.Content) {
	if body := content["application/json"]; body != nil {
		require.NotNil(t, body.Example, "%s: no example of a body", name)
	}
}

// TestConforming: the check of exchanges against the document finds errors.
func TestConforming(t *testing.T) {
	s := newSpecification(t)
	for name, exchange := range map[string]struct {
		line, sent string
		code       int
		answer     string
	}{
		"no such path":        {"GET /v1/nothing", "", 200, "{}"},
		"no such status":      {"GET /v1/services", "", 418, "[]"},
		"no such parameter":   {"GET /v1/services?near=here", "", 200, "[]"},
		"parameter":           {"GET /v1/services?limit=0", "", 200, "[]"},
		"answer":              {"GET /v1/services", "", 200, "{}"},
		"field of an answer":  {"GET " + payments, "", 200, `{"service":"a","index":1,"instances":[],"more":1}`},
		"missing field":       {"GET " + payments, "", 200, `{"service":"a","index":1}`},
		"value":               {"GET " + payments, "", 200, `{"service":"a","index":1,"instances":[{"id":"a","health":"GREAT","metadata":{}}]}`},
		"error":               {"GET " + payments, "", 500, `{"error":"oops","message":"x"}`},
		"request":             {"POST " + payments, `{"hots":"x"}`, 201, `{"instance_id":"a","lease_id":"b","lease_ttl":30,"committed":false}`},
		"request without any": {"POST /v1/services", ``, 201, `{}`},
	} {
		method, target, _ := strings.Cut(exchange.line, " ")
		got := &recording{ResponseWriter: httptest.NewRecorder(), code: exchange.code}
		got.Header().Set("Content-Type", "application/json")
		got.body.WriteString(exchange.answer)
		require.Error(t, s.check(httptest.NewRequest(method, target, nil), []byte(exchange.sent), got), name)
	}
}
