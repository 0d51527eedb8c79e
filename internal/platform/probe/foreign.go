package probe

import (
	"bytes"
	"net"
	"sync"

	"github.com/blackhole/blackhole/internal/platform/clean"
)

// Foreign is the error of a check of an endpoint that speaks another protocol.
type Foreign struct {
	Wanted string
	Text   string // what it said first, in its own words
}

func (f *Foreign) Error() string { return "speaks no " + f.Wanted }

// firstBytes are the first bytes that came over a connection: the evidence that something else answers.
type firstBytes struct {
	mu    sync.Mutex // guards bytes
	bytes []byte
}

const maxFirst = 64

// of returns the connection, remembered. It gives nothing to read before something was written: a client of HTTP
// takes a greeting for an answer to an earlier request.
func (f *firstBytes) of(c net.Conn) net.Conn {
	if c == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes = nil
	return &remembered{Conn: c, first: f, wrote: make(chan struct{})}
}

type remembered struct {
	net.Conn
	first *firstBytes
	once  sync.Once
	wrote chan struct{}
}

func (r *remembered) Read(p []byte) (int, error) {
	<-r.wrote
	n, err := r.Conn.Read(p)
	r.first.mu.Lock()
	defer r.first.mu.Unlock()
	if room := maxFirst - len(r.first.bytes); room > 0 {
		r.first.bytes = append(r.first.bytes, p[:min(n, room)]...)
	}
	return n, err
}

func (r *remembered) Write(p []byte) (int, error) {
	defer r.once.Do(func() { close(r.wrote) })
	return r.Conn.Write(p)
}

func (r *remembered) Close() error {
	defer r.once.Do(func() { close(r.wrote) })
	return r.Conn.Close()
}

// explain returns Foreign for an error of a connection on which something else than TLS, or than the wanted protocol,
// answered.
func (f *firstBytes) explain(err error, secure bool, wanted string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const status, settings = "HTTP/", 4 // how an answer of HTTP/1 begins; the type of the first frame of HTTP/2
	b := f.bytes
	switch {
	case len(b) == 0:
	case secure && (b[0] < 20 || b[0] > 23): // types of records of TLS
		return &Foreign{"TLS", clean.Text(string(b), maxText)}
	case secure:
	case wanted == "HTTP" && !bytes.HasPrefix([]byte(status), b[:min(len(b), len(status))]),
		wanted == "gRPC" && (b[0] != 0 || len(b) > 3 && b[3] != settings):
		return &Foreign{wanted, clean.Text(string(b), maxText)}
	}
	return err
}
