// Command endpoint guards an HTTP endpoint with a lock: writing requests carry the fencing
// token, and the server refuses stale tokens.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/blackhole/blackhole/examples/fencing/sleeper"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
)

func main() {
	grpc := flag.String("grpc", client.DefaultAddress, "gRPC `address` of the local peer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *grpc); err != nil {
		fmt.Fprintln(os.Stderr, "endpoint:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, grpc string) error {
	url, stop, err := serve(ctx)
	if err != nil {
		return err
	}
	defer stop()
	c, err := client.New(grpc)
	if err != nil {
		return err
	}
	defer c.Close()
	holders, err := sleeper.Take(ctx, c, "examples/document")
	if err != nil {
		return err
	}
	defer holders.Close()

	for _, h := range []*client.Held{holders.Awake, holders.Asleep} {
		status, err := put(ctx, url, h.Token(), "a document")
		if err != nil {
			return err
		}
		fmt.Printf("PUT with token %d: %s\n", h.Token(), status)
	}
	return nil
}

// serve is the resource: a document that refuses writes with a stale token. The document and
// its guard live in memory; a document on disk needs a fence.File.
func serve(ctx context.Context) (url string, stop func(), err error) {
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	store := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	server := &http.Server{Handler: fence.Handler(new(fence.Guard), store), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // returns after Close
	}()
	return "http://" + listener.Addr().String() + "/document", func() { _ = server.Close(); <-done }, nil
}

// put is the write of a holder. A real holder uses the context of its lock, so that no request
// starts after a noticed loss. This sleeper never notices its loss.
func put(ctx context.Context, url string, token fence.Token, text string) (status string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(text))
	if err != nil {
		return "", err
	}
	fence.Sign(req, token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	return resp.Status, resp.Body.Close()
}
