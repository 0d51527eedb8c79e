package ui

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func get(path string, edits ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	for _, edit := range edits {
		edit(r)
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

// files calls visit with each file of the page.
func files(t *testing.T, visit func(name string, text []byte)) {
	static := os.DirFS("static")
	require.NoError(t, fs.WalkDir(static, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, err := fs.ReadFile(static, name)
			require.NoError(t, err)
			visit(name, text)
		}
		return err
	}))
}

func TestServe(t *testing.T) {
	page := get("/ui/")
	require.Equal(t, 200, page.Code)
	require.Equal(t, "text/html; charset=utf-8", page.Header().Get("Content-Type"))
	require.Equal(t, policy, page.Header().Get("Content-Security-Policy"))
	require.Equal(t, "text/javascript; charset=utf-8", get("/ui/app.js").Header().Get("Content-Type"))
	require.Equal(t, 404, get("/ui/nothing").Code)
	require.Equal(t, 404, get("/ui/vendor").Code)
	again := get("/ui/", func(r *http.Request) { r.Header.Set("If-None-Match", page.Header().Get("ETag")) })
	require.Equal(t, 304, again.Code)
	small := get("/ui/app.js", func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })
	require.Equal(t, "gzip", small.Header().Get("Content-Encoding"))
	require.Less(t, small.Body.Len(), get("/ui/app.js").Body.Len())
}

// TestPacked: the peer serves what the folder static has, to readers with and without gzip.
func TestPacked(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile("page.zip", pack(t), 0o644))
		t.Skip("page.zip is written: build and test again")
	}
	n := 0
	files(t, func(name string, text []byte) {
		n++
		const remedy = "run go test ./internal/frontend/ui -run TestPacked -update after changing the page"
		require.Equal(t, string(text), get("/ui/"+name).Body.String(), "%s: %s", name, remedy)
		small := get("/ui/"+name, func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })
		z, err := gzip.NewReader(small.Body)
		require.NoError(t, err, name)
		got, err := io.ReadAll(z)
		require.NoError(t, err, name)
		require.Equal(t, string(text), string(got), name)
	})
	require.Len(t, unpack(), n, "files that are gone")
}

// pack makes page.zip.
func pack(t *testing.T) []byte {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	files(t, func(name string, text []byte) {
		w, err := z.Create(name)
		require.NoError(t, err)
		_, err = w.Write(text)
		require.NoError(t, err)
	})
	require.NoError(t, z.Close())
	return out.Bytes()
}

// TestEveryFileOfThePageIsThere: what the page and its modules name is served.
func TestEveryFileOfThePageIsThere(t *testing.T) {
	names := regexp.MustCompile(`(?:src="|href="|from '\./|fetch\(')([\w./-]+\.(?:json|js|css|svg))\b`)
	files(t, func(name string, text []byte) {
		if strings.HasPrefix(name, "vendor/") {
			return
		}
		for _, found := range names.FindAllStringSubmatch(string(text), -1) {
			require.Equal(t, 200, get("/ui/"+found[1]).Code, "%s names %s", name, found[1])
		}
	})
}

// TestBudget: the whole page is small on the wire.
func TestBudget(t *testing.T) {
	total := 0
	files(t, func(name string, _ []byte) {
		if !strings.HasSuffix(name, "LICENSES.txt") && !strings.HasSuffix(name, "vendor.json") {
			total += get("/ui/"+name, func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") }).Body.Len()
		}
	})
	require.Less(t, total, 180_000, "bytes of the page, compressed")
	require.Less(t, len(packed), 200_000, "bytes of the page in the program")
}

// TestVendored: each file of others is the one listed, with its licence.
func TestVendored(t *testing.T) {
	text, err := os.ReadFile("static/vendor/vendor.json")
	require.NoError(t, err)
	var list []struct{ File, Package, Version, Licence, Sha256 string }
	require.NoError(t, json.Unmarshal(text, &list))
	licences, err := os.ReadFile("static/vendor/LICENSES.txt")
	require.NoError(t, err)
	listed := map[string]string{}
	for _, v := range list {
		listed["vendor/"+v.File] = v.Sha256
		require.Contains(t, string(licences), "== "+v.Package+"-"+v.Version+"\n")
		require.NotEmpty(t, v.Licence)
	}
	files(t, func(name string, text []byte) {
		if !strings.HasPrefix(name, "vendor/") || strings.HasSuffix(name, "LICENSES.txt") || strings.HasSuffix(name, "vendor.json") {
			return
		}
		sum := sha256.Sum256(text)
		require.Equal(t, listed[name], hex.EncodeToString(sum[:]), name)
		delete(listed, name)
	})
	require.Empty(t, listed, "listed, and not there")
}

// TestNothingUnsafe: the page's own source makes no markup of text, runs no text, keeps nothing, and asks no other host.
func TestNothingUnsafe(t *testing.T) {
	unsafe := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|localStorage|sessionStorage|document\.cookie|https?://|style="|<script>|\son\w+="`)
	files(t, func(name string, text []byte) {
		if strings.HasPrefix(name, "vendor/") || strings.HasSuffix(name, ".svg") {
			return
		}
		require.Empty(t, unsafe.FindString(string(text)), name)
	})
}
