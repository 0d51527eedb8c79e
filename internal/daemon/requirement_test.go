package daemon

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRequirement: an instance that an application registers late wakes who waits for its service.
func TestRequirement(t *testing.T) {
	p := start(t, t.TempDir())
	ask := func(method, path, body string) (int, map[string]any) {
		r, err := http.NewRequestWithContext(t.Context(), method, p.http+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		var out map[string]any
		require.NoError(t, json.Unmarshal(text, &out), "%s", text)
		return resp.StatusCode, out
	}
	const path = "/v1/coordination/requirements/store"
	until(t, "the group serves", func() bool { code, _ := ask("PUT", path, `{"service":"storage","min":1}`); return code == 200 })
	until(t, "it is judged", func() bool { _, got := ask("GET", path, ""); return got["state"] == "insufficient_nodes" })
	woken := make(chan map[string]any, 1)
	go func() {
		_, got := ask("GET", path+"?wait=30s", "")
		woken <- got
	}()
	code, got := ask("POST", "/v1/services/storage/instances", `{"id":"s1","host":"10.0.0.1","port":80}`)
	require.Equal(t, 201, code, "%v", got)
	stands := <-woken
	require.Equal(t, []any{"satisfied", 1.0}, []any{stands["state"], stands["available"]}, "%v", stands)
}
