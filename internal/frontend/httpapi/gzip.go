package httpapi

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync"
)

const (
	gzipAbove  = 2 << 10 // bytes of an answer; a smaller one fits into two packets anyway
	gzipAtOnce = 4       // compressors at work, each about 1 MiB; further answers go out as they are
)

// packer compresses answers. Streams of events stay as they are: each viewer of one would keep a compressor.
//
// Compression beside a secret leaks it to whoever chooses other parts of the same answer, asks for it many times with
// the caller's credentials, and sees its length (BREACH). A page of another origin cannot ask: Server.admit refuses it,
// and the API has no cookies. Answers that carry a credential are marked no-store and stay as they are nevertheless.
type packer struct {
	busy chan struct{}
	pool sync.Pool // of *gzip.Writer
}

func newPacker() *packer { return &packer{busy: make(chan struct{}, gzipAtOnce)} }

// pack returns the compressed body, or nil for one that is better sent as it is. It sets the header accordingly.
func (p *packer) pack(h http.Header, code int, body []byte) []byte {
	if len(body) < gzipAbove || code != http.StatusOK || h.Get("Cache-Control") == "no-store" {
		return nil
	}
	var out bytes.Buffer
	z, done := p.take(&out)
	if z == nil {
		return nil
	}
	defer done()
	_, _ = z.Write(body) // a buffer takes everything
	_ = z.Close()
	if out.Len() >= len(body) {
		return nil
	}
	h.Set("Content-Encoding", "gzip")
	return out.Bytes()
}

// stream returns a writer that compresses a long answer, until end, and sets the header accordingly. It returns w itself for one
// that goes out as it is.
func (p *packer) stream(h http.Header, w io.Writer) (_ io.Writer, end func()) {
	if h.Get("Cache-Control") == "no-store" {
		return w, func() {}
	}
	z, done := p.take(w)
	if z == nil {
		return w, func() {}
	}
	h.Set("Content-Encoding", "gzip")
	return z, func() { _ = z.Close(); done() }
}

// take returns a compressor until done, or nil if all are at work.
func (p *packer) take(w io.Writer) (z *gzip.Writer, done func()) {
	select {
	case p.busy <- struct{}{}:
	default:
		return nil, nil
	}
	z, ok := p.pool.Get().(*gzip.Writer)
	if !ok {
		z, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	}
	z.Reset(w)
	return z, func() { p.pool.Put(z); <-p.busy }
}

// acceptsGzip reports whether a client reads gzip (RFC 9110, section 12.5.3).
func acceptsGzip(h http.Header) bool {
	for _, line := range h.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(line, ",") {
			name, weight, _ := strings.Cut(strings.ReplaceAll(part, " ", ""), ";")
			if strings.EqualFold(name, "gzip") {
				return strings.Trim(weight, "q=0.") != "" || weight == ""
			}
		}
	}
	return false
}
