package httpapi

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
)

// TestGzip: large answers are compressed for clients that ask for it, and hold the same.
func TestGzip(t *testing.T) {
	a := New(Config{Node: discoverytest.New(t).Node, Metrics: http.NotFoundHandler()})
	t.Cleanup(a.Close)
	plain := do(a.Handler(), "GET", "/openapi.json", "")
	require.Empty(t, plain.Header().Get("Content-Encoding"))
	for _, accept := range []string{"gzip", "br, GZIP;q=0.5", "deflate,gzip;q=1.0"} {
		packed := do(a.Handler(), "GET", "/openapi.json", "", header("Accept-Encoding", accept))
		require.Equal(t, "gzip", packed.Header().Get("Content-Encoding"), accept)
		require.Equal(t, "Accept-Encoding", packed.Header().Get("Vary"))
		require.Equal(t, strconv.Itoa(packed.Body.Len()), packed.Header().Get("Content-Length"))
		require.Less(t, packed.Body.Len(), plain.Body.Len()/4)
		z, err := gzip.NewReader(packed.Body)
		require.NoError(t, err)
		text, err := io.ReadAll(z)
		require.NoError(t, err)
		require.Equal(t, openapi.Document(), string(text))
	}
	for path, accept := range map[string]string{"/openapi.json": "gzip;q=0", "/livez": "gzip"} {
		require.Empty(t, do(a.Handler(), "GET", path, "", header("Accept-Encoding", accept)).Header().Get("Content-Encoding"), path)
	}
}

// TestGzipIsBounded: an answer with a credential stays as it is, and so do answers while all compressors work.
func TestGzipIsBounded(t *testing.T) {
	p, body := newPacker(), []byte(strings.Repeat("a", 2*gzipAbove))
	require.NotNil(t, p.pack(http.Header{}, 200, body))
	require.Nil(t, p.pack(http.Header{"Cache-Control": {"no-store"}}, 200, body))
	require.Nil(t, p.pack(http.Header{}, 201, body))
	require.Nil(t, p.pack(http.Header{}, 200, body[:gzipAbove-1]))
	for range gzipAtOnce {
		p.busy <- struct{}{}
	}
	require.Nil(t, p.pack(http.Header{}, 200, body))
}
