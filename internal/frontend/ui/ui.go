// Package ui serves the web page of a peer at /ui/: files without secrets, embedded in the binary. The page
// fetches its data from the public API with the role of its reader.
package ui

import (
	"archive/zip"
	"bytes"
	"cmp"
	"compress/flate"
	_ "embed" // of the page
	"encoding/binary"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// packed has the files of static, compressed: go test -run TestPacked -update writes it. A peer passes them on as they
// are. It compressed them itself before, and each page cost a small peer 1 to 2 MiB of memory.
//
//go:embed page.zip
var packed []byte

// policy lets the page run its own files and call its own peer, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Prefix is the path of the page.
const Prefix = "/ui/"

// Handler serves the page under Prefix.
func Handler() http.Handler { return &server{files: sync.OnceValue(unpack)} }

// server serves the page.
type server struct{ files func() map[string]file }

// file is one file of the page.
type file struct {
	deflated []byte // part of packed
	size     uint32 // before it was compressed
	sum      uint32 // CRC-32
}

// unpack lists the files by name. A test has read all of them.
func unpack() map[string]file {
	z, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		panic("ui: " + err.Error())
	}
	list := map[string]file{}
	for _, f := range z.File {
		at, err := f.DataOffset()
		if err != nil {
			panic("ui: " + err.Error())
		}
		list[f.Name] = file{packed[at:][:f.CompressedSize64], uint32(f.UncompressedSize64), f.CRC32}
	}
	return list
}

// Redirect leads to the page.
func Redirect(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, Prefix, http.StatusFound)
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Prefix)
	name = cmp.Or(name, "index.html")
	f, ok := s.files()[name]
	if !ok {
		http.Error(w, "The page has no such file: see "+Prefix, http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", typeOf(name))
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // ask each time, so that page and peer have one version
	h.Set("ETag", fmt.Sprintf(`W/"%08x%x"`, f.sum, f.size))
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == h.Get("ETag") {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		f.gzip(w)
		return
	}
	_, _ = io.Copy(w, flate.NewReader(bytes.NewReader(f.deflated))) // the reader may leave
}

// gzip writes the file in the format of RFC 1952.
func (f file) gzip(w http.ResponseWriter) {
	head := [10]byte{0x1f, 0x8b, 8, 9: 0xff} // deflate, no time, unknown system
	var tail [8]byte
	binary.LittleEndian.PutUint32(tail[:4], f.sum)
	binary.LittleEndian.PutUint32(tail[4:], f.size)
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Content-Length", strconv.Itoa(len(head)+len(f.deflated)+len(tail)))
	for _, part := range [][]byte{head[:], f.deflated, tail[:]} {
		_, _ = w.Write(part) // the reader may leave
	}
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
