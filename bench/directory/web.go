package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
)

// web is an HTTP client of a peer.
type web struct {
	base   string
	client *http.Client
}

func newWeb(address string) *web {
	return &web{base: "http://" + address, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

func (w *web) close() { w.client.CloseIdleConnections() }

// answer is an answer of a peer.
type answer struct {
	status int
	index  string
	stale  bool
	total  int
	body   []byte
}

// ask sends a request. Every status except success is an error.
func (w *web) ask(ctx context.Context, method, path string, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, fault.As("ask", fault.Invalid, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return answer{}, fault.As("ask", fault.Unavailable, err)
	}
	defer resp.Body.Close() // the body is read to its end
	got := answer{status: resp.StatusCode, index: resp.Header.Get("X-Blackhole-Index"), stale: resp.Header.Get("X-Blackhole-Stale") != ""}
	got.total, _ = strconv.Atoi(resp.Header.Get("X-Total-Count")) // 0 without the header
	if got.body, err = io.ReadAll(resp.Body); err != nil {
		return got, fault.As("ask", fault.Unavailable, err)
	}
	if got.status/100 != 2 {
		return got, fault.New("ask", fault.Unavailable, "%s %s: %d %.200s", method, path, got.status, got.body)
	}
	return got, nil
}

// count returns the number of instances known to a peer.
func (w *web) count(ctx context.Context) (n int, stale bool, err error) {
	got, err := w.ask(ctx, "GET", "/v1/services?limit=1", nil)
	return got.total, got.stale, err
}

// entry is an instance to register.
type entry struct {
	service, id string
	mark        string // distinguishes it from earlier registrations
}

func (e entry) body() []byte {
	return fmt.Appendf(nil, `{"id":%q,"host":"10.0.0.1","port":8080,"tags":["a","b"],"metadata":{"v":%q},"unhealthy_after":"1h","remove_after":"1h"}`, e.id, e.mark)
}

// register registers an instance, and reports whether the group committed it.
func (w *web) register(ctx context.Context, e entry, must bool) (committed bool, err error) {
	path := "/v1/services/" + e.service + "/instances"
	if must {
		path += "?require_commit=true"
	}
	got, err := w.ask(ctx, "POST", path, e.body())
	if err != nil {
		return false, err
	}
	var said struct{ Committed bool }
	err = json.Unmarshal(got.body, &said)
	return said.Committed, fault.As("register", fault.Internal, err)
}
