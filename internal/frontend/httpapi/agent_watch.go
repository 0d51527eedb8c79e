package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Default and bound of the time that a watch waits for a change.
const (
	defaultWatch = 5 * time.Minute
	maxWatch     = 10 * time.Minute
)

// allServices stands for the name of a service in the path of a stream. No service has this name.
const allServices = "*"

// watchInstances waits for a result newer than an index. A client
// that accepts server-sent events gets a stream of changes instead.
func (a *agentAPI) watchInstances(w http.ResponseWriter, r *http.Request) error {
	q, values, err := readQuery(r, "index", "wait")
	if err != nil {
		return err
	}
	after, wait, err := readPatience(values)
	if err != nil {
		return parameterError{err}
	}
	release, err := a.watches.Take(r.Context(), "httpapi.watchInstances")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := a.untilClosing(r.Context())
	defer cancel()
	// The request has arrived, so the bound on reading it must not end the wait.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return a.orClosing(ofParameters(a.streamInstances(ctx, w, r, question{q, after})))
	}
	result, err := a.await(ctx, question{q, after}, wait, r.Method)
	if err != nil {
		return a.orClosing(ofParameters(err))
	}
	return writeInstances(w, q.Service, result)
}

// question is a watched query and the last index that the client has.
type question struct {
	instance.Query
	after uint64
}

// await answers at once to a client without index or with a HEAD request.
func (a *agentAPI) await(ctx context.Context, q question, wait time.Duration, method string) (instance.Result, error) {
	if q.after == 0 || method == http.MethodHead {
		return a.Catalog.Discover(ctx, q.Query)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return a.Catalog.Await(ctx, q.Query, q.after)
}

// readPatience reads the index that the client has and the longest wait for a newer one.
func readPatience(values url.Values) (after uint64, wait time.Duration, err error) {
	if text := values.Get("index"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return 0, 0, fault.Invalidf("index", input.Quote(text), "is malformed: send X-Blackhole-Index from an answer")
		}
	}
	text := values.Get("wait")
	if text == "" {
		return after, defaultWatch, nil
	}
	wait, err = time.ParseDuration(text)
	if n, plain := strconv.ParseUint(text, 10, 32); plain == nil {
		wait, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || wait < 0 || wait > maxWatch {
		return 0, 0, fault.Invalidf("wait", input.Quote(text), "needs a duration such as 30s, at most %s", maxWatch)
	}
	return after, wait, nil
}

// streamInstances sends the event reset with all instances, then change for each change, contact
// when contact to the group is lost or regained, and comments that keep the connection alive.
// Ids are indexes. A client resumes with the last id in Last-Event-ID.
func (a *agentAPI) streamInstances(ctx context.Context, w http.ResponseWriter, r *http.Request, q question) error {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		last, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			return fault.Invalidf("Last-Event-ID", input.Quote(id), "is malformed: send the id of the last event")
		}
		q.after = last
	}
	out := &instanceStream{eventStream: newEventStream(w, r), service: q.Service}
	if q.Service == allServices {
		q.Service = ""
	}
	return out.end(a.Catalog.Watch(ctx, q.Query, q.after, out.send))
}

// instanceStream is the answer to a watch of instances.
type instanceStream struct {
	*eventStream
	service string
	stale   bool // as last sent to the client
	buf     []byte
}

// send writes one batch.
func (o *instanceStream) send(b instance.Batch) error {
	if !o.begun {
		tell(o.w.Header(), b.Index, b.Contact)
	}
	return o.writeLarge(len(b.Events)*typicalInstance, func() ([]byte, error) {
		text := o.append(kept(o.buf), b)
		o.buf = kept(text)
		return text, nil
	})
}

// typicalInstance is what an instance in an event takes, in bytes.
const typicalInstance = 1 << 10

// append appends the events of a batch. A mark of progress becomes a comment with an id, which
// clients remember (WHATWG HTML, section 9.2.6).
func (o *instanceStream) append(dst []byte, b instance.Batch) []byte {
	news := b.Stale != o.stale
	if news {
		o.stale = b.Stale
		dst = fmt.Appendf(dst, "event: contact\ndata: %s\n\n", dialect.JSON(contactBody{b.Stale, b.Reason, b.Age.Seconds()}))
	}
	switch {
	case len(b.Events) > 0 && o.service == allServices, b.Reset && o.service == allServices:
		return o.appendAll(dst, b)
	case b.Reset:
		list := make([]*instance.Instance, len(b.Events))
		for n, e := range b.Events {
			list[n] = e.Instance
		}
		return fmt.Appendf(dst, "event: reset\nid: %d\ndata: %s\n\n", b.Index, dialect.AppendList(nil, o.service, &instance.View{Index: b.Index, Instances: list}))
	case len(b.Events) > 0:
		return fmt.Appendf(dst, "event: change\nid: %d\ndata: %s\n\n", b.Index, dialect.JSON(dialect.ChangesOf(b)))
	case news:
		return dst
	}
	return fmt.Appendf(dst, ": progress\nid: %d\n\n", b.Index)
}

// serviceMember is an instance among those of all services.
type serviceMember struct {
	Service string `json:"service"`
	Peer    string `json:"peer,omitempty"`
	*instances.BriefJSON
}

// appendAll appends the reset or the changes of all services.
func (o *instanceStream) appendAll(dst []byte, b instance.Batch) []byte {
	type change struct {
		Type     string        `json:"type"`
		Instance serviceMember `json:"instance"`
		Revision uint64        `json:"revision"`
	}
	all, changes := make([]serviceMember, len(b.Events)), make([]change, len(b.Events))
	for n, e := range b.Events {
		all[n] = serviceMember{e.Instance.Service, e.Instance.Peer, instances.Brief(e.Instance)}
		changes[n] = change{dialect.ChangeName(e.Type), all[n], e.Revision}
	}
	kind, data := "change", map[string]any{"index": b.Index, "events": changes}
	if b.Reset {
		kind, data = "reset", map[string]any{"index": b.Index, "instances": all}
	}
	return fmt.Appendf(dst, "event: %s\nid: %d\ndata: %s\n\n", kind, b.Index, dialect.JSON(data))
}

// contactBody is the data of the event contact.
type contactBody struct {
	Stale  bool    `json:"stale"`
	Reason string  `json:"reason,omitempty"`
	Age    float64 `json:"age_seconds,omitempty"`
}
