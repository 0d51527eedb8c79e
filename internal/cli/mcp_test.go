package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMCP passes messages on with the token, each reply in a line, and says to the agent what went wrong.
func TestMCP(t *testing.T) {
	var most, now atomic.Int64
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		body, _ := io.ReadAll(r.Body)
		switch text := string(body); {
		case r.URL.Path != "/mcp" || r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"unauthenticated"}`)
		case strings.Contains(text, "notifications/"):
			w.WriteHeader(http.StatusAccepted)
		case strings.Contains(text, "page"):
			fmt.Fprint(w, "<html>")
		default:
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", strings.Trim(text[strings.Index(text, `"id":`)+5:], "}"))
		}
	}))
	defer peer.Close()
	ask := func(in string, env []string, args ...string) (code int, lines []string, said string) {
		var out, errs bytes.Buffer
		app := testApp(strings.NewReader(in), &out, &errs, env)
		code = app.Execute(t.Context(), append([]string{"mcp"}, args...))
		lines = strings.Split(strings.TrimSpace(out.String()), "\n")
		slices.Sort(lines)
		return code, lines, errs.String()
	}
	token := []string{"BLACKHOLE_AUTH_TOKEN=secret", "BLACKHOLE_HTTP=" + strings.TrimPrefix(peer.URL, "http://")}
	var in strings.Builder
	in.WriteString("\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n")
	for n := range 40 {
		fmt.Fprintf(&in, `{"jsonrpc":"2.0","method":"ping","id":%d}`+"\n", n)
	}
	code, lines, said := ask(in.String(), token)
	require.Zero(t, code, said)
	require.Len(t, lines, 40)
	require.Contains(t, lines, `{"jsonrpc":"2.0","id":39,"result":{}}`)
	require.LessOrEqual(t, most.Load(), int64(maxAsking))

	for _, c := range []struct {
		env  []string
		args []string
		in   string
		text string
	}{
		{nil, []string{"--http", peer.URL}, `{"id":7,"method":"ping"}`, "401"},
		{token, nil, `{"id":7,"method":"page"}`, "html"},
		{nil, []string{"--http", "127.0.0.1:1"}, `{"id":7,"method":"ping"}`, "no peer answers at http://127.0.0.1:1"},
	} {
		code, lines, said = ask(c.in, c.env, c.args...)
		require.Zero(t, code, said)
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], `"id":7`)
		require.Contains(t, lines[0], c.text)
	}
	for _, c := range []struct {
		in   string
		args []string
		text string
	}{
		{"", []string{"--http", "http://peer.example:8500", "--token", "x"}, "needs TLS"},
		{"", []string{"--http", "ftp://peer.example"}, "must be HOST:PORT or a URL"},
		{"", []string{"--http", "http://peer.example/v1"}, "must be HOST:PORT or a URL"},
		{"", []string{"--tls-ca", "/none"}, "--tls-ca"},
		{strings.Repeat("x", maxMessage+1), []string{"--http", peer.URL}, "cannot be read"},
	} {
		code, _, said = ask(c.in, nil, c.args...)
		require.NotZero(t, code)
		require.Contains(t, said, c.text)
	}
}
