// Package control carries orders to a running testnet, over a Unix socket in its directory. Each
// testnet has a directory of its own, so several on one machine do not clash.
package control

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	// Prefix begins the name of the directory of every testnet.
	Prefix = "blackhole-testnet-"

	file       = "control" // the socket; short, because systems bound the length of its path to about 100 bytes
	maxOrder   = 64 << 10
	maxAnswer  = 1 << 20
	headerTime = 10 * time.Second
	dialTime   = 2 * time.Second
)

// Order is one request of a user.
type Order struct {
	Verb string   `json:"verb"`
	Args []string `json:"args,omitempty"`
}

// Server receives orders. Callers must call Close.
type Server struct {
	http *http.Server
	work sync.WaitGroup
}

// Listen opens the socket in the directory of a testnet. obey gets the orders, one after the other, with a context that ends
// with its client.
func Listen(dir string, obey func(context.Context, Order) (string, error)) (*Server, error) {
	l, err := net.Listen("unix", filepath.Join(dir, file))
	if err != nil {
		return nil, fault.As("control.Listen", fault.Unavailable, err)
	}
	var mu sync.Mutex // held by the order under way
	s := &Server{http: &http.Server{ReadHeaderTimeout: headerTime, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var o Order
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOrder))
		if err == nil {
			err = strictjson.Decode(body, maxOrder, &o)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		text, err := obey(r.Context(), o)
		mu.Unlock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		_, _ = io.WriteString(w, text) // the order is done, whether or not its client still listens
	})}}
	s.work.Go(func() { _ = s.http.Serve(l) }) // until Close, which removes the socket
	return s, nil
}

// Close removes the socket, and ends the contexts of all orders.
func (s *Server) Close() {
	_ = s.http.Close()
	s.work.Wait()
}

// Send gives an order to the testnet in dir and returns its answer. Errors: Unavailable if no
// testnet takes orders there; Conflict with the words of the testnet.
func Send(ctx context.Context, dir string, o Order) (string, error) {
	const op = "control.Send"
	body, err := json.Marshal(o)
	if err != nil {
		return "", fault.As(op, fault.Internal, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://testnet/", bytes.NewReader(body))
	if err != nil {
		return "", fault.As(op, fault.Internal, err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, file))
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", fault.New(op, fault.Unavailable, "no testnet takes orders in %s: %w", dir, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return "", fault.As(op, fault.Unavailable, err)
	case response.StatusCode != http.StatusOK:
		return "", fault.New("testnet", fault.Conflict, "%s", bytes.TrimSpace(text))
	}
	return string(text), nil
}

// Find lists the directories under parent whose testnets take orders.
func Find(ctx context.Context, parent string) ([]string, error) {
	sockets, err := filepath.Glob(filepath.Join(parent, Prefix+"*", file))
	if err != nil {
		return nil, fault.As("control.Find", fault.Invalid, err)
	}
	var found []string
	for _, socket := range sockets {
		if answers(ctx, socket) {
			found = append(found, filepath.Dir(socket))
		}
	}
	return found, nil
}

// answers tells a running testnet from a socket that a killed one left, and from another user's.
func answers(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	return err == nil && c.Close() == nil
}

// Here returns the directory of the only testnet under the temporary directory. Errors: NotFound
// without one; Invalid with several.
func Here(ctx context.Context) (string, error) {
	const op = "control.Here"
	found, err := Find(ctx, os.TempDir())
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", fault.New(op, fault.NotFound, "no testnet takes orders: start one by go run ./testnet, and wait for the end of its tour")
	case len(found) > 1:
		return "", fault.Invalidf("-at", found, "%d testnets run: choose one of %q", len(found), found)
	}
	return found[0], nil
}
