package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// batchBody is the data of one event of the stream: changes of whole revisions, or none.
type batchBody struct {
	Header headerBody     `json:"header"`
	Events []changeBody   `json:"events,omitempty"`
	Next   coord.Revision `json:"next_revision"` // to start from when resuming
}

// changeBody is one change of one key.
type changeBody struct {
	Type string   `json:"type"` // put or delete
	KV   keyBody  `json:"kv"`   // of delete: key and mod_revision only
	Prev *keyBody `json:"prev_kv,omitempty"`
}

// keyBody is a version of a key.
type keyBody struct {
	Key            string         `json:"key"`
	KeyBase64      []byte         `json:"key_base64,omitempty"` // instead, when it is no text
	Value          string         `json:"value,omitempty"`
	ValueBase64    []byte         `json:"value_base64,omitempty"` // likewise
	CreateRevision coord.Revision `json:"create_revision,omitempty"`
	ModRevision    coord.Revision `json:"mod_revision"`
	Version        int64          `json:"version,omitempty"`
	Lease          leaseID        `json:"lease_id,omitempty"`
}

func fromKeyValue(kv *coord.KeyValue) keyBody {
	b := keyBody{CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: leaseID(kv.Lease)}
	b.Key, b.KeyBase64 = readable([]byte(kv.Key))
	b.Value, b.ValueBase64 = readable(kv.Value)
	return b
}

func fromBatch(b coord.Batch, h coord.Header) batchBody {
	body := batchBody{Header: fromHeader(h), Next: b.Next, Events: make([]changeBody, len(b.Events))}
	for i, e := range b.Events {
		change := changeBody{Type: "delete"}
		if e.Deletes() {
			change.KV = fromKeyValue(&coord.KeyValue{Key: e.Key, ModRevision: e.Revision})
		} else {
			change.Type, change.KV = "put", fromKeyValue(e.KV)
		}
		if e.Prev != nil {
			prev := fromKeyValue(e.Prev)
			change.Prev = &prev
		}
		body.Events[i] = change
	}
	return body
}

// readKeyWatch reads what to watch. A client resumes with the id of the last event, the last
// revision that it knows all of.
func readKeyWatch(r *http.Request) (coord.Watch, error) {
	values, err := input.Known(r.URL, "key", "prefix", "start_revision", "prev_kv")
	if err != nil {
		return coord.Watch{}, err
	}
	prefix, err := input.Truth(values, "prefix")
	if err != nil {
		return coord.Watch{}, err
	}
	prev, err := input.Truth(values, "prev_kv")
	if err != nil {
		return coord.Watch{}, err
	}
	from, err := input.Number(values, "start_revision")
	if err != nil {
		return coord.Watch{}, err
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		last, err := strconv.ParseInt(id, 10, 64)
		if err != nil || last < 0 {
			return coord.Watch{}, fault.Invalidf("Last-Event-ID", input.Shown(id), "is no id of this watch")
		}
		from = last + 1
	}
	w := coord.Watch{Span: coord.Exactly(values.Get("key")), From: coord.Revision(from), Prev: prev}
	switch {
	case prefix:
		w.Span = coord.Under(values.Get("key"))
	case values.Get("key") == "":
		return w, fault.Invalidf("key", nil, "is missing")
	}
	return w, nil
}

// watchKeys streams server-sent events: created, events, progress, and at last compacted when
// what was asked for is forgotten. The id of that one is the present revision: list the keys
// as they are at it, and a client that comes back by itself goes on from there.
func (s *Server) watchKeys(ctx context.Context, c call) error {
	w, err := readKeyWatch(c.r)
	if err != nil {
		return err
	}
	release, err := s.watches.take("watches")
	if err != nil {
		return err
	}
	defer release()
	out := keyStream{w: c.w, control: http.NewResponseController(c.w), head: c.r.Method == http.MethodHead}
	_ = out.control.SetReadDeadline(time.Time{})
	err = s.Coordination.Reader.Watch(ctx, w, out.batch)
	var gone *coord.Compacted
	if errors.As(err, &gone) {
		_ = out.event("compacted", gone.Current, map[string]coord.Revision{
			"compact_revision": gone.Revision, "current_revision": gone.Current,
		})
		return nil
	}
	if out.begun {
		return nil // the stream is all there is to say it in: the client comes back
	}
	return err
}

// keyStream is the answer to a watch.
type keyStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	head    bool // only the header is wanted
	begun   bool
}

func (k *keyStream) batch(b coord.Batch, h coord.Header) error {
	kind := "events"
	switch {
	case !k.begun:
		kind = "created"
	case len(b.Events) == 0:
		kind = "progress"
	}
	return k.event(kind, b.Next-1, fromBatch(b, h))
}

// event writes one event; a client that does not read it in time is gone.
func (k *keyStream) event(kind string, id coord.Revision, data any) error {
	if !k.begun {
		k.begun = true
		k.w.Header().Set("Content-Type", "text/event-stream")
		k.w.Header().Set("Cache-Control", "no-store")
		k.w.Header().Set("X-Content-Type-Options", "nosniff")
		k.w.WriteHeader(http.StatusOK)
	}
	if k.head {
		return fault.New("httpapi.watchKeys", fault.Canceled, "only the header is wanted")
	}
	if err := k.control.SetWriteDeadline(time.Now().Add(writeAnswer)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	text, err := json.Marshal(data)
	if err != nil {
		return fault.As("httpapi.watchKeys", fault.Internal, err)
	}
	if _, err := fmt.Fprintf(k.w, "event: %s\nid: %d\ndata: %s\n\n", kind, id, text); err != nil {
		return err
	}
	return k.control.Flush()
}
