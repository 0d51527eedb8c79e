package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
)

// agents calls tools of a peer, as agents do.
type agents struct {
	t    *testing.T
	http string
}

// call returns the structured answer of a tool, and its texts.
func (a agents) call(tool, args string) (map[string]any, string) {
	a.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, args)
	resp, err := http.Post(a.http+"/mcp", "application/json", strings.NewReader(body))
	require.NoError(a.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(a.t, err)
	var m struct {
		Result struct {
			Structured map[string]any `json:"structuredContent"`
			Content    []struct{ Text string }
		}
	}
	require.NoError(a.t, json.Unmarshal(text, &m), "%s", text)
	return m.Result.Structured, string(text)
}

// TestAgentsHold has agents hold several names by one call, wait in their places, repeat calls, and release.
func TestAgentsHold(t *testing.T) {
	p := startWith(t, config.Default(), t.TempDir())
	a := agents{t, p.http}
	until(t, "a leader", func() bool {
		got, _ := a.call("hold", `{"names":["b.go","a.go"],"agent":"one","why":"login"}`)
		return got["holding"] == true
	})
	first, _ := a.call("hold", `{"names":["a.go","b.go"],"agent":"one"}`)
	tokens := first["tokens"].(map[string]any)
	require.Equal(t, tokens["a.go"], tokens["b.go"])
	require.NotEmpty(t, first["until"])

	missed, text := a.call("hold", `{"names":["c.go","b.go"],"agent":"two"}`)
	require.Equal(t, []any{false, false}, []any{missed["holding"], missed["waiting"]})
	require.Contains(t, text, "so you hold none")
	waits, text := a.call("hold", `{"names":["c.go","b.go"],"agent":"two","wait":1}`)
	require.Equal(t, []any{false, true}, []any{waits["holding"], waits["waiting"]})
	require.Contains(t, text, "in your place")
	_, text = a.call("release", `{"agent":"two","names":["b.go"]}`)
	require.Contains(t, text, "release all")
	state, _ := a.call("held", `{"agent":"one","names":["b.go"]}`)
	name := state["names"].([]any)[0].(map[string]any)
	require.Equal(t, []any{tokens["b.go"], 1.0}, []any{name["token"], name["behind"]})
	require.Equal(t, "login", name["by"].([]any)[0].(map[string]any)["why"])
	require.Equal(t, "two", name["waits"].([]any)[0].(map[string]any)["agent"])
	_, text = a.call("hold", `{"names":["a.go","b.go","c.go"],"agent":"one","wait":1}`)
	require.Contains(t, text, "others", "what one holds does not grow by waiting")

	for range 2 { // the answer of the first one was lost
		gone, _ := a.call("release", `{"agent":"one"}`)
		require.Equal(t, true, gone["released"])
	}
	next, _ := a.call("hold", `{"names":["c.go","b.go"],"agent":"two","wait":1}`)
	require.Equal(t, true, next["holding"])
	_, err := a.call("release", `{"agent":"two","names":["c.go","b.go"]}`)
	require.NotContains(t, err, "isError")
	state, _ = a.call("held", `{"names":["b.go"]}`)
	require.Empty(t, state["names"].([]any)[0].(map[string]any)["by"])

	_, text = a.call("hold", `{"names":[],"agent":"x"}`)
	require.Contains(t, text, "names must be 1 to 64")
	_, text = a.call("hold", `{"names":["a"]}`)
	require.Contains(t, text, "agent of hold is missing")
	_, text = a.call("hold", `{"names":["a"],"agent":"x","ttl":1}`)
	require.Contains(t, text, "ttl")
}
