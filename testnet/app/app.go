// Package app plays the applications of a testnet: servers and consumers that call peers by REST,
// like programs in any language.
package app

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Health is the health path of a Server.
const Health = "/health"

// Server is an application: an HTTP server on loopback. Callers must call Die. Methods are safe
// for concurrent use.
type Server struct {
	Host string
	Port int

	http *http.Server
	work sync.WaitGroup
}

// Serve starts a server on a free port.
func Serve() (*Server, error) { return ServeAt("127.0.0.1:0", "") }

// ServeAt starts a server at host:port, whose page is a text.
func ServeAt(address, text string) (*Server, error) {
	const op = "app.Serve"
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, fault.New(op, fault.Internal, "%v is not a TCP address", l.Addr())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Health, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }) // the client may be gone
	s := &Server{Host: at.IP.String(), Port: at.Port, http: &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}}
	s.work.Go(func() { _ = s.http.Serve(l) }) // until Die
	return s, nil
}

// Address is host:port.
func (s *Server) Address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// Die ends the server like a crash: it cuts connections and deregisters nothing.
func (s *Server) Die() {
	_ = s.http.Close() // clients notice the closed connections
	s.work.Wait()
}
