package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// batchBody is the data of one event of the stream: the changes of whole revisions, or no change.
type batchBody struct {
	Header coord.Header   `json:"header"`
	Events []changeBody   `json:"events,omitempty"`
	Next   coord.Revision `json:"next_revision"` // start of a resumed watch
}

// changeBody is one change of a key.
type changeBody struct {
	Type string   `json:"type"` // put or delete
	KV   keyBody  `json:"kv"`   // for delete only key and mod_revision
	Prev *keyBody `json:"prev_kv,omitempty"`
}

// keyBody is a version of a key.
type keyBody struct {
	Key            string         `json:"key"`
	KeyBase64      []byte         `json:"key_base64,omitempty"` // instead of key for bytes that are not text
	Value          string         `json:"value,omitempty"`
	ValueBase64    []byte         `json:"value_base64,omitempty"` // instead of value, likewise
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
	body := batchBody{Header: h, Next: b.Next, Events: make([]changeBody, len(b.Events))}
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

// readKeyWatch reads the parameters of a watch. A client resumes with the id of the last event,
// the last revision that it has received completely.
func readKeyWatch(r *http.Request) (coord.Watch, error) {
	values, err := input.Known(r.URL, "key", "prefix", "start_revision", "prev_kv")
	if err != nil {
		return coord.Watch{}, err
	}
	prefix, err := input.ParseBool(values, "prefix")
	if err != nil {
		return coord.Watch{}, err
	}
	prev, err := input.ParseBool(values, "prev_kv")
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
			return coord.Watch{}, fault.Invalidf("Last-Event-ID", input.Quote(id), "is malformed: send the id of the last event")
		}
		from = last + 1
	}
	w := coord.Watch{Span: coord.Exactly(values.Get("key")), From: coord.Revision(from), Prev: prev}
	switch {
	case prefix:
		w.Span = coord.Under(values.Get("key"))
	case values.Get("key") == "":
		return w, fault.Invalidf("key", nil, "is missing: name a key, or set prefix=true for all keys")
	}
	return w, nil
}

// watchKeys streams the events created, events and progress. The event compacted ends a watch
// whose start is no longer stored: its id is the current revision, at which a client lists the
// keys, and from which a client that reconnects continues.
func (p *coordinationAPI) watchKeys(ctx context.Context, c call) error {
	w, err := readKeyWatch(c.r)
	if err != nil {
		return err
	}
	release, err := p.watches.Take(ctx, "httpapi.watchKeys")
	if err != nil {
		return err
	}
	defer release()
	out := newEventStream(c.w, c.r)
	err = p.Reader.Watch(ctx, w, func(b coord.Batch, h coord.Header) error {
		kind := "events"
		switch {
		case !out.begun:
			kind = "created"
		case len(b.Events) == 0:
			kind = "progress"
		}
		return writeKeyEvent(out, kind, b.Next-1, fromBatch(b, h))
	})
	var gone *coord.Compacted
	if errors.As(err, &gone) {
		_ = writeKeyEvent(out, "compacted", gone.Current, map[string]coord.Revision{
			"compact_revision": gone.Revision, "current_revision": gone.Current,
		})
		return nil
	}
	return out.end(err)
}

func writeKeyEvent(out *eventStream, kind string, id coord.Revision, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fault.As("httpapi.watchKeys", fault.Internal, err)
	}
	return out.write(fmt.Appendf(nil, "event: %s\nid: %d\ndata: %s\n\n", kind, id, text))
}
