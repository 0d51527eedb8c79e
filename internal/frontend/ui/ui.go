// Package ui serves the web page of a peer at /ui/: files without secrets, embedded in the binary. The page
// fetches its data from the public API with the role of its reader.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed static
var static embed.FS

// policy lets the page run its own files and call its own peer, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Prefix is the path of the page.
const Prefix = "/ui/"

// Handler serves the page under Prefix.
func Handler() http.Handler { return new(server) }

// server serves the page. It compresses one file at a time with one compressor, which the garbage collector may take: a
// browser asks for all files at once, and a compressor for each would stay in the memory of a small peer.
type server struct {
	mu   sync.Mutex
	idle sync.Pool // of *gzip.Writer
}

// Redirect leads to the page.
func Redirect(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, Prefix, http.StatusFound)
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Prefix)
	if name == "" {
		name = "index.html"
	}
	text, err := fs.ReadFile(static, path.Join("static", name))
	if err != nil {
		http.Error(w, "The page has no such file: see "+Prefix, http.StatusNotFound)
		return
	}
	sum := sha256.Sum256(text)
	h := w.Header()
	h.Set("Content-Type", typeOf(name))
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // ask each time, so that page and peer have one version
	h.Set("ETag", `W/"`+hex.EncodeToString(sum[:8])+`"`)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == h.Get("ETag") {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		text = s.compressed(text)
	}
	_, _ = w.Write(text) // the reader may leave
}

func typeOf(name string) string {
	switch path.Ext(name) {
	case ".js": // whatever the tables of the system say
		return "text/javascript; charset=utf-8"
	case ".json":
		return "application/json"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(path.Ext(name))
}

func (s *server) compressed(text []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	z, ok := s.idle.Get().(*gzip.Writer)
	if !ok {
		z = gzip.NewWriter(nil)
	}
	defer s.idle.Put(z)
	var out bytes.Buffer
	z.Reset(&out)
	_, _ = z.Write(text) // a buffer takes everything
	_ = z.Close()
	return out.Bytes()
}
