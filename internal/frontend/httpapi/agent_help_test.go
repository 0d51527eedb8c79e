package httpapi

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
)

// agentFixture is a served agent plane with a client.
type agentFixture struct {
	*Server
	*registry
	caller
	node *discoverytest.Node
}

// caller is a client without our types.
type caller struct {
	client *http.Client
	base   string
}

// newAgentFixture serves one on a socket.
func newAgentFixture(t testing.TB, edits ...func(*Config)) agentFixture {
	t.Helper()
	h := discoverytest.New(t)
	g := newRegistry()
	h.Node.State = discovery.Status{Mode: "server", Version: "v1.2.3", UptimeSeconds: 7.9}
	c := Config{
		Registrar: h, Finder: h, Node: h.Node, Metrics: http.NotFoundHandler(), Guard: conforming(t),
		Agent: &Agent{Registrar: g, Catalog: g, Census: g.census},
	}
	for _, edit := range edits {
		edit(&c)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	a := agentFixture{New(c), g, caller{&http.Client{Transport: &http.Transport{}}, "http://" + l.Addr().String()}, h.Node}
	done := make(chan error, 1)
	go func() { done <- a.Serve(l) }()
	t.Cleanup(func() {
		a.client.CloseIdleConnections()
		a.Close()
		require.NoError(t, <-done)
	})
	return a
}

// send makes a request, "METHOD target".
func (a caller) send(t testing.TB, line, body string, edits ...func(*http.Request)) reply {
	t.Helper()
	resp := a.open(t, line, body, edits...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	got := reply{code: resp.StatusCode, header: resp.Header, text: string(text)}
	if json.Unmarshal(text, &got.json) != nil {
		got.json = nil
	}
	return got
}

// open is send for an answer without end.
func (a caller) open(t testing.TB, line, body string, edits ...func(*http.Request)) *http.Response {
	t.Helper()
	method, target, _ := strings.Cut(line, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, a.base+target, strings.NewReader(body))
	require.NoError(t, err)
	for _, edit := range edits {
		edit(r)
	}
	resp, err := a.client.Do(r)
	require.NoError(t, err)
	return resp
}

// ok makes a request that must succeed.
func (a caller) ok(t testing.TB, code int, line, body string, edits ...func(*http.Request)) reply {
	t.Helper()
	got := a.send(t, line, body, edits...)
	require.Equal(t, code, got.code, "%s: %s", line, got.text)
	if code == http.StatusNoContent {
		require.Empty(t, got.text)
	} else {
		require.Equal(t, "application/json", got.header.Get("Content-Type"))
	}
	return got
}

// refused makes a request that must fail with an error of this API.
func (a caller) refused(t testing.TB, want refusal, line, body string, edits ...func(*http.Request)) reply {
	t.Helper()
	got := a.send(t, line, body, edits...)
	require.Equal(t, want.status, got.code, "%s %s: %s", line, body, got.text)
	require.Equal(t, want.code, got.json["error"], "%s %s: %s", line, body, got.text)
	require.NotEmpty(t, got.json["message"])
	field, _ := got.json["field"].(string)
	require.Equal(t, want.field, field, "%s %s: %s", line, body, got.text)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	return got
}

// array is the answer as a list of objects.
func (r reply) array(t testing.TB) []object {
	t.Helper()
	var list []object
	require.NoError(t, json.Unmarshal([]byte(r.text), &list), r.text)
	return list
}

// all gives one field of each.
func all(list []object, field string) []any {
	values := make([]any, len(list))
	for n, o := range list {
		values[n] = o[field]
	}
	return values
}

// instances returns the instances of an answer in the dialect of instances.
func (r reply) instances(t testing.TB) []object {
	t.Helper()
	list, ok := r.json["instances"].([]any)
	require.True(t, ok, r.text)
	objects := make([]object, len(list))
	for n := range list {
		objects[n] = list[n].(object)
	}
	return objects
}

// with is JSON text, an object, edited.
func with(text string, edits ...func(object)) string {
	var o object
	if json.Unmarshal([]byte(text), &o) != nil {
		panic("no object: " + text)
	}
	for _, edit := range edits {
		edit(o)
	}
	edited, _ := json.Marshal(o)
	return string(edited)
}

// without takes a field of an object away.
func without(field string) func(object) { return func(o object) { delete(o, field) } }
