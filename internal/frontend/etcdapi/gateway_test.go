package etcdapi_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/secret"
)

// answer is one over JSON.
type answer struct {
	code int
	text string
}

func (f *front) post(t *testing.T, path, body, token string, more ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.addr+"/v3/"+path, strings.NewReader(body))
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	for i := 0; i+1 < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{resp.StatusCode, string(text)}
}

func TestJSON(t *testing.T) {
	f := start(t, nil)
	require.Equal(t, 200, f.post(t, "kv/put", `{"key":"YQ==","value":"MQ=="}`, "").code)
	got := f.post(t, "kv/range", `{"key":"YQ=="}`, "")
	require.Equal(t, 200, got.code)
	require.Contains(t, strings.ReplaceAll(got.text, " ", ""), `"mod_revision":"2"`, "clients need the names of the messages")
	require.Contains(t, f.post(t, "kv/range", `{}`, "").text, "etcdserver: key is not provided")
	for body, want := range map[string]string{
		``: "etcdserver: key is not provided", `{"later":1}`: "etcdserver: key is not provided", `{"key":1}`: "etcdserver: malformed request", `{`: "etcdserver: malformed request",
	} {
		refused := f.post(t, "kv/range", body, "")
		require.Equal(t, http.StatusBadRequest, refused.code, body)
		require.Contains(t, refused.text, want)
		require.Contains(t, strings.ReplaceAll(refused.text, " ", ""), `"code":3`)
	}
	require.Equal(t, 200, f.post(t, "lease/grant", `{"ID":"7","TTL":"60"}`, "").code)
	kept := strings.Split(strings.ReplaceAll(f.post(t, "lease/keepalive", `{"ID":"7"}{"ID":"7"}`, "").text, " ", ""), "\n")
	require.Len(t, kept, 3, "a line for each request")
	for _, line := range kept[:2] {
		require.Contains(t, line, `{"result":{`)
		require.Contains(t, line, `"TTL":"60"`)
	}
	require.Contains(t, f.post(t, "lease/keepalive", `{"ID":"7"}{`, "").text, `{"error":{`)
	require.Equal(t, http.StatusForbidden, f.post(t, "kv/put", `{"key":"YQ=="}`, "", "Origin", "http://evil.example").code)
	require.Equal(t, http.StatusNotImplemented, f.post(t, "maintenance/snapshot", `{}`, "").code)
	page, err := os.ReadFile("../../../docs/protocols.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "| etcd | "+etcdapi.Version+" |")
	for path, want := range map[string]string{"/version": `"etcdserver":"3.7.3"`, "/health": `"health":"true"`, "/livez": "ok", "/readyz": "ok"} {
		resp, err := http.Get("http://" + f.addr + path)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Contains(t, string(text), want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.addr+"/v3/watch", strings.NewReader(`{"create_request":{"key":"YQ==","start_revision":"2"}}`))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	line := make([]byte, 4096)
	var text string
	for !strings.Contains(text, `"events"`) {
		n, err := resp.Body.Read(line)
		require.NoError(t, err)
		text += string(line[:n])
	}
	require.Contains(t, text, `"result"`)
}

// TestRefusedBodies: a client gets the refusal of a request that nobody has read.
func TestRefusedBodies(t *testing.T) {
	guard, err := access.New(access.Config{Enabled: true, Method: access.MethodToken, Anonymous: "none", Tokens: []access.Token{
		{Token: secret.New(adminToken), Name: "root", Role: access.RoleAdmin},
	}}, access.Options{})
	require.NoError(t, err)
	f := start(t, guard)
	body := "{\"key\":\"" + strings.Repeat("YWFh", 25_000) + "\"}"
	for range 20 {
		for path, want := range map[string]int{"nope": http.StatusNotFound, "kv/range": http.StatusUnauthorized, "watch": http.StatusUnauthorized} {
			got := f.post(t, path, body, "")
			require.Equal(t, want, got.code, got.text)
		}
	}
}
