package mcpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds of a stream of notifications.
const (
	maxListened = 16               // resources of one stream; more are not acknowledged
	stillThere  = 25 * time.Second // between two comments, which keep proxies from closing a quiet stream
	maxSilence  = 50 * time.Second // of one look for changes
	listenAgain = 5 * time.Second  // after a look that failed
	writeWithin = 10 * time.Second
)

// listen tells a client of changes of the resources that it names, until it goes. Only instances of services have
// changes to tell.
func (s *Server) listen(w http.ResponseWriter, r *http.Request, q *request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var heard []string
	for _, uri := range q.params.Notifications.Resources {
		if _, ok := watchable(uri); ok && len(heard) < maxListened {
			heard = append(heard, uri)
		}
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := &stream{control: http.NewResponseController(w), w: w, id: q.ID}
	agreed := map[string]any{}
	if len(heard) > 0 {
		agreed["resourceSubscriptions"] = heard
	}
	if out.notify("notifications/subscriptions/acknowledged", map[string]any{"notifications": agreed}) != nil {
		return
	}
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()
	for _, uri := range heard {
		watches.Go(func() {
			defer cancel() // a client that does not read is gone
			s.follow(r.WithContext(ctx), uri, out)
		})
	}
	alive := time.NewTicker(stillThere)
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done(): // the client has gone, or this server goes: then it says so
			end, _ := json.Marshal(&message{Version: "2.0", ID: q.ID, Result: map[string]any{
				"resultType": "complete", "_meta": map[string]any{meta + "subscriptionId": q.ID},
			}})
			_ = out.event(end)
			return
		case <-alive.C:
			if out.write([]byte(":\n\n")) != nil {
				return
			}
		}
	}
}

// watchable returns the path of the watch behind a resource.
func watchable(uri string) (path string, ok bool) {
	rest, ok := strings.CutPrefix(uri, scheme)
	part := strings.Split(rest, "/")
	if !ok || len(part) != 3 || part[0] != "services" || part[1] == "" || part[2] != "instances" || strings.ContainsAny(part[1], "?#") {
		return "", false
	}
	return "/v1/services/" + part[1] + "/watch", true
}

// follow tells of each change of a resource until the client goes.
func (s *Server) follow(r *http.Request, uri string, out *stream) {
	path, _ := watchable(uri)
	ctx, index := r.Context(), uint64(0)
	for failed := 0; ctx.Err() == nil && failed < 3; { // then the client is better off elsewhere
		ask := url.Values{"wait": {maxSilence.String()}}
		if index > 0 {
			ask.Set("index", strconv.FormatUint(index, 10))
		}
		look, end := holding(r)
		got := s.ask(look, http.MethodGet, path+"?"+ask.Encode(), nil)
		var now struct{ Index uint64 }
		err := json.Unmarshal(got.body.Bytes(), &now)
		end()
		if got.code >= http.StatusBadRequest || err != nil {
			failed++
			select {
			case <-ctx.Done():
			case <-time.After(listenAgain):
			}
			continue
		}
		if index > 0 && now.Index != index && out.notify("notifications/resources/updated", map[string]any{"uri": uri}) != nil {
			return
		}
		index, failed = now.Index, 0
	}
}

// stream is an answer of server-sent events. It is safe for concurrent use.
type stream struct {
	id      json.RawMessage // of the request
	control *http.ResponseController

	mu sync.Mutex // guards w
	w  http.ResponseWriter
}

func (o *stream) notify(method string, params map[string]any) error {
	params["_meta"] = map[string]any{meta + "subscriptionId": o.id}
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
	if err != nil {
		return err
	}
	return o.event(text)
}

func (o *stream) event(text []byte) error {
	return o.write(bytes.Join([][]byte{[]byte("data: "), text, []byte("\n\n")}, nil))
}

func (o *stream) write(text []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.control.SetWriteDeadline(time.Now().Add(writeWithin))
	if _, err := o.w.Write(text); err != nil {
		return err
	}
	return o.control.Flush()
}
