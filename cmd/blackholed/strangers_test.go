package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

// badTexts are texts that a stranger may send, by what is wrong with them, as JSON strings.
func badTexts() map[string]string {
	return map[string]string{
		"half": strings.Repeat("A", 199-len("initialized ")) + "é", "utf8": "a\xffb", "escape": `a\u001b[2J\u001b]0;title\u0007`, "c1": `a\u009b2Jb`,
		"nul": `a\u0000b`, "line": `a\r\nb: c\td\u2028e`, "bidi": `a\u202egpj.exe\u2066b`, "hidden": `a\u200bb\ufeffc\udb40\udc41\udb40\udd00\udb40\udd01`,
		"long": strings.Repeat("é", 6000),
	}
}

// TestTextOfStrangers: whatever an endpoint says, every API shows the offer, as text that neither breaks a decoder
// nor drives a terminal. A name of the same kind is refused when it is signed.
func TestTextOfStrangers(t *testing.T) {
	t.Parallel()
	texts := badTexts()
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), "initialize") {
			return
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"%s"}}`, texts[strings.TrimPrefix(r.URL.Path, "/")])
	}))
	defer endpoint.Close()
	seller := &greedyPeer{t: t, dir: t.TempDir(), listen: "/ip4/127.0.0.1/tcp/0"}
	defer seller.start()()
	log, err := os.ReadFile(seller.log)
	require.NoError(t, err)
	buyer := &greedyPeer{t: t, dir: t.TempDir(), listen: "/ip4/127.0.0.1/tcp/0"}
	defer buyer.start("--bootstrap", regexp.MustCompile(`/ip4/127\.0\.0\.1/tcp/\d+/p2p/\w+`).FindString(string(log)))()

	for _, kind := range slices.Sorted(maps.Keys(texts)) {
		code, answer := posted(t, seller.http, "/v1/discovery/records", fmt.Sprintf(`{"id":"offer-%s","metadata":{"type":"mcp","name":"%s","endpoints":["%s/%s"],"protocols":["mcp"]}}`, kind, kind, endpoint.URL, kind))
		require.Equal(t, http.StatusCreated, code, answer)
		code, answer = posted(t, seller.http, "/v1/discovery/records", fmt.Sprintf(`{"id":"named","metadata":{"type":"mcp","name":"%s"}}`, strings.Repeat(texts[kind], 2)))
		require.Equal(t, http.StatusBadRequest, code, answer)
		if kind != "utf8" { // no JSON
			require.Contains(t, answer, `"field":"metadata.name"`)
		}
		harmless(t, answer, "")
	}

	find := func() string {
		_, answer := posted(t, buyer.http, "/v1/discovery/query", `{"type":"mcp","explain":true}`)
		return answer
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { // a check of each
		require.Equal(c, len(texts), strings.Count(find(), `"state":"answers"`))
	}, time.Minute, 100*time.Millisecond)

	c, err := operator.New(buyer.grpc)
	require.NoError(t, err)
	defer c.Close()
	got, err := c.Offers().Query(t.Context(), query.Query{Type: "mcp", Explain: true})
	require.NoError(t, err)
	require.Len(t, got.Results, len(texts))
	inJSON, err := json.Marshal(got)
	require.NoError(t, err)
	_, byMCP := posted(t, buyer.http, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"find_offers","arguments":{"type":"mcp","explain":true}}}`)
	answers := map[string]string{"grpc": string(inJSON), "http": find(), "mcp": byMCP, "events": firstEvent(t, buyer.http)}
	for _, format := range []string{"table", "json", "ndjson", "yaml"} {
		out, err := blackholed(t, nil, "offer", "find", "--type", "mcp", "--explain", "--grpc", buyer.grpc, "-o", format).CombinedOutput()
		require.NoError(t, err, "%s", out)
		answers["command line, "+format] = string(out)
	}
	for api, text := range answers {
		t.Run(api, func(t *testing.T) { harmless(t, text, "offer-") })
	}
}

// harmless requires a text that is safe to decode and to print, and its strings too, if it is JSON.
func harmless(t *testing.T, text, part string) {
	t.Helper()
	require.Contains(t, text, part)
	require.True(t, utf8.ValidString(text), "%q", text)
	require.NoError(t, fault.Text("", strings.NewReplacer("\n", " ").Replace(text), len(text)), "%q", text)
	var v any
	if json.Unmarshal([]byte(text), &v) == nil {
		strict(t, v)
	}
}

func strict(t *testing.T, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for k, one := range v {
			strict(t, k)
			strict(t, one)
		}
	case []any:
		for _, one := range v {
			strict(t, one)
		}
	case string:
		require.NoError(t, fault.Text("", strings.ReplaceAll(v, "\n", " "), len(v)), "%q", v)
	}
}

func posted(t *testing.T, peer, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+peer+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

// firstEvent returns the first event of a watch of offers.
func firstEvent(t *testing.T, peer string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+peer+"/v1/discovery/watch?type=mcp", nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	scan := bufio.NewScanner(answer.Body)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		if text, ok := strings.CutPrefix(scan.Text(), "data: "); ok && strings.Contains(text, "offer-") {
			return text
		}
	}
	t.Fatalf("no event of an offer: %v", scan.Err())
	return ""
}
